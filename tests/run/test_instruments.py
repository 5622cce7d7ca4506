"""Graphs, traces, profiles and summaries of a run, read by the formats' own definitions, contain what was trained."""

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format
from tensorflow.core.profiler.tfprof_log_pb2 import ProfileProto

from benchmark_cnn import BenchmarkCNN
from params import make_params
from results.console import Console
from results.result import Result
from run.instruments import write_scalars
from tests.support.outputs import check_warning, failed, refused, warnings_in

pytestmark = pytest.mark.graph

BATCH, NUM_WARMUP, NUM_TIMED, RATE = 4, 2, 4, 0.01
TOWERS: dict[str, Any] = {'num_gpus': 2, 'variable_update': 'replicated'}


def run(err: io.StringIO | None = None, **flags: Any) -> Result:
    settings = {'model': 'lenet', 'device': 'cpu', 'batch_size': BATCH, 'init_learning_rate': RATE}
    steps = {'num_batches': NUM_TIMED, 'num_warmup_batches': NUM_WARMUP}
    return BenchmarkCNN(make_params(**{**settings, **steps, **flags}), Console(None, err)).run()


@pytest.fixture(scope='module')
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('files')
    run(
        graph_file=str(folder / 'graph.pbtxt'),
        trace_file=str(folder / 'trace.json'),
        tfprof_file=str(folder / 'profile'),
        partitioned_graph_file_prefix=str(folder / 'part'),
        **TOWERS,
    )
    return folder


def parsed(path: Path) -> tf.GraphDef:
    return text_format.Parse(path.read_text(), tf.GraphDef())


def test_the_graph_is_one_that_tensorflow_imports(files: Path, tmp_path: Path) -> None:
    text = parsed(files / 'graph.pbtxt')
    run(graph_file=str(tmp_path / 'graph.pb'), num_batches=1, **TOWERS)
    binary = tf.GraphDef.FromString((tmp_path / 'graph.pb').read_bytes())
    assert [node.name for node in binary.node] == [node.name for node in text.node]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(text, name='')
    for tower in range(2):
        assert graph.get_tensor_by_name(f'tower_{tower}/conv1:0').shape == [BATCH, 28, 28, 32]


def test_each_partition_is_what_ran_on_one_device(files: Path) -> None:
    parts = [parsed(path) for path in sorted(files.glob('part*.pbtxt'))]
    [devices_of_0, devices_of_1] = [{node.device[-5:] for node in part.node} for part in parts]
    assert (devices_of_0, devices_of_1) == ({'CPU:0'}, {'CPU:1'})
    for tower, part in enumerate(parts):
        inputs = [node for node in part.node if node.op == 'Conv2DBackpropFilter' or 'ConvBackprop' in node.op]
        assert {node.name.split('/')[0] for node in inputs} <= {f'tower_{tower}'}
        assert any(node.op == 'ReadVariableOp' for node in part.node)
        assert any(node.op == '_Recv' for node in part.node), 'gradients meet'


def test_the_trace_has_every_op_of_one_step_with_its_time(files: Path) -> None:
    events = json.loads((files / 'trace.json').read_text())['traceEvents']
    names = {event['pid']: event['args']['name'] for event in events if event['ph'] == 'M'}
    ran = [event for event in events if event['ph'] == 'X' and names[event['pid']].endswith('Compute')]
    assert all(event['dur'] >= 0 and event['ts'] > 0 for event in ran)
    for tower in range(2):
        own = Counter(event['args']['name'] for event in ran if f'CPU:{tower}' in names[event['pid']])
        backward = f'tower_{tower}/gradients/tower_{tower}/conv1_grad/Conv2DBackpropFilter'
        assert own[backward] == 1
        assert not any(name.startswith(f'tower_{1 - tower}/conv') for name in own)


def test_a_trace_that_is_not_for_chrome_is_text(tmp_path: Path) -> None:
    run(trace_file=str(tmp_path / 'trace'), use_chrome_trace_format=False, num_batches=1)
    step_stats = text_format.Parse((tmp_path / 'trace').read_text(), tf.RunMetadata().step_stats)
    assert any('conv1_grad' in node.node_name for device in step_stats.dev_stats for node in device.node_stats)


def test_the_profile_of_tfprof_has_the_work_of_each_layer(files: Path) -> None:
    profile = ProfileProto.FromString((files / 'profile').read_bytes())
    nodes = {node.name: node for node in profile.nodes.values()}
    # Two for each multiply-add: 5 x 5 x 3 for each of 32 channels of 28 x 28 places.
    assert nodes['tower_0/conv1'].float_ops == 2 * BATCH * 28 * 28 * 5 * 5 * 3 * 32
    executed = nodes['tower_1/gradients/tower_1/conv1_grad/Conv2DBackpropFilter'].execs[0]
    assert executed.latest_end_micros > 0


def weights_after(train_dir: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(train_dir / f'model.ckpt-{step}'))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != 'global_step'}


def test_scalars_written_within_one_second_do_not_replace_each_other(tmp_path: Path) -> None:
    for step in range(12):
        write_scalars(str(tmp_path), 'eval_dir', step, {'accuracy': step / 100})
    steps = [
        event.step
        for file in sorted(tmp_path.iterdir())
        for event in tf.train.summary_iterator(str(file))
        if event.summary.value
    ]
    assert steps == list(range(12))


@pytest.mark.parametrize('level', [1, 3])
def test_summaries_contain_what_their_verbosity_promises(tmp_path: Path, level: int) -> None:
    flags = {'save_summaries_steps': 2, 'summary_verbosity': level, 'print_training_accuracy': True}
    err = io.StringIO()
    result = run(err, train_dir=str(tmp_path), save_model_steps=1, max_ckpts_to_keep=20, **flags, **TOWERS)
    found: dict[str, dict[int, Any]] = {}
    for file in tmp_path.glob('events.*'):
        for event in tf.train.summary_iterator(str(file)):
            for value in event.summary.value:
                told = value.histo if value.HasField('histo') else value.simple_value
                found.setdefault(value.tag, {})[event.step] = told
    scalars = {'total_loss', 'images_per_second', 'learning_rate', 'top_1_accuracy', 'top_5_accuracy'}
    weights = weights_after(tmp_path, NUM_WARMUP)
    assert set(found) == (
        scalars
        | ({f'variables/{name}' for name in weights} if level > 1 else set())
        | ({f'gradients/{name}' for name in weights} if level > 2 else set())
    )
    # Every second timed step, by the number of steps that the model took.
    steps = [NUM_WARMUP + 2, NUM_WARMUP + 4]
    for told in found.values():
        assert list(told) == steps
    for step in steps:
        values = result.steps[step - 1].values
        assert found['total_loss'][step] == pytest.approx(values.loss)
        assert found['top_5_accuracy'][step] == pytest.approx(values.top_5)
        seconds = result.steps[step - 1].seconds
        assert found['images_per_second'][step] == pytest.approx(2 * BATCH / seconds, rel=1e-5)
        before, after = weights_after(tmp_path, step - 1), weights_after(tmp_path, step)
        for name in after:
            expected = {}
            if level > 1:
                expected['variables'] = after[name]
            if level > 2:
                expected['gradients'] = (before[name] - after[name]) / RATE
            for kind, numbers in expected.items():
                histogram = found[f'{kind}/{name}'][step]
                assert histogram.num == numbers.size
                scale = float(np.abs(numbers).max())
                assert histogram.max == pytest.approx(numbers.max(), abs=1e-3 * scale)
                assert histogram.min == pytest.approx(numbers.min(), abs=1e-3 * scale)
                assert histogram.sum_squares == pytest.approx(float((numbers.astype(np.float64) ** 2).sum()), rel=1e-3)
    # Writing histograms of gradients lowers the rate, of which the user is warned.
    warned = [line for line in warnings_in(err.getvalue()) if '--summary_verbosity' in line]
    assert ['--summary_verbosity=3' in line for line in warned] == ([True] if level == 3 else [])


def test_a_profile_has_the_steps_that_it_was_asked_for(tmp_path: Path) -> None:
    reason = 'not every supported TensorFlow ships the proto that a profile is made of'
    xplane_pb2 = pytest.importorskip('tensorflow.tsl.profiler.protobuf.xplane_pb2', reason=reason)
    err = io.StringIO()
    run(err, profile_steps='2,3', profile_dir=str(tmp_path / 'new'), **TOWERS)
    # The folders and the name by which TensorBoard's plugin finds it.
    (file,) = (tmp_path / 'new' / 'plugins' / 'profile').glob('*/*.xplane.pb')
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    (host,) = (plane for plane in space.planes if plane.name == '/host:CPU')
    events = [(host.event_metadata[event.metadata_id].name, event) for line in host.lines for event in line.events]
    numbers = [
        stat.int64_value
        for name, event in events
        if name == 'step'
        for stat in event.stats
        if host.stat_metadata[stat.metadata_id].name == 'step_num'
    ]
    assert numbers == [2, 3]
    counts = Counter(name.split(':')[0] for name, _ in events)
    for tower in range(2):
        assert counts[f'tower_{tower}/gradients/tower_{tower}/conv1_grad/Conv2DBackpropFilter'] == 2
    check_warning(err.getvalue(), '--profile_steps=2,3')


def test_a_run_may_be_profiled_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    run(profile_steps=f'1,{NUM_TIMED}', profile_dir=str(tmp_path), num_warmup_batches=0)
    assert len(list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))) == 1


def test_profiling_steps_that_are_not_timed_is_refused_or_warned_of(tmp_path: Path) -> None:
    with refused('--profile_steps=3,5', NUM_TIMED):
        run(profile_steps='3,5', profile_dir=str(tmp_path))
    err = io.StringIO()
    stopped = {'eval_during_training_every_n_steps': 1, 'stop_at_top_1_accuracy': 0.0, 'num_eval_batches': 1}
    run(err, profile_steps='2,4', profile_dir=str(tmp_path), **stopped)
    check_warning(err.getvalue(), '0', '--profile_steps')
    assert not list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))
    # A second profiler cannot start in one process, and none was left by the run before.
    run(profile_steps='2,2', profile_dir=str(tmp_path))
    assert len(list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))) == 1


def test_a_profile_that_cannot_start_ends_the_run_with_its_folder(tmp_path: Path) -> None:
    tf.compat.v2.profiler.experimental.start(str(tmp_path / 'other'))
    try:
        with failed(f'--profile_dir={tmp_path}/own'):
            run(profile_steps='1,2', profile_dir=str(tmp_path / 'own'))
    finally:
        tf.compat.v2.profiler.experimental.stop()
