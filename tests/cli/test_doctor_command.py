"""The subcommand `doctor`: what it prints, its exit codes, and what becomes of processes that crash
or hang.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tests.support.programs import assert_ended, launched, run
from tf_cnn.doctor.families import run_family
from tf_cnn.machine.findings import OK, SKIPPED, WRONG, Finding

pytestmark = pytest.mark.distributed


def test_json_goes_to_standard_output_and_the_lines_to_standard_error():
    doctor = run('doctor --only=gpu --json', OMP_NUM_THREADS='4096', CUDA_VISIBLE_DEVICES='')
    assert doctor.code == 0
    document = json.loads(doctor.out)
    assert document['schema'] == 'tf_cnn_benchmarks.doctor'
    assert document['environment']['OMP_NUM_THREADS'] == '4096'
    assert document['machine']['num_cores'] == os.cpu_count()
    checks = document['checks']
    assert set(checks[0]) == {'name', 'outcome', 'found', 'advice', 'figures'}
    first, *rows, last = doctor.err.splitlines()
    assert (first, last.split()[:2]) == ('checking gpu ...', ['3', 'checks'])
    assert [row.split()[:2] for row in rows] == [
        [check['outcome'], check['name']] for check in checks
    ]


def test_a_damaged_tensorflow_is_reported_with_its_lines_and_later_checks_are_skipped(tmp_path):
    (tmp_path / 'tensorflow').mkdir()
    code = 'raise ImportError("libstdc++.so.6: too old")'
    (tmp_path / 'tensorflow' / '__init__.py').write_text(code)
    doctor = run('doctor --only=tensorflow,all_reduce', PYTHONPATH=str(tmp_path))
    assert doctor.code == 1
    wrong, advice, *import_lines, all_reduce, _ = doctor.out.splitlines()
    assert wrong.startswith(WRONG)
    assert 'libstdc++.so.6: too old' in wrong
    assert 'install' in advice
    assert import_lines[-1].endswith('ImportError: libstdc++.so.6: too old')
    assert all_reduce.split()[:2] == [SKIPPED, 'all_reduce']


# ---- processes that fail -------------------------------------------------------------------------


def run_checks(folder: Path, end: str, timeout_secs: float = 60) -> tuple[list[Finding], list[str]]:
    """Runs a process of three checks, which goes on with this code after the first one."""
    script = folder / 'process.py'
    script.write_text(f"""
import faulthandler, json, os, signal, subprocess, sys, time
out = open(sys.argv[2], 'w')
def say(value): print(json.dumps(value), file=out, flush=True)
def fine(name): say({{'name': name, 'outcome': 'ok', 'found': 'all is well'}})
say(['x/a', 'x/b', 'x/c']); fine('x/a'); print('it begins', flush=True)
{end}
""")
    findings, log = run_family('x', timeout_secs, (sys.executable, str(script)))
    assert log[0] == 'it begins'
    return list(findings), list(log)


def test_a_crash_makes_the_current_check_wrong_and_skips_the_next_ones(tmp_path):
    for end, outcomes, *facts in (
        ('os.kill(os.getpid(), signal.SIGSEGV)', [OK, WRONG, SKIPPED], 'signal 11'),
        ('os.kill(os.getpid(), signal.SIGILL)', [OK, WRONG, SKIPPED], 'signal 4', 'processor'),
        ("out.write('{\"na'); out.flush(); os._exit(7)", [OK, WRONG, SKIPPED], 'exit code 7'),
        ('os._exit(0)', [OK, WRONG, SKIPPED], 'ended early'),
        ('fine("x/b"); fine("x/c"); os.abort()', [OK, OK, OK, WRONG], 'signal 6'),
    ):
        findings, _ = run_checks(tmp_path, end)
        assert [finding.outcome for finding in findings] == outcomes, end
        (wrong,) = [finding for finding in findings if finding.outcome == WRONG]
        check_line(f'{wrong.found} {wrong.advice}', *facts)


def test_a_process_that_ends_before_its_first_check_is_wrong_with_its_traceback():
    command = (sys.executable, '-c', 'import nothing_of_this_name')
    (wrong,), log = run_family('x', 60, command)
    assert wrong.outcome == WRONG
    check_line(f'{wrong.found} {wrong.advice}', 'exit code 1', 'nothing_of_this_name')
    assert 'Traceback' in log[0]


def test_a_process_that_hangs_ends_with_its_descendants(tmp_path):
    hang = """
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    findings, log = run_checks(tmp_path, hang, timeout_secs=3)
    assert [finding.outcome for finding in findings] == [OK, WRONG, SKIPPED]
    check_line(f'{findings[1].name}: {findings[1].found}', 'x/b', '3 s')
    assert_ended([int(log[1])])


@pytest.mark.parametrize(
    ('number', 'code', 'word'),
    [(signal.SIGINT, 130, 'interrupted'), (signal.SIGTERM, 143, 'SIGTERM')],
)
def test_an_interrupt_prints_the_finished_checks(number, code, word, tmp_path):
    with launched('doctor --only=gpu,tensorflow --json', tmp_path) as process:
        process.await_line('^checking tensorflow')
        process.send(number)
        assert process.has_ended()
    assert {check['name'].partition('/')[0] for check in json.loads(process.out)['checks']} == {
        'gpu'
    }
    assert process.exit_code == code
    check_line(process.err.splitlines()[-1], 'tf_cnn_benchmarks: error: ', word)


def test_no_check_on_a_cpu_is_wrong():
    doctor = run('doctor --json', CUDA_VISIBLE_DEVICES='')
    assert doctor.code == 0
    outcomes = {check['name']: check['outcome'] for check in json.loads(doctor.out)['checks']}
    assert WRONG not in outcomes.values()
    assert outcomes['tensorflow/devices'] == OK
