"""Sweeps of a small program that takes the place of the real one: order, limits, failures, repeats,
batch sizes.
"""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line, failed
from tests.support.programs import assert_ended
from tests.sweep.fake_runs import FAKE, fake_runner, make_sweep, sizes_in
from tf_cnn.lab.folder import Folder, Outcome
from tf_cnn.results.collection import collect
from tf_cnn.results.document import Failure, Result
from tf_cnn.sweep.configurations import SweepPlan
from tf_cnn.sweep.run_plan import make_runs, run_with_progress
from tf_cnn.sweep.runner import InterleavedRuns, Runner, command_of_flags, describe_outcome
from tf_cnn.system.documents import as_json
from tf_cnn.system.limited_process import TIMEOUT, run_process, run_processes

pytestmark = pytest.mark.distributed

TWO_SIZES = '[grid]\nbatch_size = [1, 2]\n'
SIZES = '[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3]\n'


def run_all(plan: SweepPlan, folder: Folder, runner: Runner) -> list[Outcome]:
    """Makes the runs that are left; returns the first outcome of each configuration."""
    runs = make_runs(plan, folder, runner)
    for _ in runs.run():
        pass
    assert runs.num_remaining == 0
    return [runs.outcomes[configuration.id][0] for configuration in plan.configurations]


def sweep(
    tmp_path: Path, text: str, behaviours: Mapping[str, object], timeout_secs: float | None = None
) -> tuple[Folder, list[Outcome]]:
    plan, folder = make_sweep(tmp_path, text)
    return folder, run_all(plan, folder, fake_runner(tmp_path, behaviours, timeout_secs))


def test_repeats_are_interleaved_and_reported(tmp_path):
    plan, folder = make_sweep(tmp_path, f'repeats = 4\n{SIZES}')
    runs, progress = make_runs(plan, folder, fake_runner(tmp_path)), io.StringIO()
    run_with_progress(runs, progress)
    sizes = sizes_in(tmp_path)
    assert sizes[:6] == [1, 2, 3, 3, 2, 1]
    assert sorted(sizes[6:9]) == sorted(sizes[9:]) == [1, 2, 3]
    assert (runs.num_done, runs.num_remaining) == (12, 0)
    outcomes = runs.outcomes[plan.configurations[1].id]
    assert [describe_outcome(outcome) for outcome in outcomes] == ['20.0 images/sec'] * 4
    lines = progress.getvalue().splitlines()
    assert len(lines) == 12
    check_line(lines[1], 'batch_size=2 shape=1*1: 20.0 images/sec')
    check_line(lines[4], 'batch_size=2 shape=1*1 (repeat 2): 20.0 images/sec')


def test_the_next_configuration_has_a_caption(tmp_path):
    plan, folder = make_sweep(tmp_path, SIZES)
    runs = make_runs(plan, folder, fake_runner(tmp_path))
    captions = [runs.next_caption, *(runs.next_caption for _ in runs.run())]
    assert captions == [*(f'batch_size={size} shape=1*1' for size in (1, 2, 3)), '']


def test_each_run_leaves_a_result_and_a_log(tmp_path):
    folder, _ = sweep(tmp_path, f'repeats = 2\n{SIZES}', {})
    names = [f'{size}-{size}-1x1.{number}' for size in (1, 2, 3) for number in (1, 2)]
    assert sorted(path.stem for path in folder.results.iterdir()) == names
    assert sorted(path.stem for path in folder.logs.iterdir()) == names
    assert 'total images/sec: 20.00' in (folder.logs / '2-2-1x1.1.log').read_text()
    # The plan is no result, and no problem either.
    collection = collect([str(folder.path)])
    assert (len(collection.results), collection.failures, collection.problems) == (6, (), ())


def test_a_run_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path):
    text = 'repeats = 2\n[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3, 4, 5]\n'
    behaviours = {
        '--batch_size=1': 'fail',
        '--batch_size=2': 'die',
        '--batch_size=4': 'fail as a cluster',
    }
    folder, outcomes = sweep(tmp_path, text, behaviours)
    # Those that failed are not repeated.
    assert sizes_in(tmp_path) == [1, 2, 3, 4, 5, 5, 3]
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)]
    assert reasons == [
        'the disk is on fire',
        'ended by signal 11 (Segmentation fault)',
        'worker 1: no room here',
    ]
    document = json.loads((folder.results / '1-1-1x1.1.json').read_text())
    assert document == as_json(outcomes[0])
    assert document['command']['given_flags']['batch_size'] == '--batch_size=1'
    assert (document['exit_code'], document['cluster']['shape']) == (1, '1*1')
    assert [row.reason for row in collect([str(folder.results)]).failures] == reasons


def test_a_result_that_was_deleted_is_measured_again_and_no_other(tmp_path):
    plan, folder = make_sweep(tmp_path, f'repeats = 3\n{SIZES}')
    run_all(plan, folder, fake_runner(tmp_path))
    results = {path.name: path.read_text() for path in folder.results.iterdir()}
    (folder.results / '2-2-1x1.1.json').unlink()
    run_all(plan, folder, fake_runner(tmp_path))
    assert sizes_in(tmp_path)[9:] == [2]
    again = {path.name: path.read_text() for path in folder.results.iterdir()}
    assert {name for name, text in again.items() if results[name] != text} == {'2-2-1x1.1.json'}


def test_half_a_result_does_not_count(tmp_path):
    folder, outcomes = sweep(tmp_path, TWO_SIZES, {'': 'half'})
    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        check_line(outcome.reason, 'no result')
    assert [*folder.results.glob('.*')] == []


def test_a_run_that_stopped_early_is_kept_with_its_reason(tmp_path):
    _, (first, second) = sweep(tmp_path, TWO_SIZES, {'--batch_size=1': 'stop early'})
    assert isinstance(first, Result)
    assert first.reason == 'the loss is nan'
    assert isinstance(second, Result)
    assert second.is_complete


def test_a_run_above_its_time_is_ended_with_all_its_processes(tmp_path):
    _, (_, waiting, last) = sweep(tmp_path, SIZES, {'--batch_size=2': 'wait'}, timeout_secs=3)
    assert sizes_in(tmp_path) == [1, 2, 3]
    assert isinstance(waiting, Failure)
    assert waiting.cause == TIMEOUT
    check_line(waiting.reason, '--timeout_secs=3')
    assert isinstance(last, Result)
    assert_ended([int(line) for line in (tmp_path / 'log.txt.waiting').read_text().split()])


def test_the_steps_of_a_run_beyond_its_time_are_an_incomplete_result(tmp_path):
    behaviours = {'--batch_size=2': 'stop when told'}
    folder, (_, stopped) = sweep(tmp_path, TWO_SIZES, behaviours, timeout_secs=1)
    assert isinstance(stopped, Result)
    assert not stopped.is_complete
    check_line(stopped.reason, '--timeout_secs=1')
    assert stopped.step_seconds().size
    check_line(describe_outcome(stopped), 'failed', '--timeout_secs=1')
    collection = collect([str(folder.results)])
    assert [result.reason for result in collection.results if not result.is_complete] == [
        stopped.reason
    ]
    assert not collection.failures


def test_a_process_that_ignores_sigterm_is_killed_with_its_descendants(tmp_path):
    stubborn = (
        'import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
        'print(subprocess.Popen(["sleep", "100"], start_new_session=True).pid, flush=True)\n'
        'while True: signal.pause()'
    )
    argv = (*FAKE[:-1], '-c', stubborn)
    process = run_process(argv, tmp_path / 'log', 0.3, grace_secs=0.3)
    assert (process.exit_code, process.cause) == (137, TIMEOUT)
    assert_ended([int((tmp_path / 'log').read_text())])


@pytest.mark.surroundings
def test_commands_run_at_the_same_time_with_an_exit_code_and_a_log_each(tmp_path):
    # Each end of a pipe waits for the other one.
    os.mkfifo(pipe := tmp_path / 'pipe')
    commands = {'a': f'echo text > {quoted(pipe)}', 'b': f'cat {quoted(pipe)}; exit 3'}
    exits = run_processes({tmp_path / name: ['sh', '-c', line] for name, line in commands.items()})
    assert [(process.exit_code, process.cause) for process in exits] == [(0, None), (3, 'error')]
    assert (tmp_path / 'b').read_text() == 'text\n'


def test_a_command_that_takes_too_long_does_not_end_the_others(tmp_path):
    lines = ['trap "exit 5" TERM; while :; do sleep 0.05; done', 'exit 0']
    commands = {tmp_path / str(number): ['sh', '-c', line] for number, line in enumerate(lines)}
    slow, fast = run_processes(commands, timeout_secs=0.5)
    assert (slow.exit_code, slow.cause, fast.exit_code, fast.cause) == (5, TIMEOUT, 0, None)
    assert fast.seconds < 0.5 <= slow.seconds


def test_commands_that_take_too_long_are_stopped_together(tmp_path, monkeypatch):
    # Each ends only after all have the signal.
    others = 'until [ $(ls | grep -c stopped) = 3 ]; do sleep 0.01; done; exit 5'
    line = f"trap 'touch stopped$$; {others}' TERM; while :; do sleep 0.05; done"
    monkeypatch.chdir(tmp_path)
    commands = {tmp_path / str(number): ['sh', '-c', line] for number in range(3)}
    exits = run_processes(commands, timeout_secs=0.3)
    assert [process.exit_code for process in exits] == [5, 5, 5]


def test_the_commands_of_a_group_run_together_in_each_round(tmp_path):
    folder = Folder(tmp_path / 'out')
    folder.make_subfolders()
    commands = [
        replace(command_of_flags(name, ['--model=lenet']), group=group)
        for name, group in (('a', '1'), ('b', ''), ('c', '1'), ('d', ''))
    ]
    runs = InterleavedRuns(commands, 2, folder, fake_runner(tmp_path))
    assert runs.num_remaining == 8
    finished = [(run.command.name, run.round_number) for run in runs.run()]
    assert finished == [*zip('acbddbac', [1] * 4 + [2] * 4, strict=True)]
    assert all(isinstance(run, Result) for outcomes in runs.outcomes.values() for run in outcomes)


SEARCH = 'find_batch_size = true\n[grid]\nprecision = ["fp32", "bf16"]'


def test_a_search_ends_when_nothing_fits_or_a_try_fails(tmp_path):
    behaviours = {'--precision=fp32': 0, '--precision=bf16': 'fail'}
    _, (too_large, broken) = sweep(tmp_path, SEARCH, behaviours)
    assert sizes_in(tmp_path) == [32, 16, 8, 4, 2, 1, 32]
    check_line(too_large.reason, '--batch_size=1', 'OOM')
    check_line(broken.reason, '--batch_size=32', 'the disk is on fire')


def test_a_search_ends_when_a_try_stops_early(tmp_path):
    behaviours = {'--precision=fp32': 'stop early', '--precision=bf16': 0}
    folder, _ = sweep(tmp_path, SEARCH, behaviours)
    failures = collect([str(folder.results)]).failures
    assert len(failures) == 2
    assert any('the loss is nan' in failure.reason for failure in failures)


LARGEST = {'--precision=fp32': 37, '--precision=bf16': 70}


def batch_sizes(outcomes: list[Outcome]) -> list[int | None]:
    return [outcome.run.batch_size for outcome in outcomes if isinstance(outcome, Result)]


def test_the_largest_batch_size_is_found_and_its_tries_are_kept(tmp_path):
    folder, outcomes = sweep(tmp_path, SEARCH, LARGEST)
    assert sizes_in(tmp_path) == [32, 64, 48, 40, 36, 38, 37, 32, 64, 128, 96, 80, 72, 68, 70, 71]
    assert batch_sizes(outcomes) == [37, 70]
    assert len(list(folder.tries.iterdir())) == 16
    # The page of the sweep shows the largest sizes. The sizes that do not fit appear only if the
    # user names their folder.
    page = collect([str(folder.path)])
    assert batch_sizes([*page.results]) == [37, 70]
    assert page.failures == ()
    assert len(collect([str(folder.tries)]).failures) == 9


def test_an_interrupted_search_goes_on_from_the_sizes_that_were_tried(tmp_path):
    plan, folder = make_sweep(tmp_path, SEARCH.replace(', "bf16"', ''))
    program = fake_runner(tmp_path, LARGEST)
    run_all(plan, folder, program)
    run_all(plan, folder, program)
    assert sizes_in(tmp_path) == [32, 64, 48, 40, 36, 38, 37]
    name = plan.configurations[0].id
    (folder.results / f'{name}.1.json').unlink()
    (folder.tries / f'{name}.37.json').unlink()
    assert batch_sizes(run_all(plan, folder, program)) == [37]
    assert sizes_in(tmp_path)[7:] == [37]


def test_a_program_that_cannot_be_started_is_a_row(tmp_path):
    runner = Runner((str(tmp_path / 'missing'),))
    for outcome in run_all(*make_sweep(tmp_path, TWO_SIZES), runner):
        check_line(outcome.reason, 'missing', '127')


def test_a_log_that_cannot_be_written_is_an_error(tmp_path):
    plan, folder = make_sweep(tmp_path, TWO_SIZES)
    folder.logs.rmdir()
    folder.logs.touch()
    with failed(folder.logs):
        run_all(plan, folder, fake_runner(tmp_path))
