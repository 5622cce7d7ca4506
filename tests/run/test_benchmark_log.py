"""--benchmark_log_dir: the files of the benchmark logger of TensorFlow's official models."""

import io
import json
import resource
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmark_cnn import BenchmarkCNN
from params import make_params
from params.all_rules import find_idle
from params.rules import RunFacts
from results.benchmark_log import BenchmarkLog, run_info
from results.console import Console
from tests.support.outputs import check_line, check_warning, failed, refused

pytestmark = pytest.mark.graph

SHORT: dict[str, Any] = {'model': 'lenet', 'device': 'cpu', 'batch_size': 4, 'num_warmup_batches': 1}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


def test_a_run_writes_itself_and_every_number_that_it_prints(tmp_path: Path) -> None:
    folder, out = tmp_path / 'logs', io.StringIO()
    flags = {'benchmark_log_dir': str(folder), 'benchmark_test_id': 'lenet-4', 'print_training_accuracy': True}
    every_two = {'num_batches': 5, 'display_every': 2, 'eval_during_training_every_n_steps': 4, 'num_eval_batches': 1}
    result = BenchmarkCNN(make_params(**SHORT, **flags, **every_two), Console(out, io.StringIO())).run()
    (run,) = lines_of(folder / 'benchmark_run.log')
    assert (run['model_name'], run['dataset'], run['test_id']) == ('lenet', {'name': 'imagenet'}, 'lenet-4')
    assert run['tensorflow_version'] == {'version': tf.version.VERSION, 'git_hash': tf.version.GIT_VERSION}
    machine = run['machine_config']
    assert machine['cpu_info']['num_cores'] > 0
    assert machine['memory_total'] > machine['memory_available'] > 0
    parameters = {row['name']: row for row in run['run_parameters']}
    assert parameters['batch_size'] == {'name': 'batch_size', 'long_value': 4}
    assert parameters['model'] == {'name': 'model', 'string_value': 'lenet'}
    assert parameters['print_training_accuracy'] == {'name': 'print_training_accuracy', 'bool_value': 'True'}
    # What the run decided, not the flag that was not given.
    assert parameters['data_format'] == {'name': 'data_format', 'string_value': 'NHWC'}
    assert 'train_dir' not in parameters
    metrics = lines_of(folder / 'metric.log')
    assert all(set(row) == {'name', 'value', 'unit', 'global_step', 'timestamp', 'extras'} for row in metrics)
    at_a_step = ['current_examples_per_sec', 'total_loss', 'top_1_accuracy', 'top_5_accuracy']
    evaluated = ['eval_top_1_accuracy', 'eval_top_5_accuracy', 'eval_average_examples_per_sec']
    expected = [(name, step) for step in (1, 2) for name in at_a_step]
    # Global step 4 is the third timed step.
    expected += [(name, 4) for name in evaluated]
    expected += [(name, step) for step in (4, 5) for name in at_a_step] + [('average_examples_per_sec', 5)]
    assert [(row['name'], row['global_step']) for row in metrics] == expected
    assert metrics[-1]['value'] == result.images_per_second
    printed = [line.split('\t') for line in out.getvalue().splitlines() if '\timages/sec' in line]
    rates = [row['value'] for row in metrics if row['name'] == 'current_examples_per_sec']
    assert [f'images/sec: {rate:.1f}' for rate in rates] == [line[1].split(' +/-')[0] for line in printed]
    assert [f'{row["value"]:.3f}' for row in metrics if row['name'] == 'total_loss'] == [line[2] for line in printed]
    for text in (run['run_date'], metrics[0]['timestamp']):
        datetime.strptime(text, '%Y-%m-%dT%H:%M:%S.%fZ')
    # A second run appends its numbers.
    BenchmarkCNN(make_params(**SHORT, num_batches=1, benchmark_log_dir=str(folder))).run()
    assert len(lines_of(folder / 'metric.log')) == len(metrics) + 3
    (run,) = lines_of(folder / 'benchmark_run.log')
    assert run['test_id'] is None


def test_of_a_machine_stands_what_it_tells(tmp_path: Path) -> None:
    facts: dict[str, Any] = {'num_cores': 96, 'memory_bytes': 10, 'gpus': [{'name': 'A'}, {'name': 'A'}]}
    made = run_info(
        model='m',
        data_set='d',
        flags={'rate': 0.5, 'none': None},
        machine={**facts, 'cpu_model': 'Intel(R) Xeon(R) CPU @ 2.20GHz'},
        environment={'TF_B': '1', 'TF_A': '0', 'OMP_NUM_THREADS': '2'},
        tensorflow_version='2',
        tensorflow_git='g',
        test_id=None,
        available_memory=None,
    )
    assert made['machine_config']['cpu_info']['mhz_per_cpu'] == 2200
    assert made['machine_config']['gpu_info'] == {'count': 2, 'model': 'A'}
    assert [row['name'] for row in made['tensorflow_environment_variables']] == ['TF_A', 'TF_B']
    assert made['run_parameters'] == [{'name': 'rate', 'float_value': 0.5}]
    log = BenchmarkLog(str(tmp_path))
    log.add('loss', float('nan'), 1)
    assert lines_of(tmp_path / 'metric.log')[0]['value'] is None


def test_what_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / 'file'
    file.touch()
    with refused(f'--benchmark_log_dir={file}', 'file'):
        BenchmarkCNN(make_params(**SHORT, benchmark_log_dir=str(file)))
    (tmp_path / 'metric.log').mkdir()
    with refused('--benchmark_log_dir=', 'metric.log'):
        BenchmarkCNN(make_params(**SHORT, benchmark_log_dir=str(tmp_path)))
    with refused('--repeat=2', '--benchmark_log_dir=logs'):
        make_params(repeat=2, benchmark_log_dir='logs')


def test_a_disk_that_becomes_full_ends_the_run_and_the_rate_so_far_is_told(tmp_path: Path) -> None:
    err = io.StringIO()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Full after the numbers of three steps; benchmark_run.log is longer, and was written by then.
    steps = BenchmarkCNN(
        make_params(**SHORT, num_batches=30, display_every=1, benchmark_log_dir=str(tmp_path)),
        Console(io.StringIO(), err),
    ).steps()
    try:
        with failed(f'--benchmark_log_dir={tmp_path}', 'metric.log'):
            for step in steps:
                if step.phase.value == 'timed' and step.index == 3:
                    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / 'metric.log').stat().st_size + 9, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check_warning(err.getvalue(), 'incomplete', 'images/sec')
    # No half line.
    assert [row['global_step'] for row in lines_of(tmp_path / 'metric.log')] == [1, 1, 2, 2, 3, 3]


def test_a_test_id_without_a_log_has_no_effect() -> None:
    (line,) = find_idle(make_params(benchmark_test_id='a'), RunFacts(alone=True, residual=False))
    check_line(line, '--benchmark_test_id=a', '--benchmark_log_dir')
