"""Graphs for GPUs, without a GPU: every op has a kernel, collectives have an order, and devices
exchange little.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.step.gpu_graphs import (
    MODE_FLAGS,
    GpuGraph,
    build_on_gpus,
    crossings,
    is_on_gpu,
    ops_without_kernel,
)
from tests.support.graphs import DATA_FORMATS, needed_by
from tf_cnn.graph.variables import num_bytes
from tf_cnn.training.config import OPTIMIZERS as ROWS


def signals(gpu_graph: GpuGraph) -> set[tuple[str, str]]:
    """Returns the control edges and scalars that a step sends to other devices: (name, receiver).

    Each costs a pair of Send and Recv, and on a GPU an event of its stream.
    """
    receivers = set()
    for op in gpu_graph.step:
        for before in op.control_inputs:
            if before.device != op.device:
                receivers.add((f'^{before.name}', op.device))
        for value in op.inputs:
            is_scalar = value.dtype != tf.resource and value.shape.rank == 0
            if is_scalar and value.device != op.device:
                receivers.add((value.name, op.device))
    return receivers


pytestmark = [pytest.mark.graph, pytest.mark.long]

PRECISIONS: dict[str, dict[str, Any]] = {
    'fp32': {},
    'fp16': {'precision': 'fp16', 'fp16_enable_auto_loss_scale': True},
    'bf16': {'precision': 'bf16'},
}
# One network of each family.
NETWORKS = (
    'trivial lenet alexnet overfeat vgg11 googlenet inception3_aux inception4 mobilenet resnet20 '
    'resnet50 resnet50_v2 densenet40_k12 efficientnet_b0 convnext_tiny nasnet vit_s16'
)
# CI runs these alone: together they have all kinds of layers.
IN_CI = [
    ('alexnet', 'fp16', 'NHWC'),
    ('inception3_aux', 'fp16', 'NHWC'),
    ('mobilenet', 'fp16', 'NHWC'),
    ('resnet20', 'bf16', 'NHWC'),
    ('resnet50_v2', 'bf16', 'NHWC'),
    ('efficientnet_b0', 'bf16', 'NHWC'),
    ('convnext_tiny', 'fp16', 'NHWC'),
    ('vit_s16', 'bf16', 'NHWC'),
]
# Batch norm has two small gradients of equal shape in each layer.
SMALL: dict[str, Any] = {'model': 'resnet20', 'data_name': 'cifar10'}
# The most scalars and control edges that a device may exchange in a step, with any number of
# variables.
MOST_SIGNALS_PER_DEVICE = 8


def build_small(num_gpus: int, mode: str, precision: str = 'fp32', **flags: Any) -> GpuGraph:
    return build_on_gpus(num_gpus, **SMALL, **MODE_FLAGS[mode], **PRECISIONS[precision], **flags)


def check_placement(gpu_graph: GpuGraph) -> None:
    assert ops_without_kernel(gpu_graph) == {}
    for op in gpu_graph.graph.get_operations():
        assert re.search(r'[cg]pu:\d+$', op.device, re.IGNORECASE), op.name
        # TensorFlow refuses an op that uses a variable of another device.
        assert all(v.device == op.device for v in op.inputs if v.dtype == tf.resource), op.name


NOT_IN_CI = sorted({*itertools.product(NETWORKS.split(), PRECISIONS, DATA_FORMATS)} - {*IN_CI})


@pytest.mark.parametrize(
    ('model', 'precision', 'data_format'),
    [*IN_CI, *(pytest.param(*row, marks=pytest.mark.all_modes) for row in NOT_IN_CI)],
)
def test_every_op_of_a_network_has_a_kernel_for_gpus(model, precision, data_format):
    gpu_graph = build_on_gpus(
        model=model,
        data_name='cifar10' if model in ('resnet20', 'densenet40_k12') else None,
        data_format=data_format,
        eval_during_training_every_n_steps=5,
        **PRECISIONS[precision],
    )
    check_placement(gpu_graph)
    assert len(signals(gpu_graph)) <= MOST_SIGNALS_PER_DEVICE
    assert {is_on_gpu(op) for op in gpu_graph.of_type('Conv2D', 'MatMul')} == {True}


def in_turn(modes: Iterable[str], precisions: Sequence[str]) -> list[Any]:
    """Returns (mode, precision) rows: each mode with one precision; with all for --all_modes."""
    rows = []
    for (number, mode), precision in itertools.product(enumerate(modes), precisions):
        is_next = precision == precisions[number % len(precisions)]
        rows.append(pytest.param(mode, precision, marks=() if is_next else pytest.mark.all_modes))
    return rows


@pytest.mark.parametrize(('mode', 'precision'), in_turn(MODE_FLAGS, [*PRECISIONS]))
def test_every_op_of_a_mode_has_a_kernel_and_devices_exchange_few_signals(mode, precision):
    gpu_graph = build_small(2, mode, precision)
    check_placement(gpu_graph)
    assert len(signals(gpu_graph)) <= MOST_SIGNALS_PER_DEVICE * gpu_graph.num_devices


def signals_of_vgg(mode: str) -> list[int]:
    """Returns the numbers of signals of four GPUs with 11 and with 19 layers."""
    return [
        len(signals(build_on_gpus(4, model=model, **MODE_FLAGS[mode], **PRECISIONS['fp16'])))
        for model in ('vgg11', 'vgg19')
    ]


@pytest.mark.parametrize('mode', ['replicated', 'replicated by NCCL', 'collective_all_reduce'])
def test_the_signals_of_four_gpus_do_not_grow_with_the_variables(mode):
    assert len({*signals_of_vgg(mode)}) == 1


def test_parameter_servers_exchange_few_signals_for_each_segment():
    small, large = signals_of_vgg('servers, staged')
    # Simonyan & Zisserman 2014 (arXiv:1409.1556), table 2, in segments of 2 MiB.
    more_segments = 4 * (144e6 - 133e6) / (2 << 20)
    assert large - small <= 5 * more_segments


@pytest.mark.parametrize(
    ('optimizer', 'precision'),
    in_turn([name for name, row in ROWS.items() if row.fits_16_bits], ['fp16', 'bf16']),
)
def test_variables_of_16_bits_stay_on_the_gpu(optimizer, precision):
    gpu_graph = build_on_gpus(**SMALL, optimizer=optimizer, fp16_vars=True, **PRECISIONS[precision])
    check_placement(gpu_graph)
    handles = {op for op in gpu_graph.of_type('VarHandleOp') if op.get_attr('dtype').size == 2}
    assert len(handles) > 20
    assert all(map(is_on_gpu, handles))


@pytest.mark.parametrize('optimizer', ROWS)
def test_every_optimizer_has_kernels_for_gpus(optimizer):
    check_placement(build_on_gpus(optimizer=optimizer, gradient_clip=1.0))


def test_forward_only_has_kernels_for_gpus():
    check_placement(build_on_gpus(2, **SMALL, forward_only=True, precision='bf16'))


@pytest.mark.parametrize('mode', ['replicated', 'parameter_server'])
@pytest.mark.parametrize('pipeline', ['device', 'feed_dict'])
def test_images_in_memory_need_no_other_kernels(noise, pipeline, mode):
    gpu_graph = build_on_gpus(2, data_dir=str(noise), input_pipeline=pipeline, variable_update=mode)
    check_placement(gpu_graph)
    assert len(signals(gpu_graph)) <= MOST_SIGNALS_PER_DEVICE * gpu_graph.num_devices
    copied = [
        op
        for op in gpu_graph.step
        if op.type == 'VarHandleOp' and op.get_attr('dtype').name == 'uint8'
    ]
    assert sorted(op.device[-5:] for op in copied) == (
        ['GPU:0', 'GPU:1'] if pipeline == 'device' else []
    )


@pytest.mark.parametrize('num_gpus', [1, 2])
@pytest.mark.parametrize('augmentation', ['none', 'padded_crop'])
def test_the_device_draws_its_images_and_nothing_comes_from_the_host(noise, augmentation, num_gpus):
    gpu_graph = build_on_gpus(
        num_gpus, data_dir=str(noise), input_pipeline='device', augmentation=augmentation
    )
    check_placement(gpu_graph)
    drawing = [op for op in gpu_graph.step if op.name.startswith('device_input_')]
    assert {op.device[-5:] for op in drawing} == {f'GPU:{number}' for number in range(num_gpus)}
    # Nothing crosses within the input pipeline or into it.
    assert crossings(needed_by(drawing)) == []


# ---- collectives ---------------------------------------------------------------------------------


def order_of_collectives(gpu_graph: GpuGraph) -> list[tuple[int, str]]:
    """Returns the instance keys and shapes of the all-reduces in their order.

    Fails unless each waits for the one before it.
    """
    waits: dict[tuple[int, str], list[int]] = {}
    for op in gpu_graph.of_type('CollectiveReduce'):
        before, shape = list(op.get_attr('wait_for')), str(op.inputs[0].shape)
        # All towers of a process agree.
        assert waits.setdefault((op.get_attr('instance_key'), shape), before) == before
    order: list[tuple[int, str]] = []
    while len(order) < len(waits):
        last = [key for key, _ in order[-1:]]
        (next_reduce,) = [reduce for reduce, before in waits.items() if before == last]
        order.append(next_reduce)
    return order


@pytest.mark.parametrize(
    ('flags', 'num_sums'),
    [(SMALL, 59), ({'gradient_repacking': 4}, 4), ({'agg_small_grads_max_bytes': 1024}, 8)],
    ids=str,
)
def test_all_workers_start_nccl_sums_in_the_same_order_from_the_last_layer(flags, num_sums):
    mode = {**MODE_FLAGS['collective_all_reduce'], **flags}
    first, second = (build_on_gpus(2, task_index=index, **mode) for index in (0, 1))
    order = order_of_collectives(first)
    assert order == order_of_collectives(second)
    assert len(order) == num_sums
    assert [key for key, _ in order] == sorted((key for key, _ in order), reverse=True)


def test_an_nccl_sum_does_not_wait_for_later_gradients():
    gpu_graph = build_small(2, 'collective_all_reduce')
    sums = [op for op in gpu_graph.of_type('CollectiveReduce') if op.device.endswith('GPU:0')]
    assert len(needed_by([sums[0]])) < len(needed_by([sums[-1]]))


def test_all_nccl_sums_of_a_process_run_in_each_step():
    """The kernels of one sum wait for each other, so none may be missing."""
    gpu_graph = build_small(4, 'replicated by NCCL')
    ops = [op for op in gpu_graph.graph.get_operations() if op.type == 'NcclAllReduce']
    assert len(ops) == 4 * len({op.get_attr('shared_name') for op in ops})
    assert set(ops) <= gpu_graph.step


@pytest.mark.parametrize('mode', ['replicated by NCCL', 'collective_all_reduce'])
@pytest.mark.parametrize('compact', [None, True, False])
@pytest.mark.parametrize('precision', ['fp32', 'fp16', 'bf16'])
def test_nccl_never_sums_bfloat16(precision, compact, mode):
    gpu_graph = build_on_gpus(
        2, **MODE_FLAGS[mode], precision=precision, compact_gradient_transfer=compact
    )
    sums = gpu_graph.of_type('NcclAllReduce', 'CollectiveReduce')
    is_compact = precision == 'fp16' if compact is None else compact
    assert {op.inputs[0].dtype for op in sums} == {tf.float16 if is_compact else tf.float32}


# ---- parameter servers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('mode', 'precision'),
    in_turn(['servers', 'servers, staged', 'distributed_replicated'], ['bf16', 'fp32']),
)
def test_a_worker_sums_on_its_gpus_and_fetches_each_variable_once(mode, precision):
    """Each sum leaves the GPUs once, and each variable arrives once; with bf16 in 16 bits."""
    gpu_graph = build_small(3, mode, precision)
    num_moved = weights(gpu_graph) // (2 if precision == 'bf16' else 1)
    # The moving averages of the first tower move, too: a mean and a variance in fp32.
    norms = [variable for variable in gpu_graph.step_graph.variables if 'gamma' in variable.name]
    most = num_moved + 2 * 4 * sum(variable.shape[0] for variable in norms) + 1000
    assert num_moved <= bytes_between(gpu_graph, 'gpu', 'cpu') <= most
    assert num_moved <= bytes_between(gpu_graph, 'cpu', 'gpu') <= most
    # The GPUs exchange the rest: each sum comes from two towers, each value goes to two.
    assert bytes_between(gpu_graph, 'gpu', 'gpu') == 2 * 2 * weights(gpu_graph)


def test_a_worker_sums_on_its_cpu_if_a_flag_says_so():
    gpu_graph = build_small(3, 'servers', local_parameter_device='cpu')
    assert bytes_between(gpu_graph, 'gpu', 'gpu') == 0
    assert bytes_between(gpu_graph, 'gpu', 'cpu') >= 3 * weights(gpu_graph)
    assert bytes_between(gpu_graph, 'cpu', 'gpu') >= 3 * weights(gpu_graph)


def weights(gpu_graph: GpuGraph) -> int:
    """Returns the bytes of the trained variables."""
    return sum(num_bytes(variable.shape) for variable in gpu_graph.step_graph.variables)


# ---- staged variables ----------------------------------------------------------------------------


STAGED = ('parameter_server, staged', 'servers, staged', 'servers, staged, asynchronous')


@pytest.mark.parametrize(('mode', 'precision'), in_turn(STAGED, ['fp32', 'fp16']))
def test_no_update_and_no_fetch_waits_for_the_computation_of_its_step(mode, precision):
    gpu_graph = build_small(2, mode, precision)
    updates = set(
        gpu_graph.of_type('ResourceApplyGradientDescent', 'ResourceAccumulatorApplyGradient')
    )
    # Reads of values for the next step. Scalars are the loss scale and the global step.
    fetches = {
        op
        for op in gpu_graph.of_type('ReadVariableOp')
        if op.outputs[0].shape.rank and updates & needed_by([op])
    }
    assert len(updates) >= 59
    # Synchronous servers read each variable to round it, and workers read the rounded value.
    is_rounded = (mode, precision) == ('servers, staged', 'fp16')
    assert len(fetches) == (2 if is_rounded else 1) * 59
    convolutions = set(gpu_graph.of_type('Conv2D', 'Conv2DBackpropFilter'))
    assert convolutions
    averages = {
        op for op in gpu_graph.of_type('AssignVariableOp') if convolutions & needed_by([op])
    }
    assert averages
    assert not convolutions & needed_by([*updates, *fetches])


@pytest.mark.parametrize('precision', ['fp32', 'fp16'])
def test_a_relaxed_update_does_not_wait_for_the_computation_of_its_step(precision):
    gpu_graph = build_small(2, 'replicated, relaxed', precision)
    updates = gpu_graph.of_type('ResourceApplyGradientDescent')
    assert len(updates) == 2 * 59
    assert not {*gpu_graph.of_type('Conv2D', 'Conv2DBackpropFilter')} & needed_by(updates)


@pytest.mark.parametrize(
    ('mode', 'task_index'),
    [
        (mode, i)
        for mode in (*STAGED, 'replicated, relaxed')
        for i in range(1 + ('worker_hosts' in MODE_FLAGS[mode]))
    ],
)
def test_each_step_takes_all_values_that_the_step_before_has_staged(mode, task_index):
    """They are staged on the worker: a server would keep them when the worker is lost."""
    gpu_graph = build_on_gpus(2, task_index=task_index, **MODE_FLAGS[mode], **PRECISIONS['fp16'])
    staged_names, unstaged_names = (
        sorted(op.get_attr('shared_name') for op in gpu_graph.of_type(kind))
        for kind in ('Stage', 'Unstage')
    )
    assert staged_names == unstaged_names
    assert not [op.name for op in gpu_graph.of_type('Stage') if '/job:ps' in op.device]


def test_in_one_process_each_variable_is_read_as_soon_as_it_is_updated():
    """Without staged variables, each is updated when its gradients arrive."""
    gpu_graph = build_on_gpus(2, **MODE_FLAGS['parameter_server, staged'])
    updates = set(gpu_graph.of_type('ResourceApplyGradientDescent'))
    reads = [op for op in gpu_graph.of_type('ReadVariableOp') if updates & needed_by([op])]
    assert len(reads) == len(updates) + 1  # and the global step
    assert sorted(len(updates & needed_by([op])) for op in reads)[:-1] == [1] * len(updates)
    plain = build_on_gpus(2, **MODE_FLAGS['parameter_server on the CPU'])
    first_layers = set(plain.of_type('Conv2DBackpropFilter'))
    updates = set(plain.of_type('ResourceApplyGradientDescent'))
    assert {len(first_layers & needed_by([op])) for op in updates} == {0, 2}


def bytes_between(gpu_graph: GpuGraph, sender: str, receiver: str) -> int:
    """Returns the bytes that a step sends between devices; sender and receiver are patterns."""
    num_bytes_by_tensor = {
        (value.ref(), op.device): value.dtype.size * (value.shape.num_elements() or 0)
        for op in gpu_graph.step
        for value in op.inputs
        if value.dtype != tf.resource
        and value.device != op.device
        and re.search(sender, value.device, re.IGNORECASE)
        and re.search(receiver, op.device, re.IGNORECASE)
    }
    return sum(num_bytes_by_tensor.values())
