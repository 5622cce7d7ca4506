"""Runs that exchange gradients and compute nothing: every mode of one process sums correctly."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import open_session
from tests.support.outputs import check_warning, refused, warnings_in
from tests.support.runs import document_in, params_of, plan_of, run_benchmark
from tf_cnn.step.build import build_step

pytestmark = pytest.mark.graph
NUM_STEPS = 3


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
        for _ in range(NUM_STEPS):
            session.run(step.fetches.as_dict())
        variables = session.run(
            {name: part.variable.value for name, (part,) in step.model_slices.items()}
        )
    assert {name: value.shape for name, value in variables.items()} == {
        variable.name: variable.shape for variable in step.variables
    }
    assert len(variables) == 8
    # The gradient of tower i is (i + 1) / 4.
    expected = -0.125 * NUM_STEPS * (1 + 2 + 3 + 4) / 4
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
