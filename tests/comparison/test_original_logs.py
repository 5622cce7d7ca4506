"""Logs of the original program, as they are found in the field, are read as results."""

from collections.abc import Callable

import pytest

from comparison.original_logs import read_logs
from comparison.ratios import Clock, compare, estimate
from results.console import IN_TF32
from results.document import Record
from tests.support.outputs import refused

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


def a_log(rates: tuple[float, ...] = RATES, total: float | None = 95.83, banner: str = BANNER) -> str:
    numbers = [1, *range(10, 10 * len(rates), 10)][: len(rates)]
    lines = [
        f'{number}\timages/sec: {rate:.1f} +/- 0.1 (jitter = 0.4)\t7.427'
        for number, rate in zip(numbers, rates, strict=True)
    ]
    rule = '-' * 64
    end = [] if total is None else [rule, f'total images/sec: {total:.2f}', rule]
    return '\n'.join([banner.rstrip('\n'), *lines, *end, ''])


def one(text: str) -> Record:
    (record,) = read_logs(text, 'run.log')
    return record


def test_a_log_of_the_original_is_read_as_a_result() -> None:
    record = one(a_log())
    assert record.is_complete
    assert (record.model, record.shape, record.images_per_second) == ('resnet50', '2*2', 95.83)
    expected = {'model': 'resnet50', 'data_set': 'imagenet', 'is_synthetic': True, 'image_size': None}
    assert record.work == {**expected, 'role': 'training'}
    assert record.run['batch_size'] == 32
    assert record.run['data_format'] == 'NCHW'
    assert record.run['device'] == 'gpu'
    assert record.document['throughput']['jitter'] == 0.4
    assert record.machine['versions'] == {'tensorflow': '1.13'}
    assert dict(record.setting)['variable_update'] == 'parameter_server'


def test_what_this_program_adds_to_data_format_and_precision_is_read() -> None:
    assert 'tf32' not in one(a_log()).facts
    added = BANNER.replace('NCHW', 'NHWC (fp16 on GPUs of compute capability 8.0)\nPrecision:   fp16')
    assert (one(a_log(banner=added)).run['data_format'], one(a_log(banner=added)).run['precision']) == ('NHWC', 'fp16')
    added = BANNER.replace('NCHW', f'NCHW (fp32 on GPUs)\nPrecision:   fp32{IN_TF32}')
    facts = one(a_log(banner=added)).facts
    assert (facts['data_format'], facts['precision'], facts['tf32']) == ('NCHW', 'fp32', True)


def test_the_seconds_between_step_lines_are_reconstructed() -> None:
    record = one(a_log())
    seconds = record.step_seconds()
    assert seconds.size == 10
    assert seconds[0] == pytest.approx(10 * 128 / 95.2)
    assert seconds.sum() == pytest.approx(100 * 128 / 95.8)
    assert record.wall_seconds() == pytest.approx(seconds)
    assert record.document['steps_per_value'] == 10
    found = estimate([record])
    assert found.images_per_second == 95.83
    assert found.interval
    assert compare(found, found, None).value == 1


@pytest.mark.parametrize(
    'change',
    [
        lambda text: text.replace('\n', '\r\n'),
        lambda text: text.replace('\t', '  '),
        lambda text: ''.join(f'worker 0 | {line}\n' for line in text.splitlines()),
        lambda text: ''.join(f'[1,0]<stdout>:{line}\n' for line in text.splitlines()),
        lambda text: ''.join(f'I0504 10:00:00.123 140 benchmark_cnn.py:1824] {line}\n' for line in text.splitlines()),
        lambda text: text.replace('\n', '\n2019-05-04 10:00:00: I tensorflow/core: 12 devices, 3 images\n'),
        lambda text: f'\x1b[32m{text}\x1b[0m',
        lambda text: (
            'ps 0 | Running parameter server\n'
            + ''.join(f'worker {worker} | {line}\r\n' for line in text.splitlines() for worker in (0, 1))
        ),
    ],
    ids=['crlf', 'spaces', 'worker', 'mpirun', 'absl', 'stderr', 'colours', 'cluster'],
)
def test_a_log_is_read_whatever_stands_around_its_lines(change: Callable[[str], str]) -> None:
    expected, found = one(a_log()), one(change(a_log()))
    assert found.work == expected.work
    assert found.setting == expected.setting
    assert found.images_per_second == expected.images_per_second
    assert found.step_seconds().tolist() == expected.step_seconds().tolist()


def test_the_spread_of_steps_is_that_of_the_printed_error() -> None:
    assert estimate([one(a_log())]).step_spread == pytest.approx(0.1 * 10 / 95.8)


def test_several_runs_in_one_log_are_several_results() -> None:
    first, second = read_logs(a_log() + a_log(total=90.0), 'both.log')
    assert (first.source, second.source) == ('both.log (run 1)', 'both.log (run 2)')
    assert (first.images_per_second, second.images_per_second) == (95.83, 90.0)
    assert first.document['id'] != second.document['id']


@pytest.mark.parametrize(
    'text', [a_log(rates=(95.8, 95.8)), a_log(rates=(), total=95.83), 'total images/sec: 95.83\n', a_log(RATES[:4])]
)
def test_a_log_with_too_few_lines_has_a_rate_but_no_interval(text: str) -> None:
    record = one(text)
    found = estimate([record], Clock.WALL)
    assert (found.images_per_second, found.interval) == (95.83, None)
    assert [warning['code'] for warning in record.warnings] == ['too_little_for_an_interval']


def test_a_log_without_its_total_is_incomplete() -> None:
    record = one(a_log(total=None))
    assert not record.is_complete
    assert 'total' in str(record.reason)
    assert record.images_per_second == 95.8


def test_rates_too_coarse_for_seconds_leave_no_interval() -> None:
    # 9 * 10 steps at 0.1 images/sec took as long as 100 steps at 0.2.
    assert estimate([one(a_log(rates=(0.1,) * 10 + (0.2,)))]).interval is None


def test_text_without_rates_is_refused() -> None:
    with refused('notes.txt'):
        read_logs('Model: none\nnothing was measured\n', 'notes.txt')
