"""benchmarks/roofline.py counts the operations and bytes of a step's operations, and says what limits them."""

import pytest

from benchmarks.op_costs import TensorFacts, bytes_of, flops_of, plain_type
from benchmarks.roofline import Limits, Operation, format_summary, format_table

pytestmark = pytest.mark.unit


def tensor(*shape: int, item_bytes: int = 2) -> TensorFacts:
    return TensorFacts(shape, 'bfloat16' if item_bytes == 2 else 'float32', item_bytes)


# A convolution of 2 images [10, 12, 3] with 5 filters [3, 3] and strides 2: 2*5*6*5 results of 27 multiply-adds.
X, KERNEL, Y = tensor(2, 10, 12, 3), tensor(3, 3, 3, 5), tensor(2, 5, 6, 5)
SHAPE = TensorFacts((4,), 'int32', 4)
CONV_FLOPS = 2 * 2 * 5 * 6 * 5 * 27


@pytest.mark.parametrize(
    ('op_type', 'inputs', 'outputs', 'flops'),
    [
        ('Conv2D', [X, KERNEL], [Y], CONV_FLOPS),
        ('_MklNativeFusedConv2D', [X, KERNEL, tensor(5)], [Y], CONV_FLOPS),
        ('_MklNativeConv2DBackpropFilter', [X, SHAPE, Y], [KERNEL], CONV_FLOPS),
        ('_MklNativeConv2DBackpropInput', [SHAPE, KERNEL, Y], [X], CONV_FLOPS),
        ('DepthwiseConv2dNative', [X, tensor(3, 3, 3, 1)], [tensor(2, 5, 6, 3)], 2 * 2 * 5 * 6 * 3 * 9),
        ('_MklMatMul', [tensor(7, 3), tensor(7, 5)], [tensor(3, 5)], 2 * 7 * 3 * 5),
        ('BatchMatMulV2', [tensor(4, 3, 7), tensor(4, 7, 5)], [tensor(4, 3, 5)], 2 * 4 * 7 * 3 * 5),
        ('Relu', [X], [X], 0),
    ],
)
def test_a_multiply_add_counts_as_two_operations(
    op_type: str, inputs: list[TensorFacts], outputs: list[TensorFacts], flops: int
) -> None:
    assert flops_of(op_type, inputs, outputs) == flops


def test_bytes_are_those_of_inputs_and_outputs_but_batch_norm_reads_twice() -> None:
    scale, variable = tensor(3, item_bytes=4), TensorFacts((0,), 'resource', 0)
    assert bytes_of('AddV2', [X, X], [X]) == 3 * X.num_bytes == 3 * 2 * 2 * 10 * 12 * 3
    assert bytes_of('_MklNativeFusedBatchNormV3', [X, scale], [X]) == 3 * X.num_bytes + 12
    assert bytes_of('FusedBatchNormV3', [X, scale], [X], of_batch=False) == 2 * X.num_bytes + 12
    assert bytes_of('FusedBatchNormGradV3', [X, X, scale], [X]) == 5 * X.num_bytes + 12
    assert bytes_of('ReadVariableOp', [variable], [X]) == bytes_of('Reshape', [X, SHAPE], [X]) == 0
    # The gradient and the variable are read, and the variable is written.
    assert bytes_of('ResourceApplyGradientDescent', [variable, tensor(item_bytes=4), scale], []) == 3 * 12


def test_kernels_of_one_operation_share_a_line() -> None:
    kernels = ['Conv2D', '_MklNativeConv2D', '_FusedConv2D', '_MklNativeFusedConv2D', '_MklNativePadWithConv2D']
    assert {plain_type(kernel) for kernel in kernels} == {'Conv2D'}
    norms = ['FusedBatchNormV3', '_FusedBatchNormEx', '_MklNativeFusedBatchNormEx', '_MklNativeFusedBatchNormV3']
    assert {plain_type(kernel) for kernel in norms} == {'FusedBatchNorm'}
    assert plain_type('_MklNativeFusedBatchNormGradV3') == 'FusedBatchNormGrad'
    assert plain_type('ResourceApplyGradientDescent') == 'ResourceApplyGradientDescent'


def test_the_longer_of_two_times_is_the_limit() -> None:
    limits = Limits({'bfloat16': 100e9}, 10e9)
    product = Operation('Conv2D', 'bfloat16', seconds=0.04, flops=2_000_000_000, num_bytes=10_000_000)
    small = Operation('Conv2D', 'bfloat16', seconds=0.01, flops=1_000_000, num_bytes=10_000_000)
    sum_of_two = Operation('AddV2', 'bfloat16', seconds=0.05, flops=0, num_bytes=100_000_000)
    assert limits.least_seconds(product) == (0.02, 'products')
    assert limits.least_seconds(small) == (0.001, 'memory')
    assert limits.least_seconds(sum_of_two) == (0.01, 'memory')
    operations = [product, small, sum_of_two]
    _, first, second = (line.split() for line in format_table(operations, limits))
    # operation, count, ms, share, GFLOP/s, GB/s, limit, ms at it, reached
    assert first == ['Conv2D', '2', '50.00', '50.0%', '40', '0.4', 'products', '21.00', '42%']
    assert second == ['AddV2', '1', '50.00', '50.0%', '2.0', 'memory', '10.00', '20%']
    # 31 ms at the limits of a step of 124 ms; 20.01 ms of products.
    summary = ' '.join(format_summary(operations, limits, 0.124, 4))
    for number in ('124.0 ms', '32.26 images/sec', '31.0 ms', '129.03 images/sec', '25.0%', '16.1%', '64.5%'):
        assert number in summary
