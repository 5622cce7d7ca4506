"""Constant batch norms for inference: folded into the convolution before them, or reduced to one
factor and one shift.

In inference, batch norm is y = factor * x + shift of each channel, with factor = gamma /
sqrt(variance + epsilon) and shift = beta - factor * mean: Ioffe & Szegedy 2015 (arXiv:1502.03167),
algorithm 2. If x is the output of a convolution, its kernel takes the factor: section 3.2 of Jacob
et al. 2018 (arXiv:1712.05877).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

Tensor = Any
Array = np.ndarray[Any, Any]

_CONVOLUTIONS = ('Conv2D', 'DepthwiseConv2dNative')


@dataclass(frozen=True)
class ConstantNorm:
    """The factor and the shift of a batch norm, [C] float32. Each is None if the convolution before
    the batch norm applies it.
    """

    factor: Array | None
    shift: Array | None

    def apply(self, x: Tensor, data_format: str) -> Tensor:
        dtype = x.dtype.as_numpy_dtype
        if self.factor is not None:
            shape = [-1, 1, 1] if data_format == 'NCHW' else [-1]
            x *= tf.constant(self.factor.astype(dtype).reshape(shape))
        if self.shift is not None:
            x = tf.nn.bias_add(x, tf.constant(self.shift.astype(dtype)), data_format=data_format)
        return x


@dataclass(frozen=True)
class FoldedNetwork:
    """The variables that remain after folding (float32), and the folded batch norms, both by
    name.
    """

    values: Mapping[str, Array]
    norms: Mapping[str, ConstantNorm]


def fold_batch_norms(
    graph: tf.Graph, reads: Mapping[str, Tensor], values: Mapping[str, Array]
) -> FoldedNetwork:
    """Folds the batch norms of a float32 inference graph.

    A convolution takes a factor only if nothing else uses its output or its kernel. Other batch
    norms, such as a batch norm before a convolution, keep their factor.

    Args:
      reads: the tensor through which the graph reads each variable, by name.
      values: the value of each variable, by name.
    """
    names = {tensor.ref(): name for name, tensor in reads.items()}
    remaining = dict(values)
    norms: dict[str, ConstantNorm] = {}
    for name, ops in _batch_norm_ops(graph.get_operations(), names).items():
        factor, shift = _factor_and_shift(ops[0], names, values)
        remaining_norm = (
            _fold_into_convolution(ops[0], names, remaining, factor, shift)
            if len(ops) == 1
            else None
        )
        norms[name] = remaining_norm or ConstantNorm(factor, shift)
        for suffix in ('gamma', 'beta', 'moving_mean', 'moving_variance'):
            remaining.pop(f'{name}/{suffix}', None)
    return FoldedNetwork(remaining, norms)


def _batch_norm_ops(ops: Iterable[Any], names: Mapping[Any, str]) -> dict[str, list[Any]]:
    """Returns the ops of each batch norm of a LayerBuilder, by its name; a network may use one
    several times.
    """
    norm_ops: dict[str, list[Any]] = {}
    for op in ops:
        if op.type == 'FusedBatchNormV3':
            name = names.get(op.inputs[2].ref(), '').removesuffix('/beta')
            reads = [names.get(tensor.ref()) for tensor in op.inputs[2:]]
            # Users' networks may contain other batch norms, which stay as they are.
            if reads == [
                f'{name}/{suffix}' for suffix in ('beta', 'moving_mean', 'moving_variance')
            ]:
                norm_ops.setdefault(name, []).append(op)
    return norm_ops


def _factor_and_shift(
    op: Any, names: Mapping[Any, str], values: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Returns the factor and the shift of a batch norm, [C] float32."""
    _, scale, beta, mean, variance = op.inputs
    # In float64, so that folding rounds once.
    exact = [values[names[tensor.ref()]].astype(np.float64) for tensor in (beta, mean, variance)]
    factor = 1 / np.sqrt(exact[2] + op.get_attr('epsilon'))
    if scale.ref() in names:
        factor *= values[names[scale.ref()]]
    return factor.astype(np.float32), (exact[0] - factor * exact[1]).astype(np.float32)


def _fold_into_convolution(
    op: Any, names: Mapping[Any, str], values: dict[str, Array], factor: Array, shift: Array
) -> ConstantNorm | None:
    """Multiplies the kernel of the convolution before a batch norm by the factor. Returns the norm
    that remains; None if no convolution can take the factor.
    """
    source, bias, user = op.inputs[0].op, None, op
    if source.type == 'BiasAdd':
        bias, user, source = source, source, source.inputs[0].op
        if not _is_only_user(bias.outputs[0], op) or not _is_unshared_variable(
            bias.inputs[1], names, bias
        ):
            return None
    if source.type not in _CONVOLUTIONS or not _is_only_user(source.outputs[0], user):
        return None
    if not _is_unshared_variable(source.inputs[1], names, source):
        return None
    kernel = names[source.inputs[1].ref()]
    # The last axis of a depthwise kernel [H, W, C, M] counts the outputs of a channel.
    kernel_factor = (
        factor.reshape(values[kernel].shape[2:])
        if source.type == 'DepthwiseConv2dNative'
        else factor
    )
    values[kernel] = values[kernel] * kernel_factor
    if bias is None:
        return ConstantNorm(None, shift)
    name = names[bias.inputs[1].ref()]
    values[name] = values[name] * factor + shift
    return ConstantNorm(None, None)


def _is_only_user(tensor: Tensor, op: Any) -> bool:
    return [user.name for user in tensor.consumers()] == [op.name]


def _is_unshared_variable(tensor: Tensor, names: Mapping[Any, str], op: Any) -> bool:
    return tensor.ref() in names and _is_only_user(tensor, op)
