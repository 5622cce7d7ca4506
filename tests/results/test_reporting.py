"""Statistics held against the standard library, the result of a run, and the console lines that scripts parse."""

import dataclasses
import io
import math
import re
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors import format_error, format_warning
from params import Params
from results import console
from results.result import Cause, Result, Step, StepValues
from results.sections import NO_TRANSFER, Phase, RunSection, Transfer, with_unknowns
from results.statistics import Rate, jitter, standard_error, step_rates, summarize, throughput
from tests.support.outputs import check_line

pytestmark = pytest.mark.unit

RATES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=50)


def test_rates_are_summarized_as_by_hand() -> None:
    # 10 images in 1, 2 and 5 seconds: 10, 5 and 2 images/sec. Mean 17/3, median 5, deviations from it 5, 0, 3.
    rate = summarize(10, [1, 2, 5])
    assert rate.images_per_second == 30 / 8
    assert rate.standard_error == pytest.approx(
        math.sqrt(((10 - 17 / 3) ** 2 + (5 - 17 / 3) ** 2 + (2 - 17 / 3) ** 2) / 2) / math.sqrt(3)
    )
    assert rate.jitter == pytest.approx(1.4826 * 3)


def test_a_moving_average_counts_the_last_steps_most() -> None:
    rate = summarize(10, [1, 2, 5])
    # Each step has half of the weight of the next one: 1/4, 1/2 and 1, together 7/4.
    mean = (1 / 4 + 2 / 2 + 5) / (7 / 4)
    averaged = summarize(10, [1, 2, 5], 0.5)
    assert averaged.images_per_second == pytest.approx(10 / mean)
    assert dataclasses.replace(averaged, images_per_second=rate.images_per_second) == rate
    assert summarize(10, [1, 2, 5], 1).images_per_second == 2
    assert summarize(10, [1, 2, 5], 0) == rate


def test_one_step_has_no_spread() -> None:
    assert summarize(10, [4]) == Rate(2.5, 0.0, 0.0)


@given(RATES)
def test_the_standard_error_is_that_of_the_standard_library(rates: list[float]) -> None:
    assert standard_error(rates) == pytest.approx(statistics.stdev(rates) / math.sqrt(len(rates)), rel=1e-6, abs=1e-9)


@given(RATES)
def test_the_jitter_is_that_of_the_standard_library(rates: list[float]) -> None:
    middle = statistics.median(rates)
    expected = 1.4826 * statistics.median([abs(rate - middle) for rate in rates])
    assert jitter(rates) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_jitter_of_normal_rates_is_their_standard_deviation() -> None:
    rates = np.random.default_rng(1).normal(100, 3, 200_000)
    assert jitter(rates) == pytest.approx(3, rel=0.01)


@given(st.integers(1, 1000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50))
def test_throughput_is_the_harmonic_mean_of_the_rates(images: int, seconds: list[float]) -> None:
    mean = statistics.harmonic_mean(step_rates(images, seconds).tolist())
    assert summarize(images, seconds).images_per_second == pytest.approx(mean)


def test_no_seconds_have_no_throughput() -> None:
    assert math.isnan(throughput(0, 0.0))


def a_result(*, together: bool = True, **changes: Any) -> Result:
    timed = [
        Step(Phase.TIMED, 1, 1.0, StepValues(7.0, steps_before=1, steps_after=2), start=50.0),
        Step(Phase.TIMED, 2, 3.0, StepValues(7.0, steps_before=2, steps_after=3), start=52.0),
    ]
    result = Result(
        params=Params(),
        model='resnet50',
        run=with_unknowns(
            RunSection,
            data_set='imagenet',
            is_synthetic=True,
            data_format='NHWC',
            batch_size=8,
            devices=['/cpu:0', '/cpu:1'],
            together=together,
        ),
        tensorflow_version='2.21.0',
        steps=(Step(Phase.WARMUP, 1, 50.0, StepValues(7.5)), *timed),
        complete=True,
    )
    return dataclasses.replace(result, **changes)


def test_a_result_counts_timed_steps_only_and_keeps_the_others() -> None:
    result = a_result()
    assert [step.phase for step in result.steps] == [Phase.WARMUP, Phase.TIMED, Phase.TIMED]
    assert [step.index for step in result.timed_steps] == [1, 2]
    assert (result.step_seconds, result.wall_seconds) == (4.0, 5.0)
    assert result.images == 32
    assert result.rate.images_per_second == 8.0
    assert result.images_per_second == 6.4


def test_evaluations_are_the_only_time_between_steps_that_the_total_leaves_out() -> None:
    pause = {Cause.EVALUATION: 0.5, Cause.CHECKPOINT: 0.25, Cause.OTHER: 0.25}
    # What lies before the first timed step and after the last one counts nowhere.
    between = ({Cause.CHECKPOINT: 9.0}, pause, {Cause.EVALUATION: 7.0})
    result = a_result(between=between)
    assert result.between_seconds == pause
    assert result.wall_seconds == 4.5
    # Workers that do not wait for each other train while the chief evaluates.
    assert a_result(between=between, together=False).wall_seconds == 5.0


def test_the_total_of_workers_that_do_not_wait_counts_the_global_steps_in_the_time_of_one() -> None:
    result = a_result(num_workers=2, together=False)
    timed = [
        dataclasses.replace(step, values=StepValues(7.0, steps_before=before, steps_after=after))
        for step, before, after in zip(result.timed_steps, (5, 8), (7, 12), strict=True)
    ]
    assert dataclasses.replace(result, steps=tuple(timed)).images == (12 - 5) * 16


def test_a_result_counts_the_images_of_all_workers() -> None:
    result = a_result(num_workers=3)
    assert result.global_batch_size == 48
    assert result.images_per_second == pytest.approx(19.2)


def test_a_result_without_timed_steps_has_no_rate() -> None:
    assert math.isnan(a_result(steps=a_result().steps[:1], complete=False).images_per_second)


def test_the_banner_has_its_lines_without_those_that_say_nothing() -> None:
    lines = [('Batch size', '128 global'), ('', '64 per device'), ('Input', ''), ('Sync', False), ('GPUs', '8 x one')]
    assert console.format_banner(lines) == '\n'.join(
        [
            'Batch size:  128 global',
            '             64 per device',
            'Sync:        False',
            'GPUs:        8 x one',
            '==========',
        ]
    )


@pytest.mark.parametrize('num_workers', [1, 2])
def test_the_banner_of_a_cluster_shows_the_bytes_of_each_server_and_of_a_step(num_workers: int) -> None:
    assert console.transfer_lines(Transfer((1_000_000, 2_340_000), 6_680_000), num_workers) == [
        ('Workers', num_workers),
        ('On ps 0', '1.0 MB'),
        ('On ps 1', '2.3 MB'),
        ('Step moves', '6.7 MB'),
    ]
    assert console.transfer_lines(NO_TRANSFER, 1) == []


def test_the_header_and_a_step_line() -> None:
    assert console.format_step_header() == 'Step\tImg/sec\ttotal_loss'
    line = console.format_step(100, Rate(95.83, 0.04, 0.42), StepValues(7.4271))
    assert line == '100\timages/sec: 95.8 +/- 0.0 (jitter = 0.4)\t7.427'


def test_the_header_and_a_step_line_with_accuracy() -> None:
    assert console.format_step_header('base_loss', with_accuracy=True) == (
        'Step\tImg/sec\tbase_loss\ttop_1_accuracy\ttop_5_accuracy'
    )
    line = console.format_step(1, Rate(1234.56, 1.25, 10.0), StepValues(0.5, 0.0, 1.0))
    assert line == '1\timages/sec: 1234.6 +/- 1.2 (jitter = 10.0)\t0.500\t0.000\t1.000'


def test_a_loss_that_is_not_finite_is_shown_as_it_is() -> None:
    assert console.format_step(1, Rate(1.0, 0.0, 0.0), StepValues(math.nan)).endswith('\tnan')


def test_the_total_is_the_line_that_scripts_look_for() -> None:
    text = console.format_total(12345.678)
    dashes = '-' * 64
    assert text == f'{dashes}\ntotal images/sec: 12345.68\n{dashes}'
    assert re.findall(r'^total images/sec: ([\d.]+)$', text, re.MULTILINE) == ['12345.68']


def test_errors_and_warnings_are_one_line() -> None:
    assert format_error('a\n  b') == 'tf_cnn_benchmarks: error: a b'
    assert format_error('a\x1b[2Jé') == r'tf_cnn_benchmarks: error: a\x1b[2Jé'
    assert format_warning('a\n  b') == 'tf_cnn_benchmarks: warning: a b'
    check_line(console.format_incomplete(3, '100 steps', 12.5, None), '3', '100', '12.50 images/sec')


class Flushes(io.StringIO):
    """Remembers what had been written when it was flushed last."""

    seen = ''

    def flush(self) -> None:
        self.seen = self.getvalue()


def test_results_and_messages_go_to_their_streams_at_once() -> None:
    out, err = Flushes(), Flushes()
    shown = console.Console(out, err)
    shown.result('total')
    assert (out.seen, err.seen) == ('total\n', '')
    shown.progress('Building')
    shown.warning('odd')
    assert out.seen == 'total\n'
    assert err.seen == 'Building\ntf_cnn_benchmarks: warning: odd\n'


def test_a_console_without_streams_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    silent = console.Console()
    silent.result('a')
    silent.progress('b')
    silent.warning('c')
    assert capfd.readouterr() == ('', '')
