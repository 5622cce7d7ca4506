"""The part of `cluster --hosts` on another host: it runs a process there, and ends it."""

import io
import json
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.outputs import check_line, failed
from tests.support.programs import ROOT
from tf_cnn.launch.hosts import Command
from tf_cnn.launch.launcher import launch
from tf_cnn.launch.remote import line_mark, versions
from tf_cnn.launch.ssh import SshHost, SshTarget, prepare_hosts

pytestmark = pytest.mark.distributed

TOKEN = '1234abcd'
MARK = line_mark(TOKEN)
LAYOUT = {'somewhere': [('ps', 0), ('worker', 0)]}


def start(
    folder: Path | str, *words: str, env: dict[str, str] | None = None
) -> 'subprocess.Popen[str]':
    """Starts a command as the launcher does by ssh."""
    pipe = subprocess.PIPE
    command = [sys.executable, '-m', 'tf_cnn.launch.remote', TOKEN, 'run', str(folder), '', *words]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)


@pytest.mark.parametrize(('folder', 'place'), [('here', 'here'), ('no such folder', 'home')])
def test_a_remote_process_runs_in_the_working_folder_else_at_home(folder, place, tmp_path):
    (tmp_path / 'here').mkdir()
    (tmp_path / 'home').mkdir()
    env = {'HOME': str(tmp_path / 'home'), 'PATH': '/usr/bin:/bin'}
    words = ('A=1', '--', 'sh', '-c', 'pwd; echo $A; exit 3')
    with start(tmp_path / folder, *words, env=env) as remote:
        assert remote.stdout
        lines = remote.stdout.read().splitlines()
    assert [line for line in lines if not line.startswith(MARK)] == [str(tmp_path / place), '1']
    assert lines[-1] == f'{MARK}exit 3'


@pytest.mark.parametrize(('text', 'code'), [('', -15), ('\n10\n', -10), ('\n9\n', -9)])
def test_a_remote_process_ends_with_its_input_or_by_a_signal_from_it(text, code):
    with start('/', '--', 'sleep', '100') as remote:
        assert remote.stdin
        assert remote.stdout
        assert remote.stdout.readline() == f'{MARK}ready\n'
        pid = int(remote.stdout.readline().removeprefix(f'{MARK}process '))
        remote.stdin.write(text)
        remote.stdin.flush()
        if not text:
            remote.stdin.close()
        assert remote.stdout.readline() == f'{MARK}exit {code}\n'
        assert not psutil.pid_exists(pid)


def target_with(script: str, folder: Path, python: str = sys.executable) -> SshTarget:
    """Returns a target with this shell script as its ssh."""
    ssh = folder / 'ssh'
    ssh.write_text(f'#!/bin/sh\n{script}')
    ssh.chmod(0o700)
    return SshTarget((str(ssh),), python, str(ROOT), str(folder), TOKEN)


# What a login script may print, such as the lines of another start, then what ssh does.
LIKE_SSH = rf"""
printf 'welcome\n{line_mark('5678')}{{}}\n{line_mark('5678')}exit 0\n{{"unfinished": 1}}'
for command; do :; done
exec sh -c "$command"
"""


def over_ssh(script: str, folder: Path, ssh: str = LIKE_SSH, **target: str) -> tuple[int, str, str]:
    """Launches a shell script as a remote process; returns exit code, output and errors."""
    host = SshHost('somewhere', target_with(ssh, folder, **target))
    out, err = io.StringIO(), io.StringIO()
    command = Command('worker 0', ['sh', '-c', script], {}, has_result=True, host=host)
    return launch([command], out=out, err=err), out.getvalue(), err.getvalue()


@pytest.mark.parametrize('address', ['127.0.0.9', socket.gethostbyname(platform.node())])
def test_text_of_a_login_script_is_not_part_of_any_output(address, tmp_path, monkeypatch):
    # srun sets no such variable, and the name of the node leads to it.
    monkeypatch.setenv('SSH_CONNECTION', f'127.0.0.8 1 {address} 22' * (address == '127.0.0.9'))
    tasks = prepare_hosts(LAYOUT, target_with(LIKE_SSH, tmp_path), 0, [])
    assert [task.name for task in tasks] == ['ps 0', 'worker 0']
    assert {task.address.partition(':')[0] for task in tasks} == {address}
    assert over_ssh('echo result', tmp_path)[:2] == (0, 'result\n')


@pytest.mark.parametrize('ssh', ['exit 0', f'echo "{line_mark("")}exit 0"', LIKE_SSH])
def test_no_result_is_a_failure_even_with_exit_code_0(ssh, tmp_path):
    code, out, err = over_ssh('exit 0', tmp_path, ssh)
    assert (code, out) == (1, '')
    check_line(err.splitlines()[-1], 'worker 0')


def test_a_host_hears_from_the_launcher_at_once(tmp_path):
    ssh = f'read -r line\n{LIKE_SSH}'
    began = time.monotonic()
    assert over_ssh('echo result', tmp_path, ssh)[:2] == (0, 'result\n')
    assert time.monotonic() - began < 15


# Runs launch.remote with a shorter silence.
IMPATIENT_PYTHON = f"""\
#!/bin/sh
shift 2
exec {sys.executable} -c '
import sys
from tf_cnn.launch import remote
remote.SILENCE_SECS = 0.3
sys.exit(remote.main(*sys.argv[1:]))
' "$@"
"""


def test_a_silent_launcher_ends_the_process_and_its_last_line_says_so(tmp_path):
    python = tmp_path / 'python'
    python.write_text(IMPATIENT_PYTHON)
    python.chmod(0o700)
    code, _, err = over_ssh('exec sleep 100', tmp_path, python=str(python))
    assert code == 1
    check_line(err.splitlines()[-1], 'worker 0', 'somewhere heard nothing from this launcher')


def test_a_connection_that_is_lost_before_the_answer_is_named(tmp_path):
    target = target_with(f"printf '%s' '{MARK}{{\"vers'", tmp_path)
    with failed('somewhere', 'cannot be started'):
        prepare_hosts(LAYOUT, target, 0, [])


@pytest.mark.parametrize('subject', ['tf_cnn_benchmarks', 'TensorFlow'])
def test_a_host_with_another_version_is_named(subject, tmp_path):
    answer = json.dumps({'versions': {**versions(), subject: '0.0.9'}, 'tasks': []})
    with failed('somewhere', subject, '0.0.9', 'install the same on both'):
        prepare_hosts(LAYOUT, target_with(f"echo '{MARK}{answer}'", tmp_path), 0, [])


def test_a_remote_process_ends_though_a_descendant_holds_its_output(tmp_path):
    began = time.monotonic()
    assert over_ssh('setsid sleep 20 & echo done', tmp_path)[:2] == (0, 'done\n')
    assert time.monotonic() - began < 15


def test_hosts_that_do_not_answer_end_the_launch(tmp_path, monkeypatch):
    monkeypatch.setattr('tf_cnn.launch.ssh._REPLY_SECS', 0.5)
    host = SshHost('somewhere', target_with('exec sleep 60', tmp_path))
    commands = [Command(f'worker {number}', ['true'], {}, host=host) for number in range(10)]
    err = io.StringIO()
    assert launch(commands, out=io.StringIO(), err=err) == 1
    check_line(err.getvalue().splitlines()[0], 'worker', 'somewhere does not answer')
