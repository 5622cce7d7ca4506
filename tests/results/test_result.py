"""The result of a run, and the console lines that scripts parse."""

import dataclasses
import io
from typing import Any

import pytest

from tests.support.outputs import check_line
from tests.support.sample_results import partial_section
from tf_cnn.results import console
from tf_cnn.results.sections import NO_TRANSFER, Phase, RunSection, TransferSection
from tf_cnn.results.steps import PauseCause, Step, StepLog, StepValues
from tf_cnn.system.errors import format_error, format_warning

pytestmark = pytest.mark.unit


def measured(*, is_synchronous: bool = True, **changes: Any) -> StepLog:
    """A warm-up step of 50 s, and two timed ones of 1 s and 3 s with a pause of 1 s between."""
    run = partial_section(
        RunSection,
        devices=['/cpu:0', '/cpu:1'],
        images_per_step=16,
        has_synchronous_workers=is_synchronous,
    )
    steps = (
        Step(Phase.WARMUP, 1, 50.0, StepValues(7.5)),
        Step(Phase.TIMED, 1, 1.0, StepValues(7.0, steps_before=5, steps_after=7), start=50.0),
        Step(Phase.TIMED, 2, 3.0, StepValues(7.0, steps_before=8, steps_after=12), start=52.0),
    )
    return dataclasses.replace(StepLog(run, steps), **changes)


def test_only_timed_steps_count_and_the_others_are_kept():
    step_log, rates = measured(), measured().throughput
    assert step_log.steps_section().phase == [Phase.WARMUP, Phase.TIMED, Phase.TIMED]
    assert [step.index for step in step_log.timed_steps] == [1, 2]
    assert (rates.step_seconds, rates.wall_seconds, rates.images) == (4.0, 5.0, 32)
    assert (rates.images_per_second_of_steps, rates.images_per_second) == (8.0, 6.4)
    assert measured(steps=step_log.steps[:1]).throughput.images_per_second is None


def test_evaluations_are_the_only_time_between_steps_that_the_total_leaves_out():
    pause = {PauseCause.EVALUATION: 0.5, PauseCause.CHECKPOINT: 0.25, PauseCause.OTHER: 0.25}
    # Time before the first timed step and after the last one does not count.
    between = ({PauseCause.CHECKPOINT: 9.0}, pause, {PauseCause.EVALUATION: 7.0})
    step_log = measured(between=between)
    assert step_log.between_seconds == pause
    assert step_log.throughput.wall_seconds == 4.5
    # Workers that do not wait for each other train while the chief evaluates.
    assert measured(between=between, is_synchronous=False).throughput.wall_seconds == 5.0


def test_the_total_of_several_workers_counts_the_global_steps_in_the_time_of_one():
    rates = measured(num_workers=3).throughput
    assert (rates.images, rates.images_per_second) == ((12 - 5) * 16, pytest.approx(22.4))
    assert rates.images_per_second_per_device == pytest.approx(22.4 / 6)
    assert measured(num_workers=3, cluster_total=(70, 7.0)).throughput.images_per_second == 10


def test_the_banner_omits_empty_lines():
    lines = [('Batch size', '128 global'), ('', '64 per device'), ('Input', ''), ('Sync', False)]
    assert console.format_banner(lines).split('\n') == [
        'Batch size:  128 global',
        '             64 per device',
        'Sync:        False',
        '==========',
    ]


def test_the_banner_of_a_cluster_shows_the_bytes_of_each_server_and_of_a_step():
    servers, step = [('On ps 0', '1 MB'), ('On ps 1', '2.34 kB')], ('Step moves', '1.37 GB')
    transfer = TransferSection((999_999, 2_340), 1_366_800_000)
    for num_workers in (1, 2):
        lines = console.transfer_lines(transfer, num_workers)
        assert lines == [('Workers', num_workers), *servers, step]
    assert console.transfer_lines(NO_TRANSFER, 1) == []


def test_errors_and_warnings_are_one_line():
    assert format_error('a\n  b') == 'tf_cnn_benchmarks: error: a b'
    assert format_error('a\x1b[2Jé') == r'tf_cnn_benchmarks: error: a\x1b[2Jé'
    assert format_warning('a\n  b') == 'tf_cnn_benchmarks: warning: a b'
    line = console.format_incomplete(3, '100 steps', 12.5, None)
    check_line(line, '3', '100', '12.50 images/sec')


class Flushes(io.StringIO):
    """Remembers the text at the last flush."""

    flushed_text = ''

    def flush(self) -> None:
        self.flushed_text = self.getvalue()


def test_results_and_messages_go_to_their_streams_at_once(capfd):
    out, err = Flushes(), Flushes()
    for output in (console.Console(out, err), console.Console()):
        output.result('total')
        output.progress('Building')
        output.note('odd')
    assert (out.flushed_text, err.flushed_text) == ('total\n', 'Building\nodd\n')
    # Without streams a console is silent.
    assert capfd.readouterr() == ('', '')
