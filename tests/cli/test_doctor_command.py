"""The subcommand `doctor`: what it prints, its exit codes, and what becomes of processes that crash
or hang.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tf_cnn.cli import doctor
from tf_cnn.doctor.checks import OK, SKIPPED, WRONG
from tf_cnn.doctor.families import run_family

pytestmark = pytest.mark.distributed

ROOT = Path(doctor.__file__).resolve().parents[2]
PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), 'doctor')


def run_doctor(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *argv],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, **environ},
    )


def test_json_goes_to_standard_output_and_the_lines_to_standard_error() -> None:
    ran = run_doctor('--only=gpu', '--json', OMP_NUM_THREADS='4096', CUDA_VISIBLE_DEVICES='')
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    assert document['schema'] == 'tf_cnn_benchmarks.doctor'
    assert document['environment']['OMP_NUM_THREADS'] == '4096'
    assert document['machine']['num_cores'] == os.cpu_count()
    assert set(document['checks'][0]) == {'name', 'outcome', 'found', 'advice', 'figures'}
    first, *rows, last = ran.stderr.splitlines()
    assert (first, last.split()[:2]) == ('checking gpu ...', ['3', 'checks'])
    assert [row.split()[:2] for row in rows] == [
        [check['outcome'], check['name']] for check in document['checks']
    ]


def test_a_damaged_tensorflow_is_told_with_its_own_lines_and_the_rest_is_not_run(
    tmp_path: Path,
) -> None:
    (tmp_path / 'tensorflow').mkdir()
    (tmp_path / 'tensorflow' / '__init__.py').write_text(
        'raise ImportError("libstdc++.so.6: too old")'
    )
    ran = run_doctor('--only=tensorflow,placement,processes', PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1
    wrong, advice, *own, placement, processes, _ = ran.stdout.splitlines()
    assert wrong.startswith(WRONG)
    assert 'libstdc++.so.6: too old' in wrong
    assert 'install' in advice
    assert own[-1].endswith('ImportError: libstdc++.so.6: too old')
    assert [row.split()[:2] for row in (placement, processes)] == [
        [SKIPPED, 'placement'],
        [SKIPPED, 'processes'],
    ]


# ---- processes that fail -------------------------------------------------------------------------

PROCESS = """
import faulthandler, json, os, signal, sys, time
out = open(sys.argv[2], 'w')
def say(value): print(json.dumps(value), file=out, flush=True)
def fine(name): say({'name': name, 'outcome': 'ok', 'found': 'all is well'})
"""
THREE = "say(['x/a', 'x/b', 'x/c']); fine('x/a'); print('it begins', flush=True)\n"


@pytest.mark.parametrize(
    ('code', 'outcomes', 'facts'),
    [
        (f'{THREE}os.kill(os.getpid(), signal.SIGSEGV)', ['ok', 'wrong', 'skipped'], ['signal 11']),
        (
            f'{THREE}os.kill(os.getpid(), signal.SIGILL)',
            ['ok', 'wrong', 'skipped'],
            ['signal 4', 'processor'],
        ),
        (
            f"{THREE}out.write('{{\"na'); out.flush(); os._exit(7)",
            ['ok', 'wrong', 'skipped'],
            ['exit code 7'],
        ),
        (f'{THREE}os._exit(0)', ['ok', 'wrong', 'skipped'], ['ended early']),
        (f'{THREE}fine("x/b"); fine("x/c"); os.abort()', ['ok', 'ok', 'ok', 'wrong'], ['signal 6']),
        ('import nothing_of_this_name', ['wrong'], ['exit code 1', 'nothing_of_this_name']),
    ],
    ids=['crash', 'processor', 'exit', 'early', 'at the end', 'before the start'],
)
def test_the_check_under_way_is_wrong_and_those_after_it_are_not_run(
    tmp_path: Path, code: str, outcomes: list[str], facts: list[str]
) -> None:
    script = tmp_path / 'process.py'
    script.write_text(PROCESS + code)
    findings, log = run_family('x', 60, (sys.executable, str(script)))
    assert [finding.outcome for finding in findings] == outcomes
    (wrong,) = [finding for finding in findings if finding.outcome == WRONG]
    assert [fact for fact in facts if fact not in f'{wrong.found} {wrong.advice}'] == []
    assert log[0] == 'it begins' or 'Traceback' in log[0]


def test_a_process_that_hangs_ends_with_its_descendants(tmp_path: Path) -> None:
    script = tmp_path / 'process.py'
    script.write_text(
        f'{PROCESS}{THREE}import subprocess\n'
        f'child = subprocess.Popen(["sleep", "600"], start_new_session=True)\n'
        'print(child.pid, flush=True); signal.signal(signal.SIGTERM, signal.SIG_IGN); '
        'time.sleep(600)'
    )
    findings, log = run_family('x', 3, (sys.executable, str(script)))
    assert [finding.outcome for finding in findings] == [OK, WRONG, SKIPPED]
    assert (findings[1].name, '3 s' in findings[1].found) == ('x/b', True)
    deadline = time.monotonic() + 30
    while Path('/proc', log[1]).exists():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ('number', 'code', 'word'),
    [(signal.SIGINT, 130, 'interrupted'), (signal.SIGTERM, 143, 'SIGTERM')],
)
def test_after_an_interrupt_what_was_found_is_printed(
    number: signal.Signals, code: int, word: str
) -> None:
    command = [*PROGRAM, '--only=gpu,placement', '--json']
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stderr is not None
            while next(process.stderr) != 'checking placement ...\n':
                pass
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert {check['name'].partition('/')[0] for check in json.loads(out)['checks']} == {'gpu'}
    assert process.returncode == code
    check_line(err.splitlines()[-1], 'tf_cnn_benchmarks: error: ', word)


@pytest.mark.all_modes
def test_everything_that_runs_on_a_cpu_is_well() -> None:
    ran = run_doctor('--json', CUDA_VISIBLE_DEVICES='')
    outcomes = {check['name']: check['outcome'] for check in json.loads(ran.stdout)['checks']}
    assert (ran.returncode, [name for name, outcome in outcomes.items() if outcome == WRONG]) == (
        0,
        [],
    )
    names = (
        'tensorflow/devices',
        'placement/xring',
        'all_reduce/xring/bf16',
        'processes/collectives',
    )
    assert [outcomes[name] for name in names] == [OK] * 4
