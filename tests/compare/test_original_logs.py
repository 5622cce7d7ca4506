"""Logs of the original program, as they are found in the field, are read as results."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.outputs import refused
from tf_cnn.compare.original_logs import Log, read_log
from tf_cnn.compare.settings import non_default_settings, settings_of
from tf_cnn.results.console import IN_TF32

pytestmark = pytest.mark.unit

BANNER = """\
TensorFlow:  1.13
Model:       resnet50
Dataset:     imagenet (synthetic)
Mode:        BenchmarkMode.TRAIN
SingleSess:  False
Batch size:  128 global
             32 per device
Num batches: 100
Num epochs:  0.01
Devices:     ['/gpu:0', '/gpu:1']
NUMA bind:   False
Data format: NCHW
Optimizer:   sgd
Variables:   parameter_server
Sync:        True
==========
Generating training model
Running warm up
Done warm up
Step\tImg/sec\ttotal_loss
"""
RATES = (95.8, 95.2, 95.9, 95.5, 95.7, 95.6, 95.9, 95.8, 95.7, 95.8, 95.8)


def a_log(
    rates: tuple[float, ...] = RATES, total: float | None = 95.83, banner: str = BANNER
) -> str:
    numbers = [1, *range(10, 10 * len(rates), 10)][: len(rates)]
    lines = [
        f'{number}\timages/sec: {rate:.1f} +/- 0.1 (jitter = 0.4)\t7.427'
        for number, rate in zip(numbers, rates, strict=True)
    ]
    rule = '-' * 64
    end = [] if total is None else [rule, f'total images/sec: {total:.2f}', rule]
    return '\n'.join([banner.rstrip('\n'), *lines, *end, ''])


def one(text: str) -> Log:
    return read_log(text, 'run.log')


def test_a_log_of_the_original_is_read_as_a_result() -> None:
    record = one(a_log())
    assert record.is_complete
    assert (record.shape, record.images_per_second) == ('2*2', 95.83)
    expected = {
        'model': 'resnet50',
        'data_set': 'imagenet',
        'is_synthetic': True,
        'image_size': None,
    }
    assert record.workload == {**expected, 'role': 'training'}
    settings = settings_of(record)
    assert (settings['batch_size'], settings['data_format'], settings['device']) == (
        *(32, 'NCHW', 'gpu'),
    )
    assert record.machine['versions'] == {'tensorflow': '1.13'}
    assert dict(non_default_settings(record))['variable_update'] == 'parameter_server'


def test_what_this_program_adds_to_data_format_and_precision_is_read() -> None:
    assert 'tf32' not in settings_of(one(a_log()))
    added = BANNER.replace(
        'NCHW', 'NHWC (fp16 on GPUs of compute capability 8.0)\nPrecision:   fp16'
    )
    facts = settings_of(one(a_log(banner=added)))
    assert (facts['data_format'], facts['precision']) == ('NHWC', 'fp16')
    added = BANNER.replace('NCHW', f'NCHW (fp32 on GPUs)\nPrecision:   fp32{IN_TF32}')
    facts = settings_of(one(a_log(banner=added)))
    assert (facts['data_format'], facts['precision'], facts['tf32']) == ('NCHW', 'fp32', True)


def before_lines(prefix: str) -> Callable[[str], str]:
    return lambda text: ''.join(f'{prefix}{line}\n' for line in text.splitlines())


DECORATIONS: dict[str, Callable[[str], str]] = {
    'crlf': lambda text: text.replace('\n', '\r\n'),
    'progress': lambda text: text.replace('\n', '\r 10%|#\r'),
    'spaces': lambda text: text.replace('\t', '  '),
    'worker': before_lines('worker 0 | '),
    'mpirun': before_lines('[1,0]<stdout>:'),
    'absl': before_lines('I0504 10:00:00.123 140 benchmark_cnn.py:1824] '),
    'kubectl': before_lines('2019-05-04T10:00:00.123456789Z stdout F '),
    'pods': before_lines('[pod/bench-worker-0/tensorflow] '),
    'compose': before_lines('bench-1  | '),
    'ts': before_lines('May 04 10:00:00 '),
    'journalctl': before_lines('May 04 10:00:00 host7 python3[4711]: '),
    'srun': before_lines('0: '),
    'numbered': lambda text: ''.join(
        f'{number}:{line}\n' for number, line in enumerate(text.splitlines())
    ),
    'stderr': lambda text: text.replace(
        '\n', '\n2019-05-04 10:00:00: I tensorflow/core: 12 devices, 3 images\n'
    ),
    'lscpu': lambda text: f'CPU family:  6\nModel:       85\nModel name:  a processor\n{text}',
    'mixed ranks': lambda text: (
        'ps 0 | Running parameter server\n'
        + ''.join(
            f'worker {worker} | {line}\r\n' for line in text.splitlines() for worker in (0, 1)
        )
    ),
    'ranks in turn': lambda text: ''.join(
        before_lines(f'[1,{rank}]<stdout>:')(text) for rank in range(2)
    ),
}


@pytest.mark.parametrize('change', DECORATIONS.values(), ids=DECORATIONS)
def test_a_log_is_read_whatever_stands_around_its_lines(change: Callable[[str], str]) -> None:
    expected, found = one(a_log()), one(change(a_log()))
    assert found.workload == expected.workload
    assert non_default_settings(found) == non_default_settings(expected)
    assert found.images_per_second == expected.images_per_second
    assert found.shape == '2*2'


@pytest.mark.parametrize(
    ('mode', 'devices', 'shape', 'num_tasks'),
    [
        ('horovod', [f'horovod/gpu:{rank}' for rank in range(8)], '8*1', 8),
        ('distributed_all_reduce', [f'job:worker/task{rank}/gpu:0' for rank in range(2)], '2*1', 1),
        (
            'distributed_replicated',
            ['/job:worker/task:0/gpu:0', '/job:worker/task:0/gpu:1'],
            '2*2',
            2,
        ),
    ],
)
def test_the_devices_of_all_workers_are_told_from_those_of_one(
    mode: str, devices: list[str], shape: str, num_tasks: int
) -> None:
    banner = BANNER.replace("['/gpu:0', '/gpu:1']", str(devices)).replace('parameter_server', mode)
    banner = banner.replace(
        '128 global', f'{32 * 8 if mode == "horovod" else 64 if shape == "2*1" else 128} global'
    )
    assert one(a_log(banner=banner)).shape == shape
    # The tasks of one job print one result; more of them are several runs.
    tasks = [a_log(banner=banner.replace('task:0', f'task:{task}')) for task in range(num_tasks)]
    assert one(''.join(tasks)).images_per_second == 95.83
    with refused('run.log', '2 runs'):
        one(''.join([*tasks, *tasks[:1]]))
    with refused('run.log', '3 runs'):
        one(''.join(tasks * 3))


def without(*labels: str) -> str:
    return ''.join(f'{line}\n' for line in BANNER.splitlines() if not line.startswith(labels))


@pytest.mark.parametrize(
    ('first', 'second', 'facts'),
    [
        # Of a job with two workers, the output of one.
        (
            BANNER,
            BANNER.replace('parameter_server', 'distributed_replicated'),
            ['2 runs', 'distributed_replicated'],
        ),
        (
            BANNER,
            BANNER.replace('128', '256').replace('32 per', '64 per'),
            ['2 runs', '256 global'],
        ),
        (BANNER, BANNER.replace('sgd', 'momentum'), ['2 runs', 'Optimizer: sgd and momentum']),
        (BANNER, BANNER.replace('1.13', '1.15'), ['2 runs', 'TensorFlow: 1.13 and 1.15']),
        (
            BANNER.replace("'/gpu", "'/job:worker/task:1/gpu"),
            BANNER.replace("'/gpu", "'/job:worker/task:1/gpu"),
            ['2 runs'],
        ),
        # How many workers there are is not known.
        (without('Devices', 'Batch'), without('Devices', 'Batch'), ['2 runs']),
        (
            without('Devices'),
            without('Devices', 'Sync').replace('parameter_server', 'replicated'),
            ['2 runs'],
        ),
    ],
)
@pytest.mark.parametrize('of_first', [{}, {'total': None}, {'rates': (), 'total': None}])
def test_two_jobs_in_one_log_are_refused_with_their_number(
    first: str, second: str, facts: list[str], of_first: dict[str, Any]
) -> None:
    with refused('run.log', *facts):
        one(a_log(banner=first, **of_first) + a_log(banner=second, total=20.0))


@pytest.mark.parametrize('total', ['nan', 'inf', '-inf', 'NaN'])
def test_a_total_that_is_no_number_is_refused_and_not_left_out(total: str) -> None:
    with refused('run.log', f'total images/sec is {total}'):
        one(a_log(total=20.0) + f'total images/sec: {total}\n')
    assert one(f'total images/sec: {total}\ntotal images/sec: 20.00\n').images_per_second == 20.0


def test_a_log_has_one_run_a_total_alone_or_none() -> None:
    with refused('run.log', '2 runs'):
        one(a_log() + a_log(banner=BANNER.replace('resnet50', 'vgg16')))
    assert one('total images/sec: 95.83\n').images_per_second == 95.83
    record = one(a_log(total=None))
    assert not record.is_complete
    assert 'total' in str(record.reason)
    assert record.images_per_second == 95.8


def test_text_without_rates_is_refused() -> None:
    with refused('notes.txt'):
        read_log('Model: none\nnothing was measured\n', 'notes.txt')
