"""Graphs, traces, profiles, summaries and logs of a run follow their formats, and agree with the
training.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format
from tensorflow.core.framework.step_stats_pb2 import StepStats
from tensorflow.core.profiler.tfprof_log_pb2 import ProfileProto

from tests.support.outputs import check_warning
from tests.support.runs import BenchmarkRun, run_benchmark, values_in
from tf_cnn.graph.event_files import write_scalars
from tf_cnn.results.benchmark_log import append_metric

pytestmark = pytest.mark.graph

BATCH, NUM_WARMUP, NUM_TIMED, RATE = 4, 2, 4, 0.01
TOWERS = '--num_gpus=2 --variable_update=replicated'


def run(flags: str, **values: Any) -> BenchmarkRun:
    steps = f'--num_batches={NUM_TIMED} --num_warmup_batches={NUM_WARMUP}'
    return run_benchmark(f'{steps} --init_learning_rate={RATE} {flags}', **values)


@pytest.fixture(scope='module')
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('files')
    run(
        TOWERS,
        graph_file=folder / 'graph.pbtxt',
        trace_file=folder / 'trace.json',
        tfprof_file=folder / 'profile',
        partitioned_graph_file_prefix=folder / 'part',
    )
    return folder


def parsed(path: Path) -> tf.GraphDef:
    return text_format.Parse(path.read_text(), tf.GraphDef())


def test_tensorflow_imports_the_graph_file_and_a_trace_in_its_own_format(files, tmp_path):
    text = parsed(files / 'graph.pbtxt')
    once = f'{TOWERS} --num_batches=1 --nouse_chrome_trace_format'
    run(once, graph_file=tmp_path / 'graph.pb', trace_file=tmp_path / 'steps.pbtxt')
    binary = tf.GraphDef.FromString((tmp_path / 'graph.pb').read_bytes())
    assert [node.name for node in binary.node] == [node.name for node in text.node]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(text, name='')
    for tower in range(2):
        assert graph.get_tensor_by_name(f'tower_{tower}/conv1:0').shape == [BATCH, 28, 28, 32]
    steps = text_format.Parse((tmp_path / 'steps.pbtxt').read_text(), StepStats())
    assert {stats.device[-5:] for stats in steps.dev_stats} >= {'CPU:0', 'CPU:1'}


def test_each_partition_has_the_ops_of_one_device(files):
    parts = [parsed(path) for path in sorted(files.glob('part*.pbtxt'))]
    devices = [{node.device[-5:] for node in part.node} for part in parts]
    assert devices == [{'CPU:0'}, {'CPU:1'}]
    for tower, part in enumerate(parts):
        backward = [node for node in part.node if node.op == 'Conv2DBackpropFilter']
        assert {node.name.split('/')[0] for node in backward} <= {f'tower_{tower}'}
        # Towers exchange gradients.
        assert {'ReadVariableOp', '_Recv'} <= {node.op for node in part.node}


def test_the_trace_has_every_op_of_one_step_with_its_time(files):
    events = json.loads((files / 'trace.json').read_text())['traceEvents']
    names = {event['pid']: event['args']['name'] for event in events if event['ph'] == 'M'}
    compute_events = [
        event for event in events if event['ph'] == 'X' and names[event['pid']].endswith('Compute')
    ]
    assert all(event['dur'] >= 0 and event['ts'] > 0 for event in compute_events)
    for tower in range(2):
        counts = Counter(
            event['args']['name']
            for event in compute_events
            if f'CPU:{tower}' in names[event['pid']]
        )
        backward = f'tower_{tower}/gradients/tower_{tower}/conv1_grad/Conv2DBackpropFilter'
        assert counts[backward] == 1
        assert not any(name.startswith(f'tower_{1 - tower}/conv') for name in counts)


def test_the_profile_of_tfprof_has_the_work_of_each_layer(files):
    profile = ProfileProto.FromString((files / 'profile').read_bytes())
    nodes = {node.name: node for node in profile.nodes.values()}
    # Two for each multiply-add: 5 x 5 x 3 for each of 32 channels of 28 x 28 places.
    assert nodes['tower_0/conv1'].float_ops == 2 * BATCH * 28 * 28 * 5 * 5 * 3 * 32
    executed = nodes['tower_1/gradients/tower_1/conv1_grad/Conv2DBackpropFilter'].execs[0]
    assert executed.latest_end_micros > 0


def test_without_warm_up_timed_steps_are_recorded_and_a_warning_names_the_flag(tmp_path):
    paths = {'tfprof_file': tmp_path / 'profile', 'graph_file': tmp_path / 'graph.pbtxt'}
    paths['partitioned_graph_file_prefix'] = tmp_path / 'part'
    err = run('--num_warmup_batches=0 --num_batches=12', **paths).err
    check_warning(err, '--tfprof_file', '--num_warmup_batches=1')
    profile = ProfileProto.FromString((tmp_path / 'profile').read_bytes())
    assert [*profile.steps] == [*range(10)]
    assert parsed(tmp_path / 'graph.pbtxt').node
    assert parsed(tmp_path / 'part0.pbtxt').node


def summaries_in(folder: Path) -> Iterator[tuple[int, Any]]:
    """Yields (step, value)."""
    for file in sorted(folder.glob('events.*')):
        for event in tf.train.summary_iterator(str(file)):
            for value in event.summary.value:
                yield event.step, value


def test_scalars_written_within_one_second_do_not_replace_each_other(tmp_path):
    for step in range(12):
        write_scalars(str(tmp_path), 'eval_dir', step, {'accuracy': step / 100})
    assert [step for step, _ in summaries_in(tmp_path)] == list(range(12))


def read_summaries(folder: Path) -> dict[str, dict[int, Any]]:
    """Returns the summaries in a folder by tag and step."""
    summaries: dict[str, dict[int, Any]] = {}
    for step, value in summaries_in(folder):
        is_histogram = value.HasField('histo')
        summaries.setdefault(value.tag, {})[step] = (
            value.histo if is_histogram else value.simple_value
        )
    return summaries


SUMMARY_STEPS = [NUM_WARMUP + 2, NUM_WARMUP + 4]
SCALARS = {'total_loss', 'images_per_second', 'learning_rate', 'top_1_accuracy', 'top_5_accuracy'}


def test_summaries_have_the_scalars_of_their_steps_and_histograms_of_all_weights(tmp_path):
    flags = f'--model=convolved_on_records {TOWERS} --save_summaries_steps=2 --summary_verbosity=3'
    checkpoints = '--save_model_steps=1 --max_ckpts_to_keep=20 --print_training_accuracy'
    result, _, err = run(f'{flags} {checkpoints}', train_dir=tmp_path)
    summaries = read_summaries(tmp_path)
    # The global step of every second timed step.
    assert all([*steps] == SUMMARY_STEPS for steps in summaries.values())
    weights = values_in(tmp_path).keys() - {'global_step'}
    tags = {f'{kind}/{name}' for kind in ('variables', 'gradients') for name in weights}
    assert {*summaries} == SCALARS | tags
    for step in SUMMARY_STEPS:
        assert summaries['total_loss'][step] == pytest.approx(result.steps.loss[step - 1])
        assert summaries['top_5_accuracy'][step] == pytest.approx(
            (result.steps.top_5 or ())[step - 1]
        )
        rate = 2 * BATCH / result.steps.seconds[step - 1]
        assert summaries['images_per_second'][step] == pytest.approx(rate, rel=1e-5)
        before, after = (values_in(f'{tmp_path}/model.ckpt-{at}') for at in (step - 1, step))
        for name in weights:
            gradients = (before[name] - after[name]) / RATE
            check_histogram(summaries[f'variables/{name}'][step], after[name])
            check_histogram(summaries[f'gradients/{name}'][step], gradients)
    # Histograms of gradients lower the throughput, so a warning names the flag.
    check_warning(err, '--summary_verbosity', 'one step in 2')


def test_a_session_call_of_several_steps_has_one_histogram_which_its_last_step_names(tmp_path):
    flags = '--model=convolved_on_records --save_summaries_steps=2 --summary_verbosity=2'
    checkpoints = '--save_model_steps=1 --max_ckpts_to_keep=20'
    run(f'{flags} --steps_per_run=4 --num_batches=7 {checkpoints}', train_dir=tmp_path)
    summaries = read_summaries(tmp_path)
    assert [*summaries['total_loss']] == [4, 6, 8]
    assert [*summaries['variables/conv/kernel']] == [6, 9]
    for step, histogram in summaries['variables/conv/kernel'].items():
        check_histogram(histogram, values_in(f'{tmp_path}/model.ckpt-{step}')['conv/kernel'])


def test_a_tensor_with_an_infinity_has_no_histogram_and_a_warning_counts_it(tmp_path):
    # The loss scale skips every step.
    flags = '--precision=fp16 --fp16_enable_auto_loss_scale --fp16_loss_scale=1e30'
    flags = f'--model=convolved_on_records --save_summaries_steps=2 --summary_verbosity=3 {flags}'
    result, _, err = run(flags, train_dir=tmp_path)
    assert result.is_complete
    tags = read_summaries(tmp_path).keys()
    assert not any(tag.startswith('gradients/') for tag in tags)
    assert 'variables/conv/kernel' in tags
    # At two steps, of a kernel and a bias in each of two layers.
    check_warning(err, f'--train_dir={tmp_path}', '8 histograms omitted', 'after step 4')


def check_histogram(histogram: Any, numbers: np.ndarray) -> None:
    assert histogram.num == numbers.size
    tolerance = 1e-3 * float(np.abs(numbers).max())
    extremes = pytest.approx([numbers.min(), numbers.max()], abs=tolerance)
    assert [histogram.min, histogram.max] == extremes
    squares = float((numbers.astype(np.float64) ** 2).sum())
    assert histogram.sum_squares == pytest.approx(squares, rel=1e-3)


def test_a_profile_has_the_steps_of_its_flag(tmp_path):
    reason = 'not every supported TensorFlow ships the proto that a profile is made of'
    xplane_pb2 = pytest.importorskip('tensorflow.tsl.profiler.protobuf.xplane_pb2', reason=reason)
    _, _, err = run(f'{TOWERS} --profile_steps=2,3', profile_dir=tmp_path / 'new')
    # TensorBoard's plugin looks for these folders and this name.
    (file,) = (tmp_path / 'new' / 'plugins' / 'profile').glob('*/*.xplane.pb')
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    (host,) = (plane for plane in space.planes if plane.name == '/host:CPU')
    events = [
        (host.event_metadata[event.metadata_id].name, event)
        for line in host.lines
        for event in line.events
    ]
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
    check_warning(err, '--profile_steps=2,3')


def test_a_warning_says_that_the_steps_of_a_profile_did_not_come(tmp_path):
    stopped = '--eval_during_training_every_n_steps=1 --stop_at_top_1_accuracy=0'
    flags = f'--model=convolved_on_records --profile_steps=2,4 --num_eval_batches=1 {stopped}'
    err = run(flags, profile_dir=tmp_path).err
    check_warning(err, '0', '--profile_steps')
    assert not list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


@pytest.fixture(scope='module')
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BenchmarkRun]:
    folder = tmp_path_factory.mktemp('logs')
    flags = '--benchmark_test_id=lenet-4 --print_training_accuracy --num_batches=5'
    evaluations = '--display_every=2 --eval_during_training_every_n_steps=4 --num_eval_batches=1'
    return folder, run_benchmark(f'{flags} {evaluations}', benchmark_log_dir=folder)


def test_a_run_writes_its_settings_into_its_log(logged):
    (run,) = lines_of(logged[0] / 'benchmark_run.log')
    assert (run['model_name'], run['dataset']) == ('lenet', {'name': 'imagenet'})
    assert run['test_id'] == 'lenet-4'
    assert run['machine_config']['cpu_info']['num_cores'] > 0
    parameters = {row.pop('name'): row for row in run['run_parameters']}
    assert parameters['model'] == {'string_value': 'lenet'}
    assert parameters['print_training_accuracy'] == {'bool_value': 'True'}
    # The run's choice replaces an omitted flag.
    assert parameters['data_format'] == {'string_value': 'NHWC'}
    assert 'train_dir' not in parameters


def test_a_run_logs_every_number_that_it_prints(logged):
    folder, (result, out, _) = logged
    metrics = lines_of(folder / 'metric.log')
    fields = {'name', 'value', 'unit', 'global_step', 'timestamp', 'extras'}
    assert all({*row} == fields for row in metrics)
    at_a_step = ['current_examples_per_sec', 'total_loss', 'top_1_accuracy', 'top_5_accuracy']
    evaluated = ['eval_top_1_accuracy', 'eval_top_5_accuracy', 'eval_average_examples_per_sec']
    # Global step 4 is the third timed step.
    expected = [(name, step) for step in (1, 2) for name in at_a_step]
    expected += [(name, 4) for name in (*evaluated, *at_a_step)]
    expected += [(name, 5) for name in (*at_a_step, 'average_examples_per_sec')]
    assert [(row['name'], row['global_step']) for row in metrics] == expected
    assert metrics[-1]['value'] == result.images_per_second
    printed = re.findall(r'\timages/sec: (\S+) .*\)\t([\d.]+)\t', out)
    rates, losses = (
        [row['value'] for row in metrics if row['name'] == name] for name in at_a_step[:2]
    )
    assert [
        (f'{rate:.1f}', f'{loss:.3f}') for rate, loss in zip(rates, losses, strict=True)
    ] == printed


def test_a_second_run_appends_its_numbers(tmp_path):
    for _ in range(2):
        run_benchmark('--model=convolved_on_records --num_batches=1', benchmark_log_dir=tmp_path)
    assert len(lines_of(tmp_path / 'metric.log')) == 2 * 3
    assert [run['test_id'] for run in lines_of(tmp_path / 'benchmark_run.log')] == [None]


def test_the_log_has_only_finite_numbers(tmp_path):
    append_metric(str(tmp_path), 'loss', float('nan'), 1)
    assert lines_of(tmp_path / 'metric.log')[0]['value'] is None
