"""Packs many tensors into fewer flat tensors, to send them together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

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
