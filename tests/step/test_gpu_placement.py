"""Graphs for GPUs, without a GPU: every op has a kernel, collectives have an order, and devices
exchange little.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, zeros
from models.model_spec import Build
from models.registry import MODELS, register_model
from tests.step.gpu_graphs import (
    MODE_FLAGS,
    GpuGraph,
    build_on_gpus,
    crossings,
    is_on_gpu,
    ops_without_kernel,
)
from tests.support.graphs import needed_by
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
# Each mode is built in one precision.
PRECISION_BY_MODE = dict(zip(MODE_FLAGS, itertools.cycle(PRECISIONS), strict=False))
# LayerBuilder treats bf16 differently in the two formats.
EVERY_LAYER = [
    ('fp32', 'NCHW'),
    ('fp16', 'NHWC'),
    ('bf16', 'NHWC'),
    ('bf16', 'NCHW'),
]
# The most scalars and control edges that a device may exchange in a step, with any number of
# variables.
MOST_SIGNALS_PER_DEVICE = 8


def every_layer(cnn: LayerBuilder, x: Any, num_classes: int) -> tuple[Any, Any]:
    """Has every layer of LayerBuilder, and an auxiliary head."""
    with cnn.scope('pixels'):
        x = cnn.relu(cnn.conv(x, 8, 3, 'conv', strides=2, padding=1))
        x = cnn.local_response_norm(x, radius=2, bias=1.0, alpha=1e-4, beta=0.75)
        x = cnn.max_pool(x, 3, 2, padding=1)
        x = cnn.relu6(cnn.batch_norm(cnn.depthwise_conv(x, 3, 'depthwise'), 'norm'))
        x = cnn.concat([cnn.pad_channels(x, 16), cnn.avg_pool(cnn.pad_same(x, 3, 1), 3, 1)])
        x = cnn.dropout(cnn.layer_scale(cnn.layer_norm(x, 'layer_norm'), 'scale', 0.1), 0.5)
        _, _, channels = cnn.shape(x)
        gate = cnn.dense(cnn.swish(cnn.global_avg_pool(x)), channels, 'gate')
        x = cnn.shift(cnn.drop_path(cnn.gate(x, gate), 0.5))
    auxiliary = cnn.dense(cnn.flatten(x), num_classes, 'auxiliary') if cnn.is_training else None
    x = cnn.class_token(cnn.tokens(x), 'class_token', initializer=zeros)
    x = cnn.position_embedding(x, 'positions', initializer=zeros)
    x = cnn.drop_path(cnn.self_attention(cnn.layer_norm(x, 'token_norm'), 2, 'attention'), 0.5)
    x = cnn.dense(x, 8, 'expand', activation=cnn.gelu)
    return cnn.dense(cnn.layer_norm(x[:, 0], 'last_norm'), num_classes, 'logits'), auxiliary


def network_of_norms(num_layers: int) -> Build:
    """Batch norm has two small gradients of equal shape in each layer."""

    def build(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
        for number in range(num_layers):
            x = cnn.conv(x, 16, 3, f'conv{number}', use_bias=False)
            x = cnn.relu(cnn.batch_norm(x, f'norm{number}'))
        return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')

    return build


NETWORKS_OF_TESTS: dict[str, Build] = {
    'every_layer': every_layer,
    'two_norms': network_of_norms(2),
    'four_norms': network_of_norms(4),
}


@pytest.fixture(scope='module', autouse=True)
def models() -> Iterator[None]:
    for name, build in NETWORKS_OF_TESTS.items():
        register_model(name, build, data_set='cifar10', image_size=16)
    yield
    MODELS.unregister(*NETWORKS_OF_TESTS)
    cached_build.cache_clear()


# Tests only read these graphs.
cached_build = functools.cache(build_on_gpus)


def build_small(
    num_gpus: int,
    mode: str,
    precision: str | None = None,
    model: str = 'four_norms',
    *,
    task_index: int = 0,
    **flags: Any,
) -> GpuGraph:
    """Builds a small network, by default in the precision of the mode."""
    flags |= {**MODE_FLAGS[mode], **PRECISIONS[precision or PRECISION_BY_MODE[mode]]}
    return cached_build(num_gpus, task_index=task_index, model=model, **flags)


def check_placement(gpu_graph: GpuGraph) -> None:
    assert ops_without_kernel(gpu_graph) == {}
    for op in gpu_graph.graph.get_operations():
        assert re.search(r'[cg]pu:\d+$', op.device, re.IGNORECASE), op.name
        # TensorFlow refuses an op that uses a variable of another device.
        assert all(v.device == op.device for v in op.inputs if v.dtype == tf.resource), op.name


def test_the_network_of_every_layer_calls_all_methods_of_the_layer_builder():
    layers = {name for name in vars(LayerBuilder) if not name.startswith('_')}
    # build_network converts the images.
    assert layers - {*every_layer.__code__.co_names} == {'images'}


@pytest.mark.parametrize(('precision', 'data_format'), EVERY_LAYER)
def test_every_op_of_a_network_has_a_kernel_for_gpus(precision, data_format):
    gpu_graph = build_on_gpus(
        model='every_layer',
        data_format=data_format,
        eval_during_training_every_n_steps=5,
        **PRECISIONS[precision],
    )
    check_placement(gpu_graph)
    assert len(signals(gpu_graph)) <= MOST_SIGNALS_PER_DEVICE
    assert {is_on_gpu(op) for op in gpu_graph.of_type('Conv2D', 'MatMul')} == {True}
    # The layers compute in the precision.
    dtype = {'fp32': tf.float32, 'fp16': tf.float16, 'bf16': tf.bfloat16}[precision]
    layers = gpu_graph.of_type('Conv2D', 'Conv2DBackpropFilter', 'MatMul', 'BiasAdd', 'MaxPool')
    assert {op.get_attr('T') for op in layers} == {dtype}


@pytest.mark.parametrize('mode', MODE_FLAGS)
def test_every_op_of_a_mode_has_a_kernel_and_devices_exchange_few_signals(mode):
    small, large = (build_small(2, mode, model=model) for model in ('two_norms', 'four_norms'))
    check_placement(large)
    assert len(signals(small)) == len(signals(large))
    assert len(signals(large)) <= MOST_SIGNALS_PER_DEVICE * large.num_devices


@pytest.mark.parametrize('optimizer', [name for name, row in ROWS.items() if row.fits_16_bits])
def test_variables_of_16_bits_stay_on_the_gpu(optimizer):
    gpu_graph = build_on_gpus(
        model='two_norms', optimizer=optimizer, fp16_vars=True, precision='bf16'
    )
    check_placement(gpu_graph)
    handles = {op for op in gpu_graph.of_type('VarHandleOp') if op.get_attr('dtype').size == 2}
    assert len(handles) >= len(gpu_graph.step_graph.variables)
    assert all(map(is_on_gpu, handles))


@pytest.mark.parametrize('optimizer', ROWS)
def test_every_optimizer_has_kernels_for_gpus(optimizer):
    check_placement(build_on_gpus(optimizer=optimizer, gradient_clip=1.0))


@pytest.mark.parametrize('precision', PRECISIONS)
def test_batch_norm_of_several_ops_has_kernels_for_gpus(precision):
    gpu_graph = build_on_gpus(model='two_norms', fused_batch_norm=False, **PRECISIONS[precision])
    check_placement(gpu_graph)
    assert not gpu_graph.of_type('FusedBatchNormV3', 'FusedBatchNormGradV3')


def test_forward_only_has_kernels_for_gpus():
    check_placement(build_small(2, 'parameter_server', 'bf16', forward_only=True))


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


@pytest.mark.parametrize(
    ('flags', 'producers'),
    [
        ({}, ['Unstage']),
        ({'local_parameter_device': 'cpu'}, ['ReadVariableOp', 'Unstage']),
        ({'input_pipeline': 'device'}, []),
        ({'input_pipeline': 'feed_dict'}, ['Placeholder']),
    ],
    ids=str,
)
def test_copies_to_gpus_come_from_ops_that_allocate_no_memory(noise, flags, producers):
    """TensorFlow page-locks only what an op allocates and passes directly to a GPU."""
    gpu_graph = build_on_gpus(data_dir=str(noise), **flags)
    copied = {
        value.op.type
        for op in gpu_graph.step
        for value in op.inputs
        if is_on_gpu(op) and not is_on_gpu(value.op) and value.dtype != tf.resource
        # Scalars are settings of a step, such as the learning rate.
        if value.shape.rank
    }
    assert sorted(copied) == producers


# ---- collectives ---------------------------------------------------------------------------------


# The gradients of four layers and of the last kernel and bias.
@pytest.mark.parametrize(
    ('flags', 'num_sums'),
    [({}, 4 * 3 + 2), ({'gradient_repacking': 4}, 4), ({'agg_small_grads_max_bytes': 1024}, 8)],
    ids=str,
)
def test_all_workers_start_nccl_sums_in_the_same_order_from_the_last_layer(flags, num_sums):
    # The instance keys and shapes of the sums of each worker.
    orders: list[list[tuple[int, str]]] = []
    for index in range(2):
        gpu_graph = build_small(2, 'collective_all_reduce', task_index=index, **flags)
        waits: dict[tuple[int, str], list[int]] = {}
        for op in gpu_graph.of_type('CollectiveReduce'):
            before, shape = list(op.get_attr('wait_for')), str(op.inputs[0].shape)
            # All towers of a process agree.
            assert waits.setdefault((op.get_attr('instance_key'), shape), before) == before
        order: list[tuple[int, str]] = []
        while len(order) < len(waits):
            # Each waits for the one before it.
            last = [key for key, _ in order[-1:]]
            (next_sum,) = [key for key, before in waits.items() if before == last]
            order.append(next_sum)
        orders.append(order)
    assert orders[0] == orders[1]
    keys = [key for key, _ in orders[0]]
    assert len(keys) == num_sums
    assert keys == sorted(keys, reverse=True)


def test_an_nccl_sum_does_not_wait_for_later_gradients():
    gpu_graph = build_small(2, 'collective_all_reduce')
    sums = [op for op in gpu_graph.of_type('CollectiveReduce') if op.device.endswith('GPU:0')]
    assert len(needed_by([sums[0]])) < len(needed_by([sums[-1]]))


@pytest.mark.parametrize('mode', ['replicated by NCCL', 'collective_all_reduce'])
@pytest.mark.parametrize(
    ('precision', 'compact', 'dtype'),
    [
        ('fp32', None, tf.float32),
        ('fp32', True, tf.float16),
        ('fp16', None, tf.float16),
        ('fp16', False, tf.float32),
        ('bf16', None, tf.float32),
        ('bf16', True, tf.float16),
    ],
)
def test_nccl_never_sums_bfloat16(precision, compact, dtype, mode):
    gpu_graph = build_small(2, mode, precision, 'two_norms', compact_gradient_transfer=compact)
    sums = gpu_graph.of_type('NcclAllReduce', 'CollectiveReduce')
    assert {op.inputs[0].dtype for op in sums} == {dtype}


# ---- parameter servers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('mode', 'precision'), [('servers', 'bf16'), ('distributed_replicated', 'fp32')]
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


def weights(gpu_graph: GpuGraph) -> int:
    """Returns the bytes of the trained variables."""
    return sum(num_bytes(variable.shape) for variable in gpu_graph.step_graph.variables)


# ---- staged variables ----------------------------------------------------------------------------


STAGED = ('parameter_server, staged', 'servers, staged', 'servers, staged, asynchronous')


@pytest.mark.parametrize(
    ('mode', 'precision'), [(STAGED[0], 'fp32'), (STAGED[1], 'fp16'), (STAGED[2], 'fp32')]
)
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
    num_variables = len(gpu_graph.step_graph.variables)
    assert len(updates) >= num_variables
    # Synchronous servers read each variable to round it, and workers read the rounded value.
    is_rounded = (mode, precision) == ('servers, staged', 'fp16')
    assert len(fetches) == (2 if is_rounded else 1) * num_variables
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
    assert len(updates) == 2 * len(gpu_graph.step_graph.variables)
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
    """A server keeps what a lost worker has staged there, until the worker begins again."""
    gpu_graph = build_small(2, mode, 'fp16', task_index=task_index)
    staged_names, unstaged_names = (
        sorted(op.get_attr('shared_name') for op in gpu_graph.of_type(kind))
        for kind in ('Stage', 'Unstage')
    )
    assert staged_names == unstaged_names
    on_servers = {
        op.get_attr('shared_name') for op in gpu_graph.of_type('Stage') if '/job:ps' in op.device
    }
    assert bool(on_servers) == ('worker_hosts' in MODE_FLAGS[mode])
    prologue = needed_by([gpu_graph.step_graph.prologue])
    assert on_servers == {op.get_attr('shared_name') for op in prologue if op.type == 'StageClear'}
    assert all(name.endswith(f'_{task_index}'.encode()) for name in on_servers)


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
