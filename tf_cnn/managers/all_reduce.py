"""All-reduce algorithms between the towers of one process, or of all workers under a controller."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.managers.all_reduce_spec import SizeRange
from tf_cnn.managers.config import VariableConfig

Tensor = Any


class Packer:
    """Packs and unpacks lists of tensors of the given shapes. Adds its ops to the current device
    scope.

    flags: --gradient_repacking and --agg_small_grads_max_* say which tensors are packed together.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], flags: VariableConfig) -> None:
        self._shapes = [list(shape) for shape in shapes]
        self._num_chunks = flags.gradient_repacking
        self._groups = group_indices(self._shapes, flags)

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        packed = []
        for group in self._groups:
            if len(group) == 1:
                packed.append(tensors[group[0]])
            else:
                packed.append(tf.concat([tf.reshape(tensors[number], [-1]) for number in group], 0))
        if not self._num_chunks:
            return packed
        flat = tf.reshape(packed[0], [-1])
        size = flat.shape.as_list()[0]
        return tf.split(flat, even_sizes(size, min(size, self._num_chunks)))

    def unpack(self, packed: Sequence[Tensor]) -> list[Tensor]:
        if self._num_chunks:
            packed = [tf.concat(list(packed), 0)]
        tensors = []
        for tensor, group in zip(packed, self._groups, strict=True):
            sizes = [int(np.prod(self._shapes[number])) for number in group]
            pieces = tf.split(tensor, sizes) if len(group) > 1 else [tensor]
            for number, piece in zip(group, pieces, strict=True):
                # A tensor that was not flattened keeps its shape.
                has_shape = piece.shape.as_list() == self._shapes[number]
                tensors.append(piece if has_shape else tf.reshape(piece, self._shapes[number]))
        return tensors


def group_indices(shapes: Sequence[Sequence[int]], flags: VariableConfig) -> list[list[int]]:
    """Returns the indices of the tensors in each packed tensor."""
    if flags.gradient_repacking:
        return [list(range(len(shapes)))]
    groups: list[list[int]] = []
    open_group = False
    for number, shape in enumerate(shapes):
        is_small = 4 * np.prod(shape) <= flags.agg_small_grads_max_bytes
        if is_small and open_group and len(groups[-1]) < flags.agg_small_grads_max_group:
            groups[-1].append(number)
        else:
            groups.append([number])
        open_group = bool(is_small)
    return groups


def even_sizes(size: int, num_pieces: int) -> list[int]:
    """Splits a size into this many sizes that differ by at most 1."""
    return [size // num_pieces + (i < size % num_pieces) for i in range(num_pieces)]


# (the tensor of each of T towers, the index of this reduction) -> the sum on each tower.
Algorithm = Callable[[Sequence[Tensor], int], list[Tensor]]


def _call_on_each_tower(
    towers: Sequence[str], function: Callable[..., Any], *values: Iterable[Any]
) -> list[Any]:
    """Calls a function on each tower, with the tower's item of each sequence in `values`."""
    results = []
    for tower, *tower_values in zip(towers, *values, strict=True):
        with tf.device(tower):
            results.append(function(*tower_values))
    return results


def _split_flat(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return tf.split(tf.reshape(tensor, [-1]), sizes)


def copy_algorithm(devices: Sequence[str]) -> Algorithm:
    """Sums on one device; every tower copies the sum from there. Successive reductions rotate
    through the devices.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        with tf.device(devices[index % len(devices)]):
            total = tf.add_n(tensors)
        return [total] * len(tensors)

    return reduce


def ring_algorithm(towers: Sequence[str]) -> Algorithm:
    """Passes T chunks around a ring of T towers: T - 1 steps to sum them, T - 1 to distribute the
    sums.

    Each link carries 2 (T - 1) / T of the tensor: Patarasuk & Yuan 2009
    (doi:10.1016/j.jpdc.2008.09.002).
    """
    num_towers = len(towers)

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        shape = tensors[0].shape.as_list()
        sizes = even_sizes(int(np.prod(shape)), num_towers)
        chunks = _call_on_each_tower(
            towers, lambda tensor: _split_flat(tensor, sizes), tensors
        )  # tower x chunk
        for step, sender in itertools.product(range(num_towers - 1), range(num_towers)):
            receiver, chunk = (sender + 1) % num_towers, (sender - step) % num_towers
            with tf.device(towers[receiver]):
                chunks[receiver][chunk] += chunks[sender][chunk]
        for step, sender in itertools.product(range(num_towers - 1), range(num_towers)):
            receiver, chunk = (sender + 1) % num_towers, (sender + 1 - step) % num_towers
            with tf.device(towers[receiver]):
                chunks[receiver][chunk] = tf.identity(chunks[sender][chunk])
        return _call_on_each_tower(
            towers, lambda tower_chunks: tf.reshape(tf.concat(tower_chunks, 0), shape), chunks
        )

    return reduce


def halves_algorithm(towers: Sequence[str], leaders: Sequence[tuple[int, int]]) -> Algorithm:
    """Sums within each half of the towers, then adds the two sums; each half copies the total from
    its leader.

    leaders: pairs of linked towers, one tower of each half. Successive reductions use successive
    pairs.
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


def nccl_algorithm(towers: Sequence[str]) -> Algorithm:
    """Sums with NCCL, NVIDIA's collective library. The towers must be GPUs; bfloat16 is not
    supported.

    The kernels of one sum wait for each other: a session that fetches the sum of only one tower
    hangs. A training step computes all sums, since it updates the variables of every tower.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        common = {
            'reduction': 'sum',
            'num_devices': len(towers),
            'shared_name': f'all_reduce_{index}',
        }
        return _call_on_each_tower(
            towers, lambda tensor: tf.raw_ops.NcclAllReduce(input=tensor, **common), tensors
        )

    return reduce


def compact_algorithm(algorithm: Algorithm, towers: Sequence[str], transfer: tf.DType) -> Algorithm:
    """Wraps an algorithm so that it transfers and sums float32 tensors in another dtype."""

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        compact_tensors = _call_on_each_tower(
            towers, lambda tensor: tf.cast(tensor, transfer), tensors
        )
        return _call_on_each_tower(
            towers, lambda total: tf.cast(total, tf.float32), algorithm(compact_tensors, index)
        )

    return reduce


def sharded_algorithm(algorithm: Algorithm, towers: Sequence[str], num_shards: int) -> Algorithm:
    """Wraps an algorithm so that it cuts a tensor into shards of about equal size and reduces each
    separately.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        shape = tensors[0].shape.as_list()
        size = int(np.prod(shape))
        sizes = even_sizes(size, min(num_shards, size))
        tower_shards = _call_on_each_tower(
            towers, lambda tensor: _split_flat(tensor, sizes), tensors
        )  # tower x shard
        first = index * num_shards
        summed = [
            algorithm(shard, first + number)
            for number, shard in enumerate(zip(*tower_shards, strict=True))
        ]
        return _call_on_each_tower(
            towers,
            lambda shard_sums: tf.reshape(tf.concat(shard_sums, 0), shape),
            zip(*summed, strict=True),
        )

    return reduce if num_shards > 1 else algorithm


def nested_algorithm(
    towers: Sequence[str],
    num_workers: int,
    within: Sequence[Algorithm],
    make_between: Callable[[Sequence[str]], Algorithm],
    *,
    runs_all: bool,
) -> Algorithm:
    """Sums within each worker, then over one tower of each worker; the worker's other towers copy
    the total from that tower.

    Args:
      make_between: makes the algorithm for one tower of each worker. Successive reductions use
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
            worker_sums = algorithm(tensors[start : start + size], index)
            with (
                tf.device(towers[start + leader]),
                tf.control_dependencies(worker_sums if runs_all else []),
            ):
                sums.append(tf.identity(worker_sums[leader]))
        totals = between[leader](sums, index)
        return [total for total in totals for _ in range(size)]

    return reduce


def make_algorithm(
    ranges: Sequence[SizeRange], towers: Sequence[str], host_device: str, hosts: Sequence[str] = ()
) -> Algorithm:
    """Returns an algorithm that depends on the size of each tensor; see all_reduce_spec.parse_spec.

    hosts: the CPUs of the processes that have towers, in the order of the towers; by default
    this process alone.
    """
    num_workers = len(hosts) or 1
    size = len(towers) // num_workers

    def make_simple(name: str, shards: int, over: Sequence[str], cpus: Sequence[str]) -> Algorithm:
        if len(over) == 1:
            return lambda tensors, index: list(tensors)
        factories: dict[str, Callable[[], Algorithm]] = {
            'pscpu': lambda: copy_algorithm(cpus),
            'psgpu': lambda: copy_algorithm(over),
            'xring': lambda: ring_algorithm(over),
            'nccl': lambda: nccl_algorithm(over),
        }
        # NCCL cuts tensors itself.
        return sharded_algorithm(factories[name](), over, 1 if name == 'nccl' else shards)

    def make_for_range(size_range: SizeRange) -> Algorithm:
        if size_range.between is None or num_workers == 1:
            return make_simple(size_range.algorithm, size_range.shards, towers, [host_device])
        between, between_shards = size_range.between, size_range.between_shards
        return nested_algorithm(
            towers,
            num_workers,
            [
                make_simple(
                    size_range.algorithm, size_range.shards, towers[worker * size :][:size], [host]
                )
                for worker, host in enumerate(hosts)
            ],
            lambda leaders: make_simple(between, between_shards, leaders, hosts),
            runs_all=size_range.algorithm == 'nccl',
        )

    algorithms = [(size_range.limit_bytes, make_for_range(size_range)) for size_range in ranges]

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        size = tensors[0].dtype.size * int(np.prod(tensors[0].shape.as_list()))
        algorithm = next(
            candidate for limit, candidate in algorithms if limit is None or size < limit
        )
        return algorithm(tensors, index)

    return reduce


def all_reduce(
    gradients: Sequence[Sequence[Tensor]],
    towers: Sequence[str],
    algorithm: Algorithm,
    flags: VariableConfig,
) -> list[list[Tensor]]:
    """Sums the gradients of T towers: T x V -> T x V. Starts with the last layers: their gradients
    are ready first.
    """
    packer = Packer([gradient.shape.as_list() for gradient in gradients[0]], flags)
    packed = _call_on_each_tower(towers, packer.pack, gradients)  # T x P
    numbered = list(enumerate(zip(*packed, strict=True)))
    reduced = [algorithm(tensors, index) for index, tensors in reversed(numbered)][::-1]  # P x T
    return _call_on_each_tower(towers, packer.unpack, zip(*reduced, strict=True))
