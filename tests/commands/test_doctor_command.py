"""The subcommand `doctor`: what it prints, its exit codes, and how it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import doctor
import tf_cnn_benchmarks
from doctor.check_table import CHECKS
from tests.support.outputs import check_line
from tests.support.programs import terminal

pytestmark = pytest.mark.distributed

ROOT = Path(tf_cnn_benchmarks.__file__).parent
PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), 'doctor')
SCHEMA = json.loads((Path(doctor.__file__).parent / 'report.schema.json').read_text())


def run_doctor(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *argv], capture_output=True, text=True, cwd=ROOT, timeout=300, env={**os.environ, **environ}
    )


def document_of(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        (['--only=host/corse'], ['--only=host/corse', 'host/cores']),
        (['--only=host/cores, host/laod,gpu'], ['--only=', "'host/laod'", 'host/load']),
        (['--only=host/cores,'], ['--only=host/cores,', "''", '--list']),
        (['--only=resnet50', '--quick'], ['--only=resnet50', '--quick']),
        (['--device=tpu'], ['--device=tpu', 'cpu', 'gpu']),
        (['--time_limit=0'], ['--time_limit=0']),
        (['host'], ['host', '--only']),
        (['--jsn'], ['--jsn', '--json']),
    ],
)
def test_wrong_use_is_refused(capsys: pytest.CaptureFixture[str], argv: list[str], facts: list[str]) -> None:
    assert tf_cnn_benchmarks.main(['doctor', *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    check_line(err, *facts)


def test_the_checks_are_listed_in_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert tf_cnn_benchmarks.main(['doctor', '--list']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [check.name for check in CHECKS]
    assert tf_cnn_benchmarks.main(['doctor', '--list', '--json', '--only=host/cores']) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed['name'] == 'host/cores'


def test_a_part_of_the_checks_runs_without_tensorflow_and_is_a_table() -> None:
    ran = run_doctor('--only=host/cores,host/memory,gpu/architecture', '--device=cpu')
    assert ran.returncode == 0
    assert ran.stderr.splitlines() == ['check 1 of 2: host/cores', 'check 2 of 2: host/memory']
    words = [line.split() for line in ran.stdout.splitlines() if line.strip()]
    assert words[0][:2] == ['verdict', 'check']
    assert [row[1] for row in words[2:-1] if row[0] in ('ok', 'warning')] == ['host/cores', 'host/memory']
    assert ['skipped', 'gpu/architecture', '--device=cpu'] in words
    assert words[-1][:2] == ['2', 'checks']


def test_what_is_wrong_is_looked_at_again_under_the_same_flags() -> None:
    ran = run_doctor('--only=host/load', '--device=cpu', '--time_limit=0.01')
    assert ran.returncode == 1
    again = ran.stdout.splitlines()[-1]
    assert again.endswith('doctor --only=host/load --device=cpu --time_limit=0.01 --json')


def test_json_goes_to_standard_output_and_the_table_to_standard_error() -> None:
    ran = run_doctor('--only=host/cores', '--json', OMP_NUM_THREADS='4096')
    document = document_of(ran)
    (check,) = document['checks']
    assert (check['name'], check['outcome'], check['advice']) == ('host/cores', 'warning', 'unset OMP_NUM_THREADS')
    assert check['figures']['threads_of_environment'] == {'OMP_NUM_THREADS': 4096}
    assert (document['complete'], document['exit_code'], ran.returncode) == (True, 0, 0)
    assert document['environment']['OMP_NUM_THREADS'] == '4096'
    assert 'host/cores' in ran.stderr
    assert 'unset OMP_NUM_THREADS' in ran.stderr


@pytest.mark.skipif(any(Path('/dev').glob('nvidia[0-9]*')), reason='it has a GPU')
def test_a_gpu_that_was_asked_for_and_is_not_there_is_wrong() -> None:
    ran = run_doctor('--only=gpu/architecture', '--device=gpu', '--json')
    devices, architecture = document_of(ran)['checks']
    assert (devices['name'], devices['outcome']) == ('tensorflow/devices', 'wrong')
    assert devices['figures']['num_gpus'] == 0
    assert (architecture['name'], architecture['outcome']) == ('gpu/architecture', 'skipped')
    assert ran.returncode == 1


@contextlib.contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*PROGRAM, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def hang_up_ends() -> Iterator[None]:
    """SIGHUP is ignored where the tests run under nohup, and processes inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures('hang_up_ends')
@pytest.mark.parametrize(
    ('number', 'code', 'word'),
    [(signal.SIGINT, 130, 'interrupted'), (signal.SIGTERM, 143, 'SIGTERM'), (signal.SIGHUP, 129, 'SIGHUP')],
)
def test_after_an_interrupt_what_was_found_is_printed(number: signal.Signals, code: int, word: str) -> None:
    with started('--only=host/cores,host/load', '--json') as process:
        assert process.stderr is not None
        assert next(process.stderr) == 'check 1 of 2: host/cores\n'
        assert next(process.stderr) == 'check 2 of 2: host/load\n'
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert [check['name'] for check in document['checks']] == ['host/cores']
    assert document['complete'] is False
    assert process.returncode == code
    check_line(err.splitlines()[-1], 'tf_cnn_benchmarks: error: ', word)


def test_a_terminal_shows_what_is_being_checked_and_then_the_table() -> None:
    with terminal([*PROGRAM, '--only=host/load'], cwd=ROOT) as screen:
        screen.read(until='1 of 1: host/load')
        screen.read(until=None)
        shown = '\n'.join(screen.lines)
    assert 'host/load' in shown
    assert '1 of 1' not in shown
    assert shown.rstrip().splitlines()[-1].startswith('1 check in ')


@pytest.mark.all_modes
def test_everything_that_runs_on_a_cpu_is_well() -> None:
    ran = run_doctor('--device=cpu', '--json')
    document = document_of(ran)
    assert [check for check in document['checks'] if check['outcome'] == 'wrong'] == []
    assert ran.returncode == 0
    figures = {check['name']: check['figures'] for check in document['checks']}
    assert figures['resnet50/cpu/fp32']['images_per_second'] > 0
    assert figures['host/matrix_products']['gflops_per_second']['fp32'] > 0
    assert figures['host/memory_bandwidth']['copy_gb_per_second'] > 0
    assert figures['real_data/cpu']['images_per_second'] > 0
