"""Packs many tensors into fewer flat tensors, to send them together."""

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
      num_chunks: if above 0, all tensors are concatenated and split into this many chunks of about
        equal size.
      max_bytes: consecutive tensors of at most this size each are concatenated.
      max_group: the most tensors that are concatenated because of max_bytes.
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
        self._groups = group_indices(self._shapes, packing)

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


def group_indices(shapes: Sequence[Sequence[int]], packing: Packing) -> list[list[int]]:
    """Returns the indices of the tensors in each packed tensor."""
    if packing.num_chunks:
        return [list(range(len(shapes)))]
    groups: list[list[int]] = []
    open_group = False
    for number, shape in enumerate(shapes):
        is_small = 4 * np.prod(shape) <= packing.max_bytes
        if is_small and open_group and len(groups[-1]) < packing.max_group:
            groups[-1].append(number)
        else:
            groups.append([number])
        open_group = bool(is_small)
    return groups


def even_sizes(size: int, num_pieces: int) -> list[int]:
    """Splits a size into this many sizes that differ by at most 1."""
    return [size // num_pieces + (i < size % num_pieces) for i in range(num_pieces)]
