"""Graphs, traces, profiles, summaries and logs of a run, read by their formats' definitions, hold
what was trained.
"""

import contextlib
import functools
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format
from tensorflow.core.profiler.tfprof_log_pb2 import ProfileProto

from tests.support.graphs import file_size_limit
from tests.support.outputs import check_warning, failed, refused, warnings_in
from tests.support.runs import made, ran, values_in
from tf_cnn.results.benchmark_log import BenchmarkLog, run_info
from tf_cnn.results.console import Console
from tf_cnn.run.instruments import write_scalars

pytestmark = pytest.mark.graph

BATCH, NUM_WARMUP, NUM_TIMED, RATE = 4, 2, 4, 0.01
run = functools.partial(
    ran, num_batches=NUM_TIMED, num_warmup_batches=NUM_WARMUP, init_learning_rate=RATE
)
TOWERS: dict[str, Any] = {'num_gpus': 2, 'variable_update': 'replicated'}


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
        inputs = [
            node
            for node in part.node
            if node.op == 'Conv2DBackpropFilter' or 'ConvBackprop' in node.op
        ]
        assert {node.name.split('/')[0] for node in inputs} <= {f'tower_{tower}'}
        assert any(node.op == 'ReadVariableOp' for node in part.node)
        assert any(node.op == '_Recv' for node in part.node), 'gradients meet'


def test_the_trace_has_every_op_of_one_step_with_its_time(files: Path) -> None:
    events = json.loads((files / 'trace.json').read_text())['traceEvents']
    names = {event['pid']: event['args']['name'] for event in events if event['ph'] == 'M'}
    ran = [
        event for event in events if event['ph'] == 'X' and names[event['pid']].endswith('Compute')
    ]
    assert all(event['dur'] >= 0 and event['ts'] > 0 for event in ran)
    for tower in range(2):
        own = Counter(
            event['args']['name'] for event in ran if f'CPU:{tower}' in names[event['pid']]
        )
        backward = f'tower_{tower}/gradients/tower_{tower}/conv1_grad/Conv2DBackpropFilter'
        assert own[backward] == 1
        assert not any(name.startswith(f'tower_{1 - tower}/conv') for name in own)


def test_the_profile_of_tfprof_has_the_work_of_each_layer(files: Path) -> None:
    profile = ProfileProto.FromString((files / 'profile').read_bytes())
    nodes = {node.name: node for node in profile.nodes.values()}
    # Two for each multiply-add: 5 x 5 x 3 for each of 32 channels of 28 x 28 places.
    assert nodes['tower_0/conv1'].float_ops == 2 * BATCH * 28 * 28 * 5 * 5 * 3 * 32
    executed = nodes['tower_1/gradients/tower_1/conv1_grad/Conv2DBackpropFilter'].execs[0]
    assert executed.latest_end_micros > 0


def summaries_in(folder: Path) -> Iterator[tuple[int, Any]]:
    """Each value, with its step."""
    for file in sorted(folder.glob('events.*')):
        for event in tf.train.summary_iterator(str(file)):
            for value in event.summary.value:
                yield event.step, value


def test_scalars_written_within_one_second_do_not_replace_each_other(tmp_path: Path) -> None:
    for step in range(12):
        write_scalars(str(tmp_path), 'eval_dir', step, {'accuracy': step / 100})
    assert [step for step, _ in summaries_in(tmp_path)] == list(range(12))


@pytest.mark.parametrize('level', [1, 3])
def test_summaries_contain_what_their_verbosity_promises(tmp_path: Path, level: int) -> None:
    flags = {'save_summaries_steps': 2, 'summary_verbosity': level, 'print_training_accuracy': True}
    result, _, err = run(
        train_dir=str(tmp_path), save_model_steps=1, max_ckpts_to_keep=20, **flags, **TOWERS
    )
    found: dict[str, dict[int, Any]] = {}
    for step, value in summaries_in(tmp_path):
        found.setdefault(value.tag, {})[step] = (
            value.histo if value.HasField('histo') else value.simple_value
        )
    scalars = {
        'total_loss',
        'images_per_second',
        'learning_rate',
        'top_1_accuracy',
        'top_5_accuracy',
    }
    weights = [name for name in values_in(tmp_path) if level == 3 and name != 'global_step']
    assert set(found) == {
        *scalars,
        *(f'{kind}/{name}' for kind in ('variables', 'gradients') for name in weights),
    }
    # Every second timed step, by the number of steps that the model took.
    steps = [NUM_WARMUP + 2, NUM_WARMUP + 4]
    assert all(list(told) == steps for told in found.values())
    for step in steps:
        assert found['total_loss'][step] == pytest.approx(result.steps.loss[step - 1])
        assert found['top_5_accuracy'][step] == pytest.approx((result.steps.top_5 or ())[step - 1])
        assert found['images_per_second'][step] == pytest.approx(
            2 * BATCH / result.steps.seconds[step - 1], rel=1e-5
        )
        before, after = (
            values_in(tmp_path / f'model.ckpt-{number}') for number in (step - 1, step)
        )
        for name in weights:
            for kind, numbers in (
                ('variables', after[name]),
                ('gradients', (before[name] - after[name]) / RATE),
            ):
                histogram = found[f'{kind}/{name}'][step]
                assert histogram.num == numbers.size
                extremes = pytest.approx(
                    [numbers.min(), numbers.max()], abs=1e-3 * float(np.abs(numbers).max())
                )
                assert [histogram.min, histogram.max] == extremes
                assert histogram.sum_squares == pytest.approx(
                    float((numbers.astype(np.float64) ** 2).sum()), rel=1e-3
                )
    # Writing histograms of gradients lowers the rate, of which the user is warned.
    warned = [line for line in warnings_in(err) if '--summary_verbosity' in line]
    assert ['one step in 2' in line for line in warned] == ([True] if level == 3 else [])


def test_a_profile_has_the_steps_that_it_was_asked_for(tmp_path: Path) -> None:
    reason = 'not every supported TensorFlow ships the proto that a profile is made of'
    xplane_pb2 = pytest.importorskip('tensorflow.tsl.profiler.protobuf.xplane_pb2', reason=reason)
    _, _, err = run(profile_steps='2,3', profile_dir=str(tmp_path / 'new'), **TOWERS)
    # The folders and the name by which TensorBoard's plugin finds it.
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


def test_a_profile_whose_steps_do_not_come_is_warned_of_and_the_next_one_begins(
    tmp_path: Path,
) -> None:
    stopped = {
        'eval_during_training_every_n_steps': 1,
        'stop_at_top_1_accuracy': 0.0,
        'num_eval_batches': 1,
    }
    _, _, err = run(profile_steps='2,4', profile_dir=str(tmp_path), **stopped)
    check_warning(err, '0', '--profile_steps')
    assert not list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))
    # A second profiler cannot start in one process. The first and the last step:
    run(profile_steps=f'1,{NUM_TIMED}', profile_dir=str(tmp_path), num_warmup_batches=0)
    assert len(list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))) == 1


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


def test_a_run_writes_itself_and_every_number_that_it_prints(tmp_path: Path) -> None:
    folder = tmp_path / 'logs'
    flags = {
        'benchmark_log_dir': str(folder),
        'benchmark_test_id': 'lenet-4',
        'print_training_accuracy': True,
    }
    every_two = {
        'num_batches': 5,
        'display_every': 2,
        'eval_during_training_every_n_steps': 4,
        'num_eval_batches': 1,
    }
    result, out, _ = ran(**flags, **every_two)
    (run,) = lines_of(folder / 'benchmark_run.log')
    assert (run['model_name'], run['dataset'], run['test_id']) == (
        'lenet',
        {'name': 'imagenet'},
        'lenet-4',
    )
    assert run['machine_config']['cpu_info']['num_cores'] > 0
    parameters = {row['name']: row for row in run['run_parameters']}
    assert parameters['model'] == {'name': 'model', 'string_value': 'lenet'}
    assert parameters['print_training_accuracy'] == {
        'name': 'print_training_accuracy',
        'bool_value': 'True',
    }
    # What the run decided, not the flag that was not given.
    assert parameters['data_format'] == {'name': 'data_format', 'string_value': 'NHWC'}
    assert 'train_dir' not in parameters
    metrics = lines_of(folder / 'metric.log')
    assert all(
        set(row) == {'name', 'value', 'unit', 'global_step', 'timestamp', 'extras'}
        for row in metrics
    )
    at_a_step = ['current_examples_per_sec', 'total_loss', 'top_1_accuracy', 'top_5_accuracy']
    evaluated = ['eval_top_1_accuracy', 'eval_top_5_accuracy', 'eval_average_examples_per_sec']
    expected = [(name, step) for step in (1, 2) for name in at_a_step]
    # Global step 4 is the third timed step.
    expected += [(name, 4) for name in evaluated]
    expected += [(name, step) for step in (4, 5) for name in at_a_step] + [
        ('average_examples_per_sec', 5)
    ]
    assert [(row['name'], row['global_step']) for row in metrics] == expected
    assert metrics[-1]['value'] == result.images_per_second
    printed = [line.split('\t') for line in out.splitlines() if '\timages/sec' in line]
    rates = [row['value'] for row in metrics if row['name'] == 'current_examples_per_sec']
    assert [f'images/sec: {rate:.1f}' for rate in rates] == [
        line[1].split(' +/-')[0] for line in printed
    ]
    assert [f'{row["value"]:.3f}' for row in metrics if row['name'] == 'total_loss'] == [
        line[2] for line in printed
    ]
    # A second run appends its numbers.
    ran(num_batches=1, benchmark_log_dir=str(folder))
    assert len(lines_of(folder / 'metric.log')) == len(metrics) + 3
    assert [run['test_id'] for run in lines_of(folder / 'benchmark_run.log')] == [None]


def test_the_log_has_what_a_machine_with_gpus_tells_and_no_number_that_is_not_finite(
    tmp_path: Path,
) -> None:
    gpus, cpu = [{'name': 'A'}, {'name': 'A'}], 'Intel(R) Xeon(R) CPU @ 2.20GHz'
    machine = {'num_cores': 96, 'memory_bytes': 10, 'gpus': gpus, 'cpu_model': cpu}
    of_run: dict[str, Any] = {
        'model': 'm',
        'data_set': 'd',
        'flags': {'rate': 0.5, 'none': None},
        'test_id': None,
    }
    environment = {'TF_B': '1', 'TF_A': '0', 'OMP_NUM_THREADS': '2'}
    versions: dict[str, Any] = {
        'tensorflow_version': '2',
        'tensorflow_git': 'g',
        'available_memory': None,
    }
    found = run_info(**of_run, machine=machine, environment=environment, **versions)
    assert found['machine_config']['cpu_info']['mhz_per_cpu'] == 2200
    assert found['machine_config']['gpu_info'] == {'count': 2, 'model': 'A'}
    assert [row['name'] for row in found['tensorflow_environment_variables']] == ['TF_A', 'TF_B']
    assert found['run_parameters'] == [{'name': 'rate', 'float_value': 0.5}]
    BenchmarkLog(str(tmp_path)).append_metric('loss', float('nan'), 1)
    assert lines_of(tmp_path / 'metric.log')[0]['value'] is None


def test_what_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    with refused(f'--benchmark_log_dir={tmp_path}/file'):
        made(benchmark_log_dir=f'{tmp_path}/file')


def test_a_disk_that_becomes_full_ends_the_run_and_the_rate_so_far_is_told(tmp_path: Path) -> None:
    err = io.StringIO()
    console = Console(io.StringIO(), err)
    steps = made(console, num_batches=30, display_every=1, benchmark_log_dir=str(tmp_path)).steps()
    with contextlib.ExitStack() as stack, failed(f'--benchmark_log_dir={tmp_path}', 'metric.log'):
        for step in steps:
            if step.phase.value == 'timed' and step.index == 3:
                # Full after the numbers of three steps; benchmark_run.log is longer, and was
                # written by then.
                stack.enter_context(file_size_limit((tmp_path / 'metric.log').stat().st_size + 9))
    check_warning(err.getvalue(), 'incomplete', 'images/sec')
    # No half line.
    assert [row['global_step'] for row in lines_of(tmp_path / 'metric.log')] == [1, 1, 2, 2, 3, 3]
