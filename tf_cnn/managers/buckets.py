"""Packs many tensors into fewer flat tensors of similar sizes, to send them together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

Tensor = Any


@dataclass(frozen=True)
class Packing:
    """Which tensors are packed into one flat tensor.

    Attributes:
      num_chunks: if above 0, all tensors are concatenated and split into that many chunks of about
        equal size.
      max_bytes: consecutive tensors of at most this size each are concatenated, at most max_group
        of them.
    """

    num_chunks: int = 0
    max_bytes: int = 0
    max_group: int = 10


class Packer:
    """Packs and unpacks lists of tensors of the given shapes. Adds its ops to the current device
    scope.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], packing: Packing) -> None:
        self._shapes = [list(shape) for shape in shapes]
        self._num_chunks = packing.num_chunks
        self._groups = packed_groups(self._shapes, packing)

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
            parts = tf.split(tensor, sizes) if len(group) > 1 else [tensor]
            for number, part in zip(group, parts, strict=True):
                # A tensor that was not flattened keeps its shape.
                same = part.shape.as_list() == self._shapes[number]
                tensors.append(part if same else tf.reshape(part, self._shapes[number]))
        return tensors


def packed_groups(shapes: Sequence[Sequence[int]], packing: Packing) -> list[list[int]]:
    """Returns the indices of the tensors in each packed tensor."""
    if packing.num_chunks:
        return [list(range(len(shapes)))]
    groups: list[list[int]] = []
    open_group = False
    for number, shape in enumerate(shapes):
        small = 4 * np.prod(shape) <= packing.max_bytes
        if small and open_group and len(groups[-1]) < packing.max_group:
            groups[-1].append(number)
        else:
            groups.append([number])
        open_group = bool(small)
    return groups


def even_sizes(size: int, parts: int) -> list[int]:
    """Splits size into that many parts, which differ by at most one."""
    return [size // parts + (i < size % parts) for i in range(parts)]
