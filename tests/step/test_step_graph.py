"""A training step: towers that share a batch take the same step as one tower with all of it, every
manager builds it with the public methods of VariableMgr, and a step may exchange gradients alone.
"""

import functools
from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import variable_mgr
from tests.step.gpu_graphs import MODE_FLAGS, build_on_gpus
from tests.support.graphs import (
    assert_close,
    batch_of,
    convolved,
    cpus,
    linear,
    make_manager,
    needed_by,
    open_session,
    training_step,
)
from tests.support.oracles import OPTIMIZERS
from tests.support.outputs import check_warning, refused, warnings_in
from tests.support.runs import document_in, params_of, plan_of, run_benchmark
from tf_cnn.step.build import build_step
from tf_cnn.step.step_graph import StepGraph, build_step_graph
from variable_mgr import VariableMgr

pytestmark = pytest.mark.graph


def build(
    num_towers: int, mode: str, optimizer: str, **overrides: Any
) -> tuple[VariableMgr, StepGraph]:
    """Adds the step to the current graph."""
    flags: dict[str, Any] = {
        'network': convolved,
        'seed': 7,
        'learning_rate': 0.1,
        'print_training_accuracy': True,
        **overrides,
    }
    manager = make_manager(mode, cpus(num_towers), seed=7)
    settings = training_step(num_classes=10, **flags)
    return manager, build_step_graph(
        settings, OPTIMIZERS[optimizer].ours, manager, batch_of(num_towers)
    )


Trained = tuple[list[dict[str, Any]], dict[str, np.ndarray]]


@functools.cache
def train(
    num_towers: int,
    mode: str = 'parameter_server',
    optimizer: str = 'sgd',
    num_steps: int = 3,
    **overrides: Any,
) -> Trained:
    """Returns the fetched values of each step, and the last weights by name."""
    with tf.Graph().as_default(), open_session(num_towers) as session:
        manager, graph = build(num_towers, mode, optimizer, **overrides)
        session.run(graph.initializers)
        graph.prepare_first_step(session)
        fetched = [session.run(graph.fetches.as_dict()) for _ in range(num_steps)]
        return fetched, session.run(
            {name: variable.value for name, variable in manager.savable_variables().items()}
        )


# test_variable_mgr.py has steps without clipping.
@pytest.mark.long
@pytest.mark.parametrize(
    ('mode', 'optimizer'), [('parameter_server', 'momentum'), ('replicated', 'lars')]
)
def test_towers_clip_gradients_as_one_tower_with_the_whole_batch_does(mode, optimizer):
    expected, expected_weights = train(1, optimizer=optimizer, gradient_clip=0.1)
    fetched, weights = train(4, mode, optimizer, gradient_clip=0.1)
    for ours, theirs in zip(fetched, expected, strict=True):
        for name in ('loss', 'top_1', 'top_5'):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
        assert 0 <= ours['top_1'] <= ours['top_5'] <= 1
    assert_close(weights, expected_weights)


def test_weight_decay_applies_to_kernels_only_and_once():
    kinds = ('total_loss', 'base_loss')
    _, start = train(1, num_steps=0)
    without_loss, without = train(1, num_steps=1, learning_rate=1.0, weight_decay=0.0)
    _, decayed = train(1, num_steps=1, learning_rate=1.0)
    for name, value in start.items():
        expected = 0.01 * value if name.endswith('kernel') else np.zeros_like(value)
        np.testing.assert_allclose(without[name] - decayed[name], expected, atol=1e-5)
    decay = 0.01 * sum(
        np.sum(value**2) / 2 for name, value in start.items() if name.endswith('kernel')
    )
    for mode in ('parameter_server', 'replicated'):
        [total], [base] = (
            train(2, mode, num_steps=1, loss_type_to_report=kind)[0] for kind in kinds
        )
        assert total['loss'] - base['loss'] == pytest.approx(decay, rel=1e-3)
        assert base['loss'] == pytest.approx(without_loss[0]['loss'], rel=1e-5)
    # LARS decays the weights itself, and the loss includes it nevertheless.
    [total], [base] = (
        train(1, 'replicated', 'lars', 1, loss_type_to_report=kind)[0] for kind in kinds
    )
    assert total['loss'] - base['loss'] == pytest.approx(decay, rel=1e-3)
    np.testing.assert_equal(
        train(1, optimizer='lars')[1], train(1, optimizer='lars', weight_decay=0.0)[1]
    )


def test_a_single_l2_loss_op_changes_no_result():
    expected, expected_weights = train(2)
    steps, weights = train(2, single_l2_loss_op=True)
    assert [step['loss'] for step in steps] == pytest.approx(
        [step['loss'] for step in expected], rel=1e-5
    )
    assert_close(weights, expected_weights)
    for single, num_ops in ((True, 1), (False, 2)):
        with tf.Graph().as_default() as graph:
            build(1, 'parameter_server', 'sgd', single_l2_loss_op=single)
        assert sum(op.type == 'L2Loss' for op in graph.get_operations()) == num_ops


@pytest.mark.parametrize(
    ('mode', 'optimizer'),
    [
        ('parameter_server', 'sgd'),
        ('parameter_server', 'lars'),
        ('replicated', 'lars'),
        ('independent', 'momentum'),
    ],
)
def test_a_variable_is_updated_after_all_uses_of_its_old_value(mode, optimizer):
    with tf.Graph().as_default() as graph:
        _, step_graph = build(2, mode, optimizer)
        step = needed_by([*step_graph.fetches.ops, step_graph.fetches.loss.op])
        updates = {op.inputs[0].op: op for op in step if op.type.startswith('ResourceApply')}
        assert len(updates) == 4 * (1 if mode == 'parameter_server' else 2)
        for read in graph.get_operations():
            if read.type == 'ReadVariableOp' and (update := updates.get(read.inputs[0].op)):
                users = {
                    op
                    for op in read.outputs[0].consumers()
                    if op in step and op.device == read.device
                }
                assert users <= needed_by([update]), update.name


def test_updates_compute_nothing_that_the_step_does_not_need():
    def types_of(optimizer: str, **settings: Any) -> Counter[str]:
        with tf.Graph().as_default():
            _, step_graph = build(1, 'parameter_server', optimizer, **settings)
            fetches = step_graph.fetches
            return Counter(op.type for op in needed_by([*fetches.ops, fetches.loss.op]))

    # The step needs no gradient of the images.
    assert types_of('sgd')['Conv2DBackpropInput'] == 0
    # LARS decays the weights itself, and the reported loss has no decay.
    assert types_of('lars', loss_type_to_report='base_loss')['L2Loss'] == 0


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_a_smoothed_label_has_a_part_of_every_class(smoothing):
    settings: dict[str, Any] = {
        'network': linear,
        'weight_decay': 0.0,
        'label_smoothing': smoothing,
    }
    _, start = train(1, num_steps=0, **settings)
    fetched, after = train(2, num_steps=1, learning_rate=0.1, **settings)
    with tf.Graph().as_default(), open_session() as session:
        batch = batch_of(1).tower_batch(0)
        images, labels = session.run([batch.images, batch.labels])
    x, kernel = images.reshape(8, -1).astype(np.float64), start['logits/kernel']
    exponentials = np.exp(x @ kernel + start['logits/bias'])
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    targets = (1 - smoothing) * np.eye(10)[labels] + smoothing / 10
    assert fetched[0]['loss'] == pytest.approx(
        -(targets * np.log(probabilities)).sum(1).mean(), rel=1e-5
    )
    expected = kernel - 0.1 * x.T @ (probabilities - targets) / 8
    np.testing.assert_allclose(
        after['logits/kernel'], expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )
    # Without training, labels are not smoothed.
    validated, _ = train(1, num_steps=1, forward_only=True, **settings)
    assert validated[0]['loss'] == pytest.approx(
        -np.log(probabilities[range(8), labels]).mean(), rel=1e-5
    )


# ---- managers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'mode',
    # Other modes have the same managers, with other devices or sums.
    sorted({*MODE_FLAGS} - {'parameter_server', 'replicated by NCCL', 'replicated by rings'}),
)
def test_a_manager_builds_its_step_with_all_public_methods(mode):
    # The variable scopes of two towers. In all other modes there is one scope, v.
    scopes = {
        **{name: {'v0', 'v1'} for name in MODE_FLAGS if name.startswith('replicated')},
        'independent': {'v0', 'v1'},
        'collective_all_reduce': {'v0', 'v1'},
        'distributed_all_reduce': {'v0', 'v1', 'v2', 'v3'},
        'distributed_replicated': {'ps_var', 'v0', 'v1'},
    }
    methods = {
        'append_apply_gradients_ops',
        'create_outer_variable_scope',
        'each_tower_has_variables',
        'get_devices',
        'get_gradients_to_apply',
        'get_post_init_ops',
        'preprocess_device_grads',
        'savable_variables',
        'trainable_variables_on_device',
    }
    if 'servers, staged' in mode:
        # Workers read staged variables in the step that updates them, with or without copies.
        methods.remove('each_tower_has_variables')
    called: set[str] = set()

    def record(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        return call

    classes = [getattr(variable_mgr, name) for name in variable_mgr.__all__]
    owners = {owner for manager in classes for owner in getattr(manager, '__mro__', ())}
    with ExitStack() as stack:
        for owner in owners:
            for name in methods & set(vars(owner)):
                method = record(name, vars(owner)[name])
                stack.enter_context(mock.patch.object(owner, name, method))
        gpu_graph = build_on_gpus(2, model='trivial', **MODE_FLAGS[mode])
    assert called == methods
    names = [op.get_attr('shared_name').decode() for op in gpu_graph.of_type('VarHandleOp')]
    assert {name.split('/')[0] for name in names if name.endswith('/kernel')} == scopes.get(
        mode, {'v'}
    )


# ---- exchanges alone -----------------------------------------------------------------------------


NUM_EXCHANGES = 3


@pytest.mark.parametrize(
    'flags',
    [
        '--variable_update=parameter_server',
        '--variable_update=parameter_server --staged_vars',
        # test_all_reduce.py compares the sums of all algorithms and packings.
        '--variable_update=replicated --all_reduce_spec=pscpu:32k:xring',
        '--variable_update=replicated --hierarchical_copy',
        '--variable_update=replicated --agg_small_grads_max_bytes=4096 '
        '--agg_small_grads_max_group=3',
        '--variable_update=replicated --variable_consistency=relaxed --gradient_repacking=2',
        '--variable_update=replicated --precision=fp16 --compact_gradient_transfer',
        '--variable_update=replicated --precision=bf16 --fp16_vars',
    ],
)
def test_every_mode_of_one_process_averages_the_gradients_of_all_towers(flags):
    common = '--exchange_only --num_gpus=4 --model=lenet --init_learning_rate=0.125'
    plan = plan_of(f'{common} {flags}')
    with tf.Graph().as_default() as graph, open_session(4) as session:
        step = build_step(plan, 0)
        types = {op.type for op in graph.get_operations()}
        assert not {'Conv2D', 'MatMul', 'MaxPool', 'BiasAdd'} & types
        session.run(step.initializers)
        step.prepare_first_step(session)
        for _ in range(NUM_EXCHANGES):
            session.run(step.fetches.as_dict())
        variables = session.run(
            {name: part.variable.value for name, (part,) in step.model_slices.items()}
        )
    assert {name: value.shape for name, value in variables.items()} == {
        variable.name: variable.shape for variable in step.variables
    }
    assert len(variables) == 8
    # The gradient of tower i is (i + 1) / 4.
    expected = -0.125 * NUM_EXCHANGES * (1 + 2 + 3 + 4) / 4
    tolerance = 1e-2 if 'precision' in flags else 1e-6
    for name, value in variables.items():
        np.testing.assert_allclose(np.float32(value), expected, rtol=tolerance, err_msg=name)


def test_the_result_has_the_seconds_of_exchanges_and_nothing_about_losses(tmp_path):
    flags = '--exchange_only --exchange_bytes=4096 --num_batches=20 --num_gpus=2 --batch_size=8'
    _, out, err = run_benchmark(
        f'{flags} --variable_update=replicated', result_file=tmp_path / 'r.json'
    )
    document = document_in(tmp_path / 'r.json')
    assert document['run']['role'] == 'exchange-only'
    assert document['model'] | {'name': '4096 bytes', 'parameters': 1024} == document['model']
    assert document['run']['batch_size'] == 1
    assert document['compute']['flops_per_second'] is None
    seconds = document['throughput']['wall_seconds']
    assert f'total ms/step: {1e3 * seconds / 20:.3f}\n' in out
    assert 'images/sec' not in out + err
    assert out.count('ms/step: ') == 4
    check_warning(err, '--batch_size=8', '--exchange_only')
    check_warning(err, '--model=lenet', '--exchange_bytes')
    assert not [line for line in warnings_in(err) if 'loss' in line]


@pytest.mark.parametrize(
    'flag',
    [
        '--forward_only',
        '--data_dir=d',
        '--train_dir=t',
        '--eval',
        '--num_epochs=1',
        '--variable_update=independent',
        '--exchange_bytes=4098',
    ],
)
def test_flags_that_need_a_model_or_exchange_nothing_are_refused(flag):
    with refused(flag):
        params_of(f'--exchange_only {"--train_dir=t" if flag == "--eval" else ""} {flag}')
