"""Sweeps of a small program that takes the place of the real one: order, limits, failures, repeats,
batch sizes.
"""

import io
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.outputs import check_line, failed
from tests.support.sample_results import (
    FAKE,
    assert_ended,
    created,
    cut_off,
    plan_of,
    sample_document,
    sizes_in,
    starter,
)
from tf_cnn.results.collection import collect
from tf_cnn.results.document import Failure, Result, as_json
from tf_cnn.sweep.folder import Folder, Outcome
from tf_cnn.sweep.run_plan import make_runs, run_with_progress
from tf_cnn.sweep.runner import InterleavedRuns, Runner, describe_outcome
from tf_cnn.sweep.search import BatchSizeSearch
from tf_cnn.system.limited_process import TIMEOUT, run_process

pytestmark = pytest.mark.distributed

SIZES = '[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3]\n'


def made(runs: InterleavedRuns | BatchSizeSearch) -> InterleavedRuns | BatchSizeSearch:
    """Makes the runs that are left."""
    for _ in runs.run():
        pass
    return runs


def swept(
    tmp_path: Path, text: str, behaviours: Mapping[str, object] | None = None
) -> tuple[Folder, InterleavedRuns | BatchSizeSearch, list[Outcome]]:
    """Makes all runs of a plan; returns the folder, the runs, and the first outcome of each
    configuration.
    """
    plan = plan_of(tmp_path, text)
    folder = created(tmp_path, plan)
    sweep = made(make_runs(plan, folder, starter(tmp_path, plan, behaviours)))
    return folder, sweep, [runs[0] for runs in sweep.outcomes.values()]


def test_repeats_are_interleaved_and_each_result_is_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'repeats = 4\n' + SIZES)
    folder = created(tmp_path, plan)
    sweep = make_runs(plan, folder, starter(tmp_path))
    said = io.StringIO()
    run_with_progress(sweep, said)
    sizes = sizes_in(tmp_path)
    assert sizes[:6] == [1, 2, 3, 3, 2, 1]
    assert [sorted(sizes[start : start + 3]) for start in (6, 9)] == [[1, 2, 3], [1, 2, 3]]
    assert (sweep.num_done, sweep.num_remaining) == (12, 0)
    assert [describe_outcome(found) for found in sweep.outcomes[plan.configurations[1].id]] == [
        '20.0 images/sec'
    ] * 4
    assert sorted(path.name for path in folder.results.iterdir()) == sorted(
        f'{one.id}.{number}.json' for one in plan.configurations for number in range(1, 5)
    )
    assert {path.stem for path in folder.logs.iterdir()} == {
        path.stem for path in folder.results.iterdir()
    }
    assert 'total images/sec: 20.00' in (folder.logs / '2-2-1x1.1.log').read_text()
    # The plan is no result, and no problem either.
    found = collect([str(folder.path)])
    assert (len(found.results), found.failures, found.problems) == (12, (), ())
    lines = said.getvalue().splitlines()
    assert len(lines) == 12
    check_line(lines[1], 'batch_size=2 shape=1*1: 20.0 images/sec')
    check_line(lines[4], 'batch_size=2 shape=1*1 (repeat 2): 20.0 images/sec')


def test_a_run_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    text = 'repeats = 2\n[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3, 4, 5]\n'
    behaviours = {
        '--batch_size=1': 'fail',
        '--batch_size=2': 'die',
        '--batch_size=4': 'fail as a cluster',
    }
    folder, sweep, found = swept(tmp_path, text, behaviours)
    # Those that failed are not repeated.
    assert sizes_in(tmp_path) == [1, 2, 3, 4, 5, 5, 3]
    assert [isinstance(outcome, Failure) for outcome in found] == [True, True, False, True, False]
    reasons = [outcome.reason for outcome in found if isinstance(outcome, Failure)]
    assert reasons == [
        'the disk is on fire',
        'ended by signal 11 (Segmentation fault)',
        'worker 1: no room here',
    ]
    document = json.loads((folder.results / '1-1-1x1.1.json').read_text())
    assert document == as_json(found[0])
    assert document['command']['given_flags']['batch_size'] == '--batch_size=1'
    assert (document['exit_code'], document['cluster']['shape']) == (1, '1*1')
    assert [row.reason for row in collect([str(folder.results)]).failures] == reasons
    assert sweep.num_remaining == 0


def test_a_result_that_was_deleted_is_measured_again_and_no_other(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'repeats = 3\n' + SIZES)
    folder = created(tmp_path, plan)
    made(make_runs(plan, folder, starter(tmp_path)))
    kept = {path.name: path.read_text() for path in folder.results.iterdir()}
    del kept['2-2-1x1.1.json']
    (folder.results / '2-2-1x1.1.json').unlink()
    sweep = make_runs(plan, folder, starter(tmp_path))
    assert isinstance(sweep, InterleavedRuns)
    assert [command.caption for command, _ in sweep.remaining_runs()] == ['batch_size=2 shape=1*1']
    made(sweep)
    assert sizes_in(tmp_path)[9:] == [2]
    assert {name: (folder.results / name).read_text() for name in kept} == kept
    assert len(list(folder.results.iterdir())) == 9


def test_half_a_result_does_not_count(tmp_path: Path) -> None:
    folder, _, found = swept(tmp_path, '[grid]\nbatch_size = [1, 2]\n', {'': 'half'})
    for outcome in found:
        assert isinstance(outcome, Failure)
        check_line(outcome.reason, 'no result')
    assert [path.name for path in folder.results.glob('.*')] == []


def test_a_run_that_stopped_early_is_kept_with_its_reason(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    folder = created(tmp_path, plan)
    document = tmp_path / 'document.txt'
    program = starter(tmp_path, plan)
    document.write_text(json.dumps(sample_document(**cut_off('the loss is nan'))))
    # The process writes its incomplete document and fails.
    fails = (*FAKE[:-1], '-c', f'exec(open({FAKE[-1]!r}).read()); import sys; sys.exit(1)')
    sweep = made(make_runs(plan, folder, Runner(fails, program.environment)))
    for found in sweep.outcomes.values():
        assert isinstance(found[0], Result)
        assert found[0].reason == 'the loss is nan'


def test_a_run_above_its_time_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    _, _, (_, found, last) = swept(
        tmp_path, f'timeout_secs = 3\n{SIZES}', {'--batch_size=2': 'wait'}
    )
    assert sizes_in(tmp_path) == [1, 2, 3]
    check_line(found.reason, '--timeout_secs=3')
    assert isinstance(found, Failure)
    assert found.cause == TIMEOUT
    assert isinstance(last, Result)


def test_what_a_run_measured_until_its_time_was_over_is_kept_as_incomplete(tmp_path: Path) -> None:
    text = 'timeout_secs = 1\n[grid]\nbatch_size = [1, 2]\n'
    folder, _, (_, found) = swept(tmp_path, text, {'--batch_size=2': 'stop when told'})
    assert isinstance(found, Result)
    assert not found.is_complete
    check_line(found.reason, '--timeout_secs=1')
    assert found.step_seconds().size
    check_line(describe_outcome(found), 'failed', '--timeout_secs=1')
    kept = collect([str(folder.results)])
    assert [result.reason for result in kept.results if not result.is_complete] == [found.reason]
    assert not kept.failures


def test_what_ignores_sigterm_is_killed_with_what_it_started(tmp_path: Path) -> None:
    stubborn = (
        'import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
        'print(subprocess.Popen(["sleep", "100"], start_new_session=True).pid, flush=True)\n'
        'while True: signal.pause()'
    )
    start = time.monotonic()
    argv = (*FAKE[:-1], '-c', stubborn)
    ended = run_process(argv, tmp_path / 'log', 0.3, grace_secs=0.3)
    assert (ended.exit_code, ended.cause) == (137, TIMEOUT)
    assert time.monotonic() - start < 10
    assert_ended([int((tmp_path / 'log').read_text())])


SEARCH = 'find_batch_size = true\n[grid]\nprecision = ["fp32", "bf16"]'


def test_a_search_ends_when_nothing_fits_or_a_try_fails_or_stops_early(tmp_path: Path) -> None:
    _, _, found = swept(tmp_path, SEARCH, {'--precision=fp32': 0, '--precision=bf16': 'fail'})
    assert sizes_in(tmp_path) == [32, 16, 8, 4, 2, 1, 32]
    check_line(found[0].reason, '--batch_size=1', 'OOM')
    check_line(found[1].reason, '--batch_size=32', 'the disk is on fire')
    (tmp_path / 'other').mkdir()
    folder, _, _ = swept(
        tmp_path / 'other', SEARCH, {'--precision=fp32': 'stop early', '--precision=bf16': 0}
    )
    failures = collect([str(folder.results)]).failures
    assert len(failures) == 2
    assert any('the loss is nan' in failure.reason for failure in failures)


def test_the_largest_batch_size_is_found_and_its_tries_are_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SEARCH.replace('[grid]', '[flags]\nmodel = "lenet"\n[grid]'))
    folder = created(tmp_path, plan)
    program = starter(tmp_path, plan, {'--precision=fp32': 37, '--precision=bf16': 70})
    search = made(make_runs(plan, folder, program))
    assert sizes_in(tmp_path) == [32, 64, 48, 40, 36, 38, 37, 32, 64, 128, 96, 80, 72, 68, 70, 71]
    found = [search.outcomes[one.id][0] for one in plan.configurations]
    assert [outcome.run.batch_size for outcome in found if isinstance(outcome, Result)] == [37, 70]
    assert len(list(folder.tries.iterdir())) == 16
    # The page of the sweep shows what was looked for, not the sizes that do not fit; who names
    # their folder gets them.
    page = collect([str(folder.path)])
    assert ([result.run.batch_size for result in page.results], page.failures) == ([37, 70], ())
    assert len(collect([str(folder.tries)]).failures) == 9
    # Both are there already: nothing runs.
    again = make_runs(plan, folder, program)
    assert (again.num_done, again.num_remaining) == (2, 0)
    # An interrupted search goes on from the sizes that were tried.
    (folder.results / f'{plan.configurations[0].id}.1.json').unlink()
    (folder.tries / f'{plan.configurations[0].id}.37.json').unlink()
    again = made(make_runs(plan, folder, program))
    assert sizes_in(tmp_path)[16:] == [37]
    (first,) = again.outcomes[plan.configurations[0].id]
    assert isinstance(first, Result)
    assert first.run.batch_size == 37


def test_a_program_that_cannot_be_started_is_a_row_and_a_log_that_cannot_be_written_is_an_error(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    folder = created(tmp_path, plan)
    sweep = made(make_runs(plan, folder, Runner((str(tmp_path / 'missing'),))))
    for found in sweep.outcomes.values():
        check_line(found[0].reason, 'missing', '127')
    shutil.rmtree(folder.path)
    folder.create_for_plan(plan)
    folder.logs.rmdir()
    folder.logs.write_text('a file')
    with failed(folder.logs):
        made(make_runs(plan, folder, starter(tmp_path)))
