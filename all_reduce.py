"""Sums a tensor over the towers of one process, so that every tower gets the sum.

A list "T x V" holds for each of T towers a list of V tensors.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from errors import UsageError
from packing import Packer, Packing, even_sizes

Tensor = Any
# The tensors of T towers (one each) and the number of this reduction among its like -> the sum, on each tower.
Algorithm = Callable[[Sequence[Tensor], int], list[Tensor]]


def by_copies(devices: Sequence[str]) -> Algorithm:
    """Sums on one device, from which every tower copies. Reductions take the given devices in turn."""

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        with tf.device(devices[index % len(devices)]):
            total = tf.add_n(tensors)
        return [total] * len(tensors)

    return reduce


def by_ring(towers: Sequence[str]) -> Algorithm:
    """Passes T chunks around a ring of T towers: T - 1 steps to sum them, T - 1 to spread the sums.

    Each link carries 2 (T - 1) / T of the tensor, whatever T: Patarasuk & Yuan 2009 (doi:10.1016/j.jpdc.2008.09.002).
    """
    num_towers = len(towers)

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        shape = tensors[0].shape.as_list()
        size = int(np.prod(shape))
        sizes = even_sizes(size, num_towers)
        chunks = []  # tower x chunk
        for tower, tensor in zip(towers, tensors, strict=True):
            with tf.device(tower):
                chunks.append(tf.split(tf.reshape(tensor, [-1]), sizes))
        for step, sender in itertools.product(range(num_towers - 1), range(num_towers)):
            receiver, chunk = (sender + 1) % num_towers, (sender - step) % num_towers
            with tf.device(towers[receiver]):
                chunks[receiver][chunk] += chunks[sender][chunk]
        for step, sender in itertools.product(range(num_towers - 1), range(num_towers)):
            receiver, chunk = (sender + 1) % num_towers, (sender + 1 - step) % num_towers
            with tf.device(towers[receiver]):
                chunks[receiver][chunk] = tf.identity(chunks[sender][chunk])
        sums = []
        for tower, parts in zip(towers, chunks, strict=True):
            with tf.device(tower):
                sums.append(tf.reshape(tf.concat(parts, 0), shape))
        return sums

    return reduce


def by_halves(towers: Sequence[str]) -> Algorithm:
    """Sums in each half of the towers, then across; the sums come back the same way.

    It fits the hybrid cube mesh of the DGX-1, where GPUs 0-3 and 4-7 are two cliques of NVLinks and GPU i is linked to
    GPU i + 4 (NVIDIA DGX-1 System Architecture, WP-08437-002, figure 4).
    """
    half = len(towers) // 2

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        leader = index % half
        sums = []
        for start in (0, half):
            with tf.device(towers[start + leader]):
                sums.append(tf.add_n(tensors[start : start + half]))
        totals = []
        for start in (0, half):
            with tf.device(towers[start + leader]):
                totals.append(sums[0] + sums[1])
        return [totals[tower // half] for tower in range(len(towers))]

    return reduce


def by_nccl(towers: Sequence[str]) -> Algorithm:
    """Sums with NVIDIA's collective library. The towers are GPUs."""

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        sums = []
        for tower, tensor in zip(towers, tensors, strict=True):
            with tf.device(tower):
                sums.append(
                    tf.raw_ops.NcclAllReduce(
                        input=tensor, reduction='sum', num_devices=len(towers), shared_name=f'all_reduce_{index}'
                    )
                )
        # The kernels wait for each other: running only one would hang, so each result waits for all.
        finished = []
        for tower, total in zip(towers, sums, strict=True):
            with tf.device(tower), tf.control_dependencies(sums):
                finished.append(tf.identity(total))
        return finished

    return reduce


def compacted(algorithm: Algorithm, towers: Sequence[str], transfer: tf.DType) -> Algorithm:
    """An algorithm by which float32 tensors are summed in another type."""

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        sent, sums = [], []
        for tower, tensor in zip(towers, tensors, strict=True):
            with tf.device(tower):
                sent.append(tf.cast(tensor, transfer))
        for tower, total in zip(towers, algorithm(sent, index), strict=True):
            with tf.device(tower):
                sums.append(tf.cast(total, tf.float32))
        return sums

    return reduce


ALGORITHMS = {
    'pscpu': 'sums on the CPU',
    'psgpu': "sums on the towers' own devices, tensors taking turns",
    'xring': 'a ring of copies',
    'nccl': 'NCCL, GPUs only',
}


@dataclass(frozen=True)
class Range:
    """An algorithm, and the size in bytes below which tensors go by it (None: all that are left)."""

    algorithm: str
    limit_bytes: int | None


def parse_spec(spec: str) -> tuple[Range, ...]:
    """Reads --all_reduce_spec: an algorithm, or ALG:LIMIT:ALG... where LIMIT (32k, 4m) parts tensors by bytes.

    Raises:
      UsageError: the spec is not of that form, or names an unknown algorithm.
    """

    def refuse(why: str) -> UsageError:
        known = ', '.join(f'{name} ({what})' for name, what in ALGORITHMS.items())
        return UsageError(
            f'--all_reduce_spec={spec}: {why}; write ALG or ALG:LIMIT:ALG with {known}, as in pscpu:32k:xring'
        )

    words = spec.split(':')
    names, limits = words[::2], words[1::2]
    if len(words) % 2 == 0:
        raise refuse('a limit must stand between two algorithms')
    for name in names:
        if '/' in name:
            raise refuse(f'{name} has a second level between machines, which this version does not have')
        if '#' in name:
            raise refuse(f'{name} asks for shards, which this version does not have')
        if name not in ALGORITHMS:
            raise refuse(f'there is no algorithm {name!r}')
    sizes = []
    for limit in limits:
        match = re.fullmatch(r'(\d+)([km]?)', limit.lower())
        if not match:
            raise refuse(f'{limit!r} is no number of bytes')
        sizes.append(int(match[1]) * {'': 1, 'k': 1 << 10, 'm': 1 << 20}[match[2]])
    if sizes != sorted(set(sizes)):
        raise refuse('the limits must grow')
    return tuple(map(Range, names, [*sizes, None]))


def make_algorithm(spec: str, towers: Sequence[str], host_device: str) -> Algorithm:
    """The algorithm that a spec describes, for towers on these devices."""
    ranges = parse_spec(spec)
    if len(towers) == 1:
        return lambda tensors, index: list(tensors)
    make: dict[str, Callable[[], Algorithm]] = {
        'pscpu': lambda: by_copies([host_device]),
        'psgpu': lambda: by_copies(towers),
        'xring': lambda: by_ring(towers),
        'nccl': lambda: by_nccl(towers),
    }
    algorithms = [(part.limit_bytes, make[part.algorithm]()) for part in ranges]

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        size = tensors[0].dtype.size * int(np.prod(tensors[0].shape.as_list()))
        algorithm = next(chosen for limit, chosen in algorithms if limit is None or size < limit)
        return algorithm(tensors, index)

    return reduce


def all_reduce(
    gradients: Sequence[Sequence[Tensor]], towers: Sequence[str], algorithm: Algorithm, packing: Packing
) -> list[list[Tensor]]:
    """Sums the gradients of T towers: T x V -> T x V."""
    packer = Packer([gradient.shape.as_list() for gradient in gradients[0]], packing)
    packed = []  # T x P
    for tower, own in zip(towers, gradients, strict=True):
        with tf.device(tower):
            packed.append(packer.pack(own))
    reduced = [algorithm(tensors, index) for index, tensors in enumerate(zip(*packed, strict=True))]  # P x T
    sums = []
    for tower, own in zip(towers, zip(*reduced, strict=True), strict=True):
        with tf.device(tower):
            sums.append(packer.unpack(own))
    return sums
