"""A loop in the graph takes the same steps, bit for bit, as single session calls."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.registry import register_model
from preprocessing import ImageOptions
from tests.step.gpu_graphs import (
    build_on_gpus,
    crossings,
    is_on_gpu,
    ops_without_kernel,
)
from tests.support.graphs import cpus, linear, needed_by, open_session
from tests.support.images import encoded, example, write_digits, write_shard
from tests.support.outputs import refused
from tests.support.runs import BenchmarkRun, params_of, run_benchmark
from tf_cnn.inputs.data_sets import find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.record_pipeline import RecordPipeline
from tf_cnn.step.graph_loop import GraphLoop
from tf_cnn.step.step_graph import Fetches
from tf_cnn.training.checkpoint_files import latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long]

DROPOUT = '--model=dropping --data_name=cifar10'


@pytest.fixture(autouse=True)
def models(forget_models: None) -> None:
    register_model('dropping', dropping, data_set='cifar10', image_size=8, batch_size=4)
    register_model('linear', linear, data_set='mnist', image_size=28, batch_size=8)
    register_model('linear_imagenet', linear, image_size=8, batch_size=4)


def dropping(cnn: Any, images: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.dropout(cnn.flatten(images), 0.5), num_classes, 'logits')


def trained(flags: str, **values: Any) -> BenchmarkRun:
    steps = '--num_warmup_batches=3 --num_batches=7'
    return run_benchmark(f'{steps} --init_learning_rate=0.01 {flags}', **values)


@pytest.mark.parametrize(
    'mode',
    # Steps that leave something to the next step, branch, or draw random numbers.
    [
        '--num_gpus=2 --print_training_accuracy',
        '--num_gpus=2 --staged_vars --optimizer=adam',
        '--num_gpus=3 --variable_update=replicated --all_reduce_spec=xring',
        '--num_gpus=2 --variable_update=replicated --variable_consistency=relaxed',
        '--num_gpus=2 --variable_update=independent',
        # Some steps are skipped.
        f'--precision=fp16 --fp16_enable_auto_loss_scale --fp16_loss_scale={2.0**22}',
        '--num_gpus=2 --forward_only',
    ],
)
def test_a_loop_computes_the_same_as_single_session_calls(mode):
    def values_of(run: BenchmarkRun) -> dict[str, Any]:
        """Returns the values of each step. A loop has no waits for input."""
        names = ('phase', 'index', 'global_step', 'loss', 'top_1', 'top_5', 'learning_rate')
        return {name: getattr(run.result.steps, name) for name in names}

    single, looped = (trained(f'--steps_per_run={number} {DROPOUT} {mode}') for number in (1, 4))
    assert values_of(looped) == values_of(single)
    assert looped.result.run.num_skipped_steps == single.result.run.num_skipped_steps
    assert len({*looped.result.steps.seconds}) == 3  # warm-up, 4 steps and 3


@pytest.mark.parametrize('pipeline', [None, 'device', 'tf_data'])
def test_images_come_in_the_same_order(pipeline, noise, tmp_path):
    data_dir: str | Path = write_digits(tmp_path)
    flags = '--model=linear --data_name=mnist'
    if pipeline == 'tf_data':
        data_dir, flags = noise, '--model=linear_imagenet'
    single, looped = (
        trained(
            f'{flags} --steps_per_run={number}', data_dir=data_dir, input_pipeline=pipeline
        ).losses
        for number in (1, 3)
    )
    assert looped == single
    assert len(set(single)) == len(single)


def test_resumed_steps_do_not_repeat_the_losses_of_the_first_steps(tmp_path):
    """With a rate of 0, dropout alone makes the losses of the steps differ."""

    def losses(folder: str) -> list[float]:
        flags = f'--init_learning_rate=0 --num_warmup_batches=0 --num_batches=3 {DROPOUT}'
        return trained(flags, train_dir=tmp_path / folder).losses

    first, second, third = (losses('one') for _ in range(3))
    assert len({*first, *second, *third}) == 9
    # A second training with the same interruption has the same losses.
    assert [losses('other') for _ in range(2)] == [first, second]


def test_one_reader_of_records_serves_the_preparation_and_the_loop(tmp_path):
    jpeg = encoded(np.zeros([9, 9, 3], np.uint8))
    write_shard(tmp_path / shard_name('train', 0, 1), [example(jpeg, label) for label in range(12)])
    source = find_shards(str(tmp_path), 'train')
    options = ImageOptions(8, 8, 3, training=True, seed=3)
    with tf.Graph().as_default(), open_session() as session:
        pipeline = RecordPipeline(InputConfig(source, cpus(1), 1, 100, options))
        label = tf.reduce_sum(pipeline.tower_batch(0).labels)
        fetches = Fetches(loss=label, global_step=tf.constant(0), ops=pipeline.per_step_ops)
        loop = GraphLoop(fetches, pipeline.warm_up_ops)
        pipeline.warm_up(session, run_op=loop.make_op_runner(session))
        labels = [
            int(label_sum)
            for number in (5, 7, 12)
            for label_sum in session.run(loop.values['loss'], {loop.num_steps: number})
        ]
    # The pipeline holds two examples before the first step.
    assert sorted(labels[:12]) == sorted(labels[12:]) == list(range(12))


def test_lines_and_checkpoints_follow_the_session_call_that_reaches_their_step(tmp_path):
    flags = '--steps_per_run=5 --save_model_steps=4 --display_every=2'
    summaries = '--save_summaries_steps=3 --summary_verbosity=1'
    result, out, _ = trained(
        f'{flags} {summaries}', train_dir=tmp_path, trace_file=tmp_path / 'trace.json'
    )
    lines = out.splitlines()
    printed = [line.split('\t') for line in lines if 'images/sec:' in line and '+/-' in line]
    assert [number for number, *_ in printed] == ['1', '2', '4', '6', '7']
    # Throughput counts the steps of each session call.
    rate = float(printed[-1][1].split()[1])
    assert rate == pytest.approx(4 * 7 / result.step_seconds().sum(), abs=0.06)
    assert 'steps' in (tmp_path / 'trace.json').read_text()
    assert result.steps.global_step[-1] == 10
    # The first five timed steps, after three warm-up steps, reach the global steps 4 and 8.
    assert {path.name for path in tmp_path.glob('*.index')} == {
        f'model.ckpt-{step}.index' for step in (0, 8, 10)
    }
    assert str(latest_checkpoint(str(tmp_path))).endswith('-10')
    events = [
        event for path in tmp_path.glob('events*') for event in tf.train.summary_iterator(str(path))
    ]
    assert [event.step for event in events if event.summary.value] == [6, 9]


@pytest.mark.parametrize(
    'flags', ['--profile_steps=1,2 --profile_dir=profile', '--input_pipeline=feed_dict']
)
def test_flags_that_need_single_steps_are_refused(flags):
    with refused('--steps_per_run=2', flags.partition('=')[0]):
        params_of(f'--steps_per_run=2 {flags}')


def test_on_gpus_one_signal_for_each_device_starts_a_step():
    gpu_graph = build_on_gpus(
        2, steps_per_run=9, variable_update='replicated', all_reduce_spec='nccl'
    )
    with gpu_graph.graph.as_default():
        GraphLoop(gpu_graph.step_graph.fetches)
    copies = [op for op in gpu_graph.graph.get_operations() if '/step/' in op.name]
    assert len(copies) > 100
    starts = [op for op in copies if not op.inputs and {*op.control_inputs} - {*copies}]
    assert {op.type for op in starts} == {'NoOp'}
    assert len({op.device for op in starts}) == len(starts) <= 3
    [condition] = [op for op in gpu_graph.graph.get_operations() if op.type == 'LoopCond']
    assert is_on_gpu(condition)


ON_DEVICE: dict[str, Any] = {'model': 'mnist', 'input_pipeline': 'device', 'steps_per_run': 9}


@pytest.mark.parametrize(
    'flags',
    [
        {},
        {'forward_only': True},
        {'print_training_accuracy': True},
        {'optimizer': 'adam', 'piecewise_learning_rate_schedule': '0.1;5;0.01'},
    ],
    ids=str,
)
def test_on_a_gpu_only_the_number_of_steps_comes_from_the_host(flags, tmp_path):
    gpu_graph = build_on_gpus(data_dir=write_digits(tmp_path), **ON_DEVICE, **flags)
    with gpu_graph.graph.as_default():
        values = GraphLoop(gpu_graph.step_graph.fetches).values.values()
    # The ops of a session call that takes several steps.
    loop = replace(gpu_graph, step=frozenset(needed_by([value.op for value in values])))
    # It comes once for all steps, and their values are fetched after the last step.
    assert crossings(loop.step) == ['num_steps:0']
    assert {op.device for op in loop.step} == {'/device:GPU:0'}
    assert ops_without_kernel(loop) == {}
    for kind in ('LoopCond', 'TensorArrayV3', 'TensorArrayWriteV3', 'TensorArrayGatherV3'):
        assert loop.of_type(kind)


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(tmp_path):
    flags = '--model=linear --data_name=mnist --init_learning_rate=1e30 --steps_per_run=3'
    data_dir = write_digits(tmp_path)
    result = trained(f'{flags} --continue_on_nan', data_dir=data_dir).result
    first = result.steps.global_step[result.steps.loss.index(None)]
    with pytest.raises(Exception, match=f'step {first}'):
        trained(flags, data_dir=data_dir)
