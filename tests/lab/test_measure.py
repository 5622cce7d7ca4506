"""The engine with a small program in place of the real one: rounds, failures, limits, interruption,
and what the same command continues.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.fake_runs import (
    FAKE,
    WITH_SIGINT,
    pids_in,
    sizes_in_log,
    use_fake_program,
    wait_for,
)
from tests.support.outputs import check_error, check_line, failed, refused
from tests.support.programs import (
    DEADLINE_SECS,
    PROGRAM,
    assert_ended,
    environment,
    run,
    run_main,
)
from tf_cnn.lab.configurations import Configuration
from tf_cnn.lab.measure import Laboratory
from tf_cnn.results.collection import Collection, collect
from tf_cnn.results.document import Result
from tf_cnn.system.limited_process import (
    ERROR,
    MEMORY,
    TIMEOUT,
    explain_exit,
    run_process,
    run_processes,
)

pytestmark = pytest.mark.distributed

SWEEP = ('sweep', '--grid=batch_size=1,2,3', '--output=out')
FLAGS = ('--', '--model=lenet', '--device=cpu')


def sweep(*words: str, code: int = 0) -> tuple[Collection, list[str]]:
    """Returns the contents of the folder, and the lines on standard error."""
    _, err = run_main(*SWEEP, *words, *FLAGS, code=code)
    return collect(['out/results']), err.splitlines()


def test_repeats_are_interleaved_and_each_leaves_a_document_and_a_log(monkeypatch):
    use_fake_program(monkeypatch)
    collection, lines = sweep('--repeats=4')
    sizes = sizes_in_log()
    assert sizes[:6] == [1, 2, 3, 3, 2, 1]
    assert sorted(sizes[6:9]) == sorted(sizes[9:]) == [1, 2, 3]
    assert len(collection.results) == 12
    assert {(run.run.batch_size, run.images_per_second) for run in collection.results} == {
        (size, 10 * size) for size in (1, 2, 3)
    }
    names = {f'{size}-{size}.{number}' for size in (1, 2, 3) for number in (1, 2, 3, 4)}
    for folder in ('results', 'logs'):
        assert {path.stem for path in Path('out', folder).iterdir()} == names
    log = Path('out/logs/2-2.1.log').read_text()
    assert 'total images/sec: 20.00' in log
    assert '"schema"' not in log
    check_line(lines[0], 'round 1', 'batch_size=1', '10.0 images/sec')
    check_line(lines[-1], 'out', '--output=out')
    # The folder's other files are no results, and no problems.
    assert not collect(['out']).problems


def test_two_runs_of_this_program_alternate(monkeypatch):
    use_fake_program(monkeypatch)
    runs = [f'--run=--model=lenet --batch_size={size}' for size in (8, 16)]
    out, err = run_main('compare', *runs, '--rounds=3', '--output=out', '--format=json', '--force')
    assert (sizes_in_log()[:4], len(sizes_in_log())) == ([8, 16, 16, 8], 6)
    [row] = json.loads(out)['rows']
    assert (row['ratio'], row['num_runs']) == (pytest.approx(2), 3)
    assert 'so far: ' in err
    # More rounds need only the runs that are missing.
    run_main('compare', *runs, '--rounds=4', '--output=out')
    assert len(sizes_in_log()) == 8


def test_a_run_that_fails_is_a_row_and_the_sweep_goes_on(monkeypatch):
    use_fake_program(monkeypatch, {'--batch_size=1': 'fail', '--batch_size=3': 'half'})
    out, _ = run_main(*SWEEP, '--repeats=2', '--format=json', *FLAGS, code=1)
    # Those that failed are not repeated.
    assert sizes_in_log() == [1, 2, 3, 2]
    failed_run, half = collect(['out']).failures
    assert failed_run.reason == 'the disk is on fire'
    check_line(half.reason, 'JSON')
    document = json.loads(Path('out/results/1-1.1.json').read_text())
    assert document['command']['given_flags']['batch_size'] == '--batch_size=1'
    assert (document['exit_code'], document['cluster']['shape']) == (1, '1*1')
    statuses = [row['status'] for row in json.loads(out)['rows']]
    assert statuses == ['complete', 'left out', 'left out']


def test_a_run_that_stopped_early_is_an_incomplete_result(monkeypatch):
    use_fake_program(
        monkeypatch, {'--batch_size=1': 'stop early', '--batch_size=2': 'stop when told'}
    )
    collection, _ = sweep('--timeout_secs=2', code=1)
    reasons = {run.run.batch_size: run.reason for run in collection.results}
    assert (reasons[1], reasons[3]) == ('the loss is nan', None)
    # Only the launcher knows why it told the run to stop.
    check_line(reasons[2], '--timeout_secs=2')
    assert not collection.failures


def test_a_run_above_its_time_is_ended_with_all_its_processes(monkeypatch):
    use_fake_program(monkeypatch, {'--batch_size=2': 'wait'})
    collection, _ = sweep('--timeout_secs=3', code=1)
    assert sizes_in_log() == [1, 2, 3]
    [failure] = collection.failures
    assert failure.cause == TIMEOUT
    check_line(failure.reason, '--timeout_secs=3')
    assert_ended(pids_in('waiting'))


@contextmanager
def sweeping(behaviours: Mapping[str, object], num_steps: int = 4) -> Iterator[subprocess.Popen]:
    """A process that sweeps with the small program; ends with the block."""
    code = (
        'import sys, tf_cnn.lab.configurations as c, tf_cnn_benchmarks as b\n'
        f'c.PROGRAM = {FAKE!r}; sys.exit(b.main({[*SWEEP, "--repeats=2", *FLAGS]!r}))'
    )
    with pytest.MonkeyPatch.context() as patch:
        use_fake_program(patch, behaviours, num_steps)
        variables = environment(PYTHONPATH=str(Path(PROGRAM[1]).parent))
        process = subprocess.Popen(
            [*WITH_SIGINT, sys.executable, '-c', code],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_sweep_that_was_killed_continues_with_what_is_missing():
    with sweeping({'--batch_size=3': 'wait'}) as process:
        # The run and its child, which has a session of its own.
        wait_for(lambda: len(pids_in('waiting')) == 2)
        _, err = run_main(*SWEEP, '--repeats=2', *FLAGS, code=2)
        check_error(err, 'out', 'another')
        process.kill()
        process.wait()
    assert_ended(pids_in('waiting'))
    assert sizes_in_log() == [1, 2, 3]
    # What a run had begun to write when the power failed.
    Path('out/results/.3-3.1.json').write_text('{"schema": "tf_cnn')
    with sweeping({}) as process:
        table, messages = process.communicate(timeout=DEADLINE_SECS)
    assert process.returncode == 0, messages
    assert Counter(sizes_in_log()) == {1: 2, 2: 2, 3: 3}
    assert len(collect(['out']).results) == 6
    # Only what was deleted is measured again.
    Path('out/results/2-2.1.json').unlink()
    with sweeping({}) as process:
        assert process.communicate(timeout=DEADLINE_SECS)[0] == table
    assert sizes_in_log()[7:] == [2]


@pytest.mark.skipif(os.geteuid() != 0, reason='mounting a small disk needs root')
def test_a_full_disk_ends_the_sweep_in_one_line_and_loses_nothing():
    disk = Path('out')
    disk.mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=3m', 'tmpfs', disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip('this machine mounts no small disk')
    try:
        with sweeping({'--batch_size=2': 'wait'}, num_steps=2000) as process:
            wait_for(lambda: len(pids_in('waiting')) == 2)
            process.send_signal(signal.SIGINT)
            process.wait()
        # There is room for two results, with their logs, and not for a third one.
        size = int(2.5 * Path('document.txt').stat().st_size)
        ballast = disk / 'ballast'
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - size))
        with sweeping({}, num_steps=2000) as process:
            _, messages = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == 1
        check_error(messages, 'out', 'No space left', '--output=out')
        whole = {path: path.read_bytes() for path in disk.glob('results/[!.]*')}
        assert 1 < len(whole) < 6
        ballast.unlink()
        with sweeping({}, num_steps=2000) as process:
            process.communicate(timeout=DEADLINE_SECS)
        assert {path: path.read_bytes() for path in whole} == whole
        assert len(collect(['out']).results) == 6
    finally:
        subprocess.run(['umount', disk], check=True)


def test_configurations_of_one_group_run_at_the_same_time(monkeypatch):
    use_fake_program(monkeypatch)
    laboratory = Laboratory(Path('out'))
    configurations = [
        Configuration(name, FAKE, together=group)
        for name, group in (('a', '1'), ('b', ''), ('c', '1'), ('d', ''))
    ]
    laboratory.create_or_resume(configurations)
    runs = [*laboratory.measure(configurations, 2)]
    assert [(configuration.name, number) for configuration, number, *_ in runs] == [
        *zip('acbddbac', [1] * 4 + [2] * 4, strict=True)
    ]
    assert all(isinstance(outcome, Result) for _, _, outcome, _ in runs)


def test_a_program_that_cannot_be_started_is_a_row_and_a_log_that_cannot_be_written_an_error(
    monkeypatch,
):
    use_fake_program(monkeypatch)
    laboratory = Laboratory(Path('out'))
    missing = Configuration('a', ['/missing'])
    laboratory.create_or_resume([missing])
    [(_, _, outcome, _)] = laboratory.measure([missing], 1)
    check_line(outcome.reason, '/missing', '127')
    # The row of a host names it.
    line = 'echo "n1 | tf_cnn_benchmarks: error: no room"; exit 3'
    on_host = Configuration('n1', ['sh', '-c', line], {'host': 'n1'})
    [(_, _, outcome, _)] = laboratory.measure([on_host], 1)
    assert outcome.reason == 'no room'
    laboratory.logs.rename('logs')
    laboratory.logs.touch()
    with failed(laboratory.logs):
        [*laboratory.measure([Configuration('b', FAKE)], 1)]


# ---- processes -----------------------------------------------------------------------------------


def test_a_process_that_ignores_sigterm_is_killed_with_its_descendants():
    stubborn = (
        'import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
        'print(subprocess.Popen(["sleep", "100"], start_new_session=True).pid, flush=True)\n'
        'while True: signal.pause()'
    )
    process = run_process((*FAKE[:-1], '-c', stubborn), Path('log'), 0.5, grace_secs=0.3)
    assert (process.exit_code, process.cause) == (137, TIMEOUT)
    assert_ended(pids_in('log'))


def test_processes_have_an_exit_code_and_a_log_each_and_slow_ones_are_stopped_together():
    # Each end of a pipe waits for the other one.
    os.mkfifo('pipe')
    lines = {'a': 'echo text > pipe', 'b': 'cat pipe; exit 3'}
    exits = run_processes({Path(name): ['sh', '-c', line] for name, line in lines.items()})
    assert [(each.exit_code, each.cause) for each in exits] == [(0, None), (3, ERROR)]
    assert Path('b').read_text() == 'text\n'
    # Each ends only after all have the signal.
    others = 'until [ $(ls | grep -c stopped) = 3 ]; do sleep 0.01; done; exit 5'
    line = f"trap 'touch stopped$$; {others}' TERM; while :; do sleep 0.05; done"
    commands = {Path(name): ['sh', '-c', line] for name in 'cde'} | {Path('f'): ['sh', '-c', ':']}
    *slow, fast = run_processes(commands, timeout_secs=0.5)
    assert {(each.exit_code, each.cause) for each in slow} == {(5, TIMEOUT)}
    assert (fast.exit_code, fast.cause) == (0, None)


def test_more_processes_than_open_files_are_refused_before_the_first_starts(monkeypatch):
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (40, 40))
    commands = {Path(f'{number}'): ['touch', f'started{number}'] for number in range(20)}
    with refused('20 processes', 'ulimit -n 52'):
        run_processes(commands)
    assert not [*Path().glob('started*')]


def test_a_failure_is_explained_by_the_output_of_the_run():
    start = 'tf_cnn_benchmarks: error: '
    for output, code, reason, cause in (
        (f'step\n{start}first\n{start}second\nmore\n', 1, 'second', ERROR),
        (f'ps 0 | {start}a\n{start}ps 0 ended\n', 1, 'ps 0: a', ERROR),
        (
            f'worker 1 | {start}no room\nworker 0 | {start}lost worker 1\n'
            f'{start}worker 1 ended with exit code 3; stopping worker 0\n',
            3,
            'worker 1: no room',
            ERROR,
        ),
        ('Traceback\nValueError: no\n', 1, 'it ended with exit code 1: ValueError: no', ERROR),
        (
            '[rank1]: ValueError: no\n[rank0]: E: lost\n==\n',
            1,
            'it ended with exit code 1: [rank1]: ValueError: no',
            ERROR,
        ),
        ('Root cause: 6\n====\n', 1, 'it ended with exit code 1: Root cause: 6', ERROR),
        ('', 3, 'it ended with exit code 3', ERROR),
        ('step\n', -11, 'ended by signal 11 (Segmentation fault)', ERROR),
        ('step\n', -9, 'ended by signal 9 (Killed)', MEMORY),
        ('x\nOOM when allocating tensor\ny\n', 1, 'OOM when allocating tensor', MEMORY),
        (f'{start}RESOURCE_EXHAUSTED: out\n', 1, 'RESOURCE_EXHAUSTED: out', MEMORY),
    ):
        assert explain_exit(output, code) == (reason, cause)


def test_real_runs_of_one_process_and_of_a_cluster():
    flags = '--model=trivial --device=cpu --batch_size=2 --num_batches=3 --num_warmup_batches=1'
    code, out, err = run(f'sweep --grid=--shape=1*1,1*1+1 --output=out --format=json -- {flags}')
    assert code == 0, err
    assert [row['setting']['shape'] for row in json.loads(out)['rows']] == ['1*1', '1*1+1']
