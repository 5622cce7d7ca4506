"""The result of a run, and the console lines that scripts parse; no result replaces another one
that the user still wants.
"""

import dataclasses
import io
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import check_line
from tests.support.sample_results import (
    partial_section,
    record_of,
    sample_document,
    untimed_document,
)
from tf_cnn.results import console
from tf_cnn.results.file_names import may_replace, names_in_order, numbered_path
from tf_cnn.results.result_file import file_version, write_new, write_result
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


# ---- files ---------------------------------------------------------------------------------------


TIMED, UNTIMED = (
    (json.dumps(document), record_of(document))
    for document in (sample_document(num_steps=4), untimed_document('early'))
)


def test_a_result_replaces_the_file_that_was_there_when_its_run_began(tmp_path):
    path, link = tmp_path / 'r.json', tmp_path / 'link.json'
    path.write_text('{}')
    link.symlink_to(path)
    for name in (str(path), str(link)):
        assert write_result(*TIMED, name, file_version(name)) == name
        assert path.read_text() == f'{TIMED[0]}\n'
        path.write_text('{}')
    assert link.is_symlink()


@pytest.mark.parametrize('content', [None, '{}'])
def test_runs_that_go_on_at_the_same_time_write_different_files(content, tmp_path):
    path = tmp_path / 'r.json'
    if content:
        path.write_text(content)
    version = file_version(str(path))
    starts, targets = threading.Barrier(8), list[str | None]()

    def run(number: int) -> None:
        starts.wait()
        targets.append(write_result(str(number), TIMED[1], str(path), version))

    threads = [threading.Thread(target=run, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = ['r.json', *(f'r.{number}.json' for number in range(2, 9))]
    assert {*targets} == {str(tmp_path / name) for name in names}
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert {int(file.read_text()) for file in tmp_path.iterdir()} == {*range(8)}


def test_a_result_without_timed_steps_never_replaces_one_that_has_some(tmp_path):
    path = tmp_path / 'r.json'
    for (text, result), content in (
        (UNTIMED, UNTIMED[0]),
        (TIMED, TIMED[0]),
        (UNTIMED, TIMED[0]),
        (TIMED, TIMED[0]),
    ):
        target = write_result(text, result, str(path), file_version(str(path)))
        assert target == (str(path) if text == content else None)
        assert path.read_text() == f'{content}\n'


def test_a_name_that_the_program_chooses_is_the_next_one_that_is_free(tmp_path):
    for path, *names in (
        ('d-t.json', 'd-t.json', 'd-t.2.json', 'd-t.3.json'),
        ('m-{run}.json', 'm-1.json', 'm-2.json', 'm-3.json'),
        ('{run}/t.json', '1/t.json', '2/t.json', '3/t.json'),
    ):
        targets = [write_result(*TIMED, f'{tmp_path}/{path}', None) for _ in names]
        assert targets == [f'{tmp_path}/{name}' for name in names]
        assert all(Path(target).read_text() == f'{TIMED[0]}\n' for target in targets if target)


def test_a_repeat_gets_its_own_number_or_the_next_free_one(tmp_path):
    path = numbered_path(f'{tmp_path}/r.json')
    assert [*itertools.islice(names_in_order(path, 3), 2)] == [
        f'{tmp_path}/r.3.json',
        f'{tmp_path}/r.4.json',
    ]
    targets = [write_new('{}', names_in_order(path, number)) for number in (2, 1, 1)]
    assert targets == [f'{tmp_path}/r.{number}.json' for number in (2, 1, 3)]


def test_a_name_without_the_time_or_the_number_of_a_run_is_the_users_choice():
    assert may_replace('{model}-{batch_size}.json')
    assert not any(map(may_replace, ('{date}.json', '{time}.json', 'a-{run}.json')))
