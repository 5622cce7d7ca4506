"""What an operation costs at least: its floating-point operations, and the bytes that it reads and writes.

Types of operations are those of the graph that runs, after TensorFlow's passes: oneDNN's kernels have the prefix _Mkl.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorFacts:
    """A tensor that an operation read or wrote. dtype is TensorFlow's name of it; item_bytes is 0 for resources."""

    shape: Shape
    dtype: str
    item_bytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * self.item_bytes


Tensors = Sequence[TensorFacts]

# Hand on a tensor, or look at its shape only.
_MOVE_NOTHING = frozenset(
    {'AssignVariableOp', 'Const', 'ExpandDims', 'Identity', 'ReadVariableOp', 'Reshape', 'Shape', 'ShapeN', 'Squeeze'}
)
# The tensors of the size of the variable that an update reads and writes: gradient, variable and slots.
_TENSORS_OF_UPDATE = {
    'AssignAddVariableOp': 3,
    'AssignSubVariableOp': 3,
    'ResourceApplyAdam': 7,
    'ResourceApplyGradientDescent': 3,
    'ResourceApplyMomentum': 5,
    'ResourceApplyRMSProp': 7,
}
# The first inputs of these, so many of them, are read twice.
_READ_TWICE = {'FusedBatchNorm': 1, 'FusedBatchNormGrad': 2}


def plain_type(op_type: str) -> str:
    """The type without what says who made the kernel, and with what it was fused: _MklNativeFusedConv2D -> Conv2D."""
    name = re.sub(r'^_?(Mkl)?(Native)?(Quantized)?', '', op_type)
    name = re.sub(r'^(Fused|PadWith)+(?!BatchNorm)', '', name)
    return re.sub(r'(?<=BatchNorm)(V2|V3|Ex)$|(?<=Grad)(V2|V3|Ex)$', '', name)


def flops_of(op_type: str, inputs: Tensors, outputs: Tensors) -> int:
    """The operations of a convolution or a product of matrices, a multiply-add counted as two; 0 for all others.

    The gradients of a convolution have as many as the convolution itself.
    """
    count = _FLOPS.get(plain_type(op_type))
    return count(inputs, outputs) if count else 0


def bytes_of(op_type: str, inputs: Tensors, outputs: Tensors, *, of_batch: bool = True) -> int:
    """The bytes that must be read and written if no tensor is in a cache when the operation begins.

    Batch norm with the statistics of the batch cannot write its first value before it has read the last one, so it
    reads its input twice, and its gradient reads two tensors twice: Ioffe & Szegedy 2015 (arXiv:1502.03167), algorithm
    1 and section 3.

    Args:
      of_batch: whether batch norm uses the statistics of the batch.
    """
    name = plain_type(op_type)
    if name in _MOVE_NOTHING:
        return 0
    if name in _TENSORS_OF_UPDATE:
        return _TENSORS_OF_UPDATE[name] * max((tensor.num_bytes for tensor in inputs), default=0)
    twice = inputs[: _READ_TWICE.get(name, 0)] if of_batch else ()
    return sum(tensor.num_bytes for tensor in (*inputs, *outputs, *twice))


def _of_kernel(kernel: TensorFacts, result: TensorFacts) -> int:
    """Of a kernel [H, W, in, out] and activations with as many channels as it has outputs, in any data format."""
    return 2 * result.size * math.prod(kernel.shape[:3])


def _of_depthwise(kernel: TensorFacts, result: TensorFacts) -> int:
    """Of a kernel [H, W, in, multiplier]: each result depends on one channel."""
    return 2 * result.size * math.prod(kernel.shape[:2])


def _of_product(inputs: Tensors, outputs: Tensors) -> int:
    """Of [m, k] × [k, n], transposed or not, and of batches of them: the product of the three sizes is (m k n)^2."""
    left, right, result = inputs[0], inputs[1], outputs[0]
    batch = math.prod(result.shape[:-2])
    return 2 * math.isqrt(left.size * right.size * result.size // max(batch, 1))


_FLOPS: dict[str, Callable[[Tensors, Tensors], int]] = {
    'Conv2D': lambda inputs, outputs: _of_kernel(inputs[1], outputs[0]),
    'Conv2DBackpropInput': lambda inputs, outputs: _of_kernel(inputs[1], inputs[2]),
    'Conv2DBackpropFilterWithBias': lambda inputs, outputs: _of_kernel(outputs[0], inputs[2]),
    'Conv2DBackpropFilter': lambda inputs, outputs: _of_kernel(outputs[0], inputs[2]),
    'DepthwiseConv2dNative': lambda inputs, outputs: _of_depthwise(inputs[1], outputs[0]),
    'DepthwiseConv2dNativeBackpropInput': lambda inputs, outputs: _of_depthwise(inputs[1], inputs[2]),
    'DepthwiseConv2dNativeBackpropFilter': lambda inputs, outputs: _of_depthwise(outputs[0], inputs[2]),
    'MatMul': _of_product,
    'BatchMatMulV2': _of_product,
    'BatchMatMulV3': _of_product,
}
