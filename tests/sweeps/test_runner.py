"""Sweeps of a small program that takes the place of the real one: order, limits, failures, repeats, batch sizes."""

import io
import json
import time
from pathlib import Path

import pytest

from commands.sweep import runs_of, show_progress
from results.collection import collect
from results.document import Failure, Record, as_json
from sweeps.folder import Folder
from sweeps.limited_process import MEMORY, TIMEOUT, Limits, run_process
from sweeps.runner import Rounds, Starter, Turn, describe
from sweeps.search import Search
from tests.support.outputs import check_line, failed
from tests.support.sample_results import (
    FAKE,
    assert_ended,
    created,
    cut_off,
    plan_of,
    runs_in,
    sample_document,
    sizes_in,
    starter,
)

pytestmark = pytest.mark.distributed

SIZES = '[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3]\n'


def made(runs: Rounds | Search) -> list[Turn]:
    """Makes the runs that are left."""
    return [*runs.run()]


def test_repeats_are_interleaved_and_each_result_is_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'repeats = 4\n' + SIZES)
    folder = created(tmp_path, plan)
    sweep = runs_of(plan, folder, starter(tmp_path))
    said = io.StringIO()
    show_progress(sweep, said)
    sizes = sizes_in(tmp_path)
    assert sizes[:6] == [1, 2, 3, 3, 2, 1]
    assert [sorted(sizes[start : start + 3]) for start in (6, 9)] == [[1, 2, 3], [1, 2, 3]]
    assert (sweep.num_done, sweep.num_left) == (12, 0)
    assert [describe(found) for found in sweep.outcomes[plan.configurations[1].id]] == ['20.0 images/sec'] * 4
    assert sorted(path.name for path in folder.results.iterdir()) == sorted(
        f'{one.id}.{number}.json' for one in plan.configurations for number in range(1, 5)
    )
    assert {path.stem for path in folder.logs.iterdir()} == {path.stem for path in folder.results.iterdir()}
    assert 'total images/sec: 20.00' in (folder.logs / '2-2-1x1.1.log').read_text()
    # The plan is no result, and no problem either.
    found = collect([str(folder.path)])
    assert (len(found.records), found.failures, found.problems) == (12, (), ())
    lines = said.getvalue().splitlines()
    assert len(lines) == 12
    check_line(lines[1], 'batch_size=2 shape=1*1: 20.0 images/sec')
    check_line(lines[4], 'batch_size=2 shape=1*1 (repeat 2): 20.0 images/sec')


def test_a_run_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    text = 'repeats = 2\n[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3, 4, 5]\n'
    plan = plan_of(tmp_path, text)
    folder = created(tmp_path, plan)
    behaviours = {'--batch_size=1': 'fail', '--batch_size=2': 'die', '--batch_size=4': 'fail as a cluster'}
    sweep = runs_of(plan, folder, starter(tmp_path, plan, behaviours))
    made(sweep)
    # Those that failed are not repeated.
    assert sizes_in(tmp_path) == [1, 2, 3, 4, 5, 5, 3]
    found = {one.batch_size: sweep.outcomes[one.id][0] for one in plan.configurations}
    assert {size: outcome.reason for size, outcome in found.items() if isinstance(outcome, Failure)} == {
        1: 'the disk is on fire',
        2: 'ended by signal 11 (Segmentation fault)',
        4: 'worker 1: no room here',
    }
    document = json.loads((folder.results / '1-1-1x1.1.json').read_text())
    assert document == as_json(found[1])
    assert document['command']['given']['batch_size'] == '--batch_size=1'
    assert (document['exit_code'], document['cluster']['shape']) == (1, '1*1')
    assert [row.reason for row in collect([str(folder.results)]).failures] == [found[size].reason for size in (1, 2, 4)]
    assert (sweep.num_left, [type(found[size]) for size in (3, 5)]) == (0, [Record, Record])


def test_a_result_that_was_deleted_is_measured_again_and_no_other(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'repeats = 3\n' + SIZES)
    folder = created(tmp_path, plan)
    made(runs_of(plan, folder, starter(tmp_path)))
    kept = {path.name: path.read_text() for path in folder.results.iterdir()}
    del kept['2-2-1x1.1.json']
    (folder.results / '2-2-1x1.1.json').unlink()
    sweep = runs_of(plan, folder, starter(tmp_path))
    assert isinstance(sweep, Rounds)
    assert [contestant.caption for contestant, _ in sweep.left()] == ['batch_size=2 shape=1*1']
    made(sweep)
    assert sizes_in(tmp_path)[9:] == [2]
    assert {name: (folder.results / name).read_text() for name in kept} == kept
    assert len(list(folder.results.iterdir())) == 9


def test_half_a_result_does_not_count(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    folder = created(tmp_path, plan)
    sweep = runs_of(plan, folder, starter(tmp_path, plan, {'': 'half'}))
    made(sweep)
    for found in sweep.outcomes.values():
        assert isinstance(found[0], Failure)
        check_line(found[0].reason, 'no result')
    assert [path.name for path in folder.results.glob('.*')] == []


def test_a_run_that_stopped_early_is_kept_with_its_reason(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    folder = created(tmp_path, plan)
    document = tmp_path / 'document.txt'
    program = starter(tmp_path, plan)
    document.write_text(json.dumps(sample_document(**cut_off('the loss is nan'))))
    # The process writes its incomplete document and fails.
    fails = (*FAKE[:-1], '-c', f'exec(open({FAKE[-1]!r}).read()); import sys; sys.exit(1)')
    sweep = runs_of(plan, folder, Starter(fails, program.environment))
    made(sweep)
    for found in sweep.outcomes.values():
        assert isinstance(found[0], Record)
        assert found[0].reason == 'the loss is nan'


def test_a_run_that_takes_too_long_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'timeout_secs = 3\n' + SIZES)
    folder = created(tmp_path, plan)
    sweep = runs_of(plan, folder, starter(tmp_path, plan, {'--batch_size=2': 'wait'}))
    made(sweep)
    assert sizes_in(tmp_path) == [1, 2, 3]
    found = sweep.outcomes[plan.configurations[1].id][0]
    check_line(found.reason, '--timeout_secs=3')
    assert isinstance(found, Failure)
    assert found.cause == TIMEOUT


def test_what_a_run_measured_until_its_time_was_over_is_kept_as_incomplete(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'timeout_secs = 1\n[grid]\nbatch_size = [1, 2]\n')
    folder = created(tmp_path, plan)
    sweep = runs_of(plan, folder, starter(tmp_path, plan, {'--batch_size=2': 'stop when told'}))
    made(sweep)
    (found,) = sweep.outcomes[plan.configurations[1].id]
    assert isinstance(found, Record)
    assert not found.is_complete
    check_line(found.reason, '--timeout_secs=1')
    assert found.step_seconds().size
    check_line(describe(found), 'failed', '--timeout_secs=1')
    kept = collect([str(folder.results)])
    assert [record.reason for record in kept.records if not record.is_complete] == [found.reason]
    assert not kept.failures


def test_a_run_that_needs_too_much_memory_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'memory_limit = "100MiB"\n' + SIZES)
    folder = created(tmp_path, plan)
    sweep = runs_of(plan, folder, starter(tmp_path, plan, {'--batch_size=2': 'grow'}))
    made(sweep)
    assert sizes_in(tmp_path) == [1, 2, 3]
    found = sweep.outcomes[plan.configurations[1].id][0]
    check_line(found.reason, '--memory_limit=100MiB')
    assert isinstance(found, Failure)
    assert found.cause == MEMORY
    assert isinstance(sweep.outcomes[plan.configurations[2].id][0], Record)


def test_what_ignores_sigterm_is_killed_with_what_it_started(tmp_path: Path) -> None:
    stubborn = (
        'import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
        'print(subprocess.Popen(["sleep", "100"], start_new_session=True).pid, flush=True)\n'
        'while True: signal.pause()'
    )
    start = time.monotonic()
    argv = (*FAKE[:-1], '-c', stubborn)
    ended = run_process(argv, tmp_path / 'log', Limits(timeout_secs=0.3), grace_secs=0.3)
    assert (ended.exit_code, ended.cause) == (137, TIMEOUT)
    assert time.monotonic() - start < 10
    assert_ended([int((tmp_path / 'log').read_text())])


def test_a_try_that_stopped_early_ends_the_search_with_a_failure_that_can_be_read(tmp_path: Path) -> None:
    text = 'find_batch_size = true\nmemory_limit = "1GiB"\n[grid]\nprecision = ["fp32", "bf16"]'
    plan = plan_of(tmp_path, text)
    folder = created(tmp_path, plan)
    search = runs_of(plan, folder, starter(tmp_path, plan, {'--precision=fp32': 'stop early', '--precision=bf16': 0}))
    made(search)
    failures = collect([str(folder.results)]).failures
    assert len(failures) == 2
    assert any('the loss is nan' in failure.reason for failure in failures)


def test_the_largest_batch_size_is_found_and_its_tries_are_kept(tmp_path: Path) -> None:
    text = (
        'find_batch_size = true\nmemory_limit = "1GiB"\n[flags]\nmodel = "lenet"\n[grid]\nprecision = ["fp32", "bf16"]'
    )
    plan = plan_of(tmp_path, text)
    folder = created(tmp_path, plan)
    program = starter(tmp_path, plan, {'--precision=fp32': 37, '--precision=bf16': 70})
    search = runs_of(plan, folder, program)
    made(search)
    assert sizes_in(tmp_path) == [32, 64, 48, 40, 36, 38, 37, 32, 64, 128, 96, 80, 72, 68, 70, 71]
    found = [search.outcomes[one.id][0] for one in plan.configurations]
    assert [outcome.run.batch_size for outcome in found if isinstance(outcome, Record)] == [37, 70]
    assert len(list(folder.tries.iterdir())) == 16
    # The page of the sweep shows what was looked for, not the sizes that do not fit; who names their folder gets them.
    page = collect([str(folder.path)])
    assert ([record.run.batch_size for record in page.records], page.failures) == ([37, 70], ())
    assert len(collect([str(folder.tries)]).failures) == 9
    assert '--num_batches=3' in runs_in(tmp_path)[0]
    # Both are there already: nothing runs.
    again = runs_of(plan, folder, program)
    assert (again.num_done, again.num_left) == (2, 0)
    # An interrupted search goes on from the sizes that were tried.
    (folder.results / f'{plan.configurations[0].id}.1.json').unlink()
    (folder.tries / f'{plan.configurations[0].id}.37.json').unlink()
    again = runs_of(plan, folder, program)
    made(again)
    assert sizes_in(tmp_path)[16:] == [37]
    (first,) = again.outcomes[plan.configurations[0].id]
    assert isinstance(first, Record)
    assert first.run.batch_size == 37


def test_a_search_ends_when_nothing_fits_or_something_else_fails(tmp_path: Path) -> None:
    text = 'find_batch_size = true\nmemory_limit = "1GiB"\n[grid]\nprecision = ["fp32", "bf16"]'
    plan = plan_of(tmp_path, text)
    program = starter(tmp_path, plan, {'--precision=fp32': 0, '--precision=bf16': 'fail'})
    search = runs_of(plan, created(tmp_path, plan), program)
    made(search)
    assert sizes_in(tmp_path) == [32, 16, 8, 4, 2, 1, 32]
    reasons = [search.outcomes[one.id][0].reason for one in plan.configurations]
    check_line(reasons[0], '--batch_size=1', 'OOM')
    check_line(reasons[1], '--batch_size=32', 'the disk is on fire')


def test_a_program_that_cannot_be_started_is_a_row(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    sweep = runs_of(plan, created(tmp_path, plan), Starter((str(tmp_path / 'missing'),)))
    made(sweep)
    for found in sweep.outcomes.values():
        check_line(found[0].reason, 'missing', '127')


def test_a_log_that_cannot_be_written_ends_the_sweep(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    folder = created(tmp_path, plan)
    folder.logs.rmdir()
    folder.logs.write_text('a file')
    with failed(folder.logs):
        made(runs_of(plan, Folder(folder.path), starter(tmp_path)))
