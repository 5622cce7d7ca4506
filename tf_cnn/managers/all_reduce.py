"""Sums a tensor over towers, those of one process or under a controller of all workers; each gets
the sum.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.managers.all_reduce_spec import Range
from tf_cnn.managers.buckets import Packer, Packing, even_sizes

Tensor = Any
# (one tensor of each of T towers, index of this reduction) -> the sum on each tower.
Algorithm = Callable[[Sequence[Tensor], int], list[Tensor]]


def _on_each(
    towers: Sequence[str], function: Callable[..., Any], *values: Iterable[Any]
) -> list[Any]:
    """Calls a function with the values of each tower, on that tower; each of `values` has an item
    for every tower.
    """
    results = []
    for tower, *own in zip(towers, *values, strict=True):
        with tf.device(tower):
            results.append(function(*own))
    return results


def _flat_parts(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return tf.split(tf.reshape(tensor, [-1]), sizes)


def by_copies(devices: Sequence[str]) -> Algorithm:
    """Sums on one device, from which every tower copies the sum. Successive reductions rotate
    through the devices.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        with tf.device(devices[index % len(devices)]):
            total = tf.add_n(tensors)
        return [total] * len(tensors)

    return reduce


def by_ring(towers: Sequence[str]) -> Algorithm:
    """Passes T chunks around a ring of T towers: T - 1 steps to sum them, T - 1 to distribute the
    sums.

    Each link carries 2 (T - 1) / T of the tensor: Patarasuk & Yuan 2009
    (doi:10.1016/j.jpdc.2008.09.002).
    """
    num_towers = len(towers)

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        shape = tensors[0].shape.as_list()
        sizes = even_sizes(int(np.prod(shape)), num_towers)
        chunks = _on_each(
            towers, lambda tensor: _flat_parts(tensor, sizes), tensors
        )  # tower x chunk
        for step, sender in itertools.product(range(num_towers - 1), range(num_towers)):
            receiver, chunk = (sender + 1) % num_towers, (sender - step) % num_towers
            with tf.device(towers[receiver]):
                chunks[receiver][chunk] += chunks[sender][chunk]
        for step, sender in itertools.product(range(num_towers - 1), range(num_towers)):
            receiver, chunk = (sender + 1) % num_towers, (sender + 1 - step) % num_towers
            with tf.device(towers[receiver]):
                chunks[receiver][chunk] = tf.identity(chunks[sender][chunk])
        return _on_each(towers, lambda parts: tf.reshape(tf.concat(parts, 0), shape), chunks)

    return reduce


def by_halves(towers: Sequence[str], leaders: Sequence[tuple[int, int]]) -> Algorithm:
    """Sums within each half of the towers, then adds the two sums; each half copies the total from
    its leader.

    leaders are pairs of towers, one of each half, that are linked; successive reductions take
    successive pairs.
    """
    half = len(towers) // 2

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        pair = leaders[index % len(leaders)]
        sums = []
        for start, leader in zip((0, half), pair, strict=True):
            with tf.device(towers[leader]):
                sums.append(tf.add_n(tensors[start : start + half]))
        totals = []
        for leader in pair:
            with tf.device(towers[leader]):
                totals.append(sums[0] + sums[1])
        return [totals[tower // half] for tower in range(len(towers))]

    return reduce


def by_nccl(towers: Sequence[str]) -> Algorithm:
    """Sums with NCCL, NVIDIA's collective library. The towers must be GPUs, and the dtype not
    bfloat16.

    The kernels of one sum wait for each other: a session that fetches the sum of only one tower
    hangs. A training step runs all of them, since it updates the variables of every tower.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        common = {
            'reduction': 'sum',
            'num_devices': len(towers),
            'shared_name': f'all_reduce_{index}',
        }
        return _on_each(
            towers, lambda tensor: tf.raw_ops.NcclAllReduce(input=tensor, **common), tensors
        )

    return reduce


def compacted(algorithm: Algorithm, towers: Sequence[str], transfer: tf.DType) -> Algorithm:
    """Wraps an algorithm so that it transfers and sums float32 tensors in another dtype."""

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        sent = _on_each(towers, lambda tensor: tf.cast(tensor, transfer), tensors)
        return _on_each(towers, lambda total: tf.cast(total, tf.float32), algorithm(sent, index))

    return reduce


def sharded(algorithm: Algorithm, towers: Sequence[str], num_shards: int) -> Algorithm:
    """Wraps an algorithm so that it sums a tensor in parts of about equal size, each as a reduction
    of its own.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        shape = tensors[0].shape.as_list()
        size = int(np.prod(shape))
        sizes = even_sizes(size, min(num_shards, size))
        parts = _on_each(
            towers, lambda tensor: _flat_parts(tensor, sizes), tensors
        )  # tower x shard
        first = index * num_shards
        summed = [
            algorithm(shard, first + number)
            for number, shard in enumerate(zip(*parts, strict=True))
        ]
        return _on_each(
            towers, lambda own: tf.reshape(tf.concat(own, 0), shape), zip(*summed, strict=True)
        )

    return reduce if num_shards > 1 else algorithm


def nested(
    towers: Sequence[str],
    num_workers: int,
    within: Sequence[Algorithm],
    make_between: Callable[[Sequence[str]], Algorithm],
    *,
    runs_all: bool,
) -> Algorithm:
    """Sums within each worker, then over one tower of each worker, from which its other towers copy
    the total.

    Args:
      make_between: makes the algorithm for one tower of each worker. Successive reductions take
        successive towers.
      runs_all: whether all sums of a worker must be computed, although only one is used.
    """
    size = len(towers) // num_workers
    between = [make_between(towers[leader::size]) for leader in range(size)]

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        leader = index % size
        sums = []
        for worker, algorithm in enumerate(within):
            start = worker * size
            own = algorithm(tensors[start : start + size], index)
            with (
                tf.device(towers[start + leader]),
                tf.control_dependencies(own if runs_all else []),
            ):
                sums.append(tf.identity(own[leader]))
        totals = between[leader](sums, index)
        return [total for total in totals for _ in range(size)]

    return reduce


def make_algorithm(
    ranges: Sequence[Range], towers: Sequence[str], host_device: str, hosts: Sequence[str] = ()
) -> Algorithm:
    """Returns an algorithm that chooses by the size of each tensor; see params.all_reduce_spec.

    hosts are the CPUs of the processes that have towers, in the order of the towers; by default
    only this process.
    """
    num_workers = len(hosts) or 1
    size = len(towers) // num_workers

    def make(name: str, shards: int, over: Sequence[str], cpus: Sequence[str]) -> Algorithm:
        if len(over) == 1:
            return lambda tensors, index: list(tensors)
        factories: dict[str, Callable[[], Algorithm]] = {
            'pscpu': lambda: by_copies(cpus),
            'psgpu': lambda: by_copies(over),
            'xring': lambda: by_ring(over),
            'nccl': lambda: by_nccl(over),
        }
        # NCCL cuts tensors itself.
        return sharded(factories[name](), over, 1 if name == 'nccl' else shards)

    def make_part(part: Range) -> Algorithm:
        if part.between is None or num_workers == 1:
            return make(part.algorithm, part.shards, towers, [host_device])
        between, between_shards = part.between, part.between_shards
        return nested(
            towers,
            num_workers,
            [
                make(part.algorithm, part.shards, towers[worker * size :][:size], [host])
                for worker, host in enumerate(hosts)
            ],
            lambda leaders: make(between, between_shards, leaders, hosts),
            runs_all=part.algorithm == 'nccl',
        )

    algorithms = [(part.limit_bytes, make_part(part)) for part in ranges]

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        size = tensors[0].dtype.size * int(np.prod(tensors[0].shape.as_list()))
        algorithm = next(chosen for limit, chosen in algorithms if limit is None or size < limit)
        return algorithm(tensors, index)

    return reduce


def all_reduce(
    gradients: Sequence[Sequence[Tensor]],
    towers: Sequence[str],
    algorithm: Algorithm,
    packing: Packing,
) -> list[list[Tensor]]:
    """Sums the gradients of T towers: T x V -> T x V. Starts with the last layers, whose gradients
    are ready first.
    """
    packer = Packer([gradient.shape.as_list() for gradient in gradients[0]], packing)
    packed = _on_each(towers, packer.pack, gradients)  # T x P
    numbered = list(enumerate(zip(*packed, strict=True)))
    reduced = [algorithm(tensors, index) for index, tensors in reversed(numbered)][::-1]  # P x T
    return _on_each(towers, packer.unpack, zip(*reduced, strict=True))
