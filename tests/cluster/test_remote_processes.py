"""The part of `cluster --hosts` on another host: it runs a process there, and ends it."""

import io
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.outputs import failed
from tests.support.programs import ROOT
from tf_cnn.launch.hosts import Command
from tf_cnn.launch.launcher import launch
from tf_cnn.launch.remote import MARK, versions
from tf_cnn.launch.ssh import SshTarget, prepare_hosts

pytestmark = pytest.mark.distributed

LAYOUT = {'somewhere': [('ps', 0), ('worker', 0)]}


def start(
    folder: Path | str, *words: str, env: dict[str, str] | None = None
) -> 'subprocess.Popen[str]':
    """Starts a command as the launcher does by ssh."""
    pipe = subprocess.PIPE
    command = [sys.executable, '-m', 'tf_cnn.launch.remote', 'run', str(folder), '', *words]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)


@pytest.mark.parametrize(('wanted', 'place'), [('here', 'here'), ('no such folder', 'home')])
def test_a_remote_process_runs_in_the_working_folder_else_at_home(
    wanted: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / 'here').mkdir()
    (tmp_path / 'home').mkdir()
    env = {'HOME': str(tmp_path / 'home'), 'PATH': '/usr/bin:/bin'}
    words = ('A=1', 'sh', '-c', 'pwd; echo $A; exit 3')
    with start(tmp_path / wanted, *words, env=env) as remote:
        assert remote.stdout
        _, *lines = remote.stdout.read().splitlines()
    assert [line.rstrip() for line in lines] == [str(tmp_path / place), '1', f'{MARK}3']


@pytest.mark.parametrize(('text', 'code'), [('', -15), ('\n10\n', -10), ('\n9\n', -9)])
def test_a_remote_process_ends_with_its_input_or_by_a_signal_from_it(text: str, code: int) -> None:
    with start('/', 'sleep', '100') as remote:
        assert remote.stdin
        assert remote.stdout
        pid = int(remote.stdout.readline().removeprefix(MARK))
        remote.stdin.write(text)
        remote.stdin.flush()
        if not text:
            remote.stdin.close()
        assert remote.stdout.readline() == f'{MARK}{code}\n'
        assert not psutil.pid_exists(pid)


def target_with(script: str, folder: Path) -> SshTarget:
    """A target whose ssh is this shell script."""
    ssh = folder / 'ssh'
    ssh.write_text(f'#!/bin/sh\n{script}')
    ssh.chmod(0o700)
    return SshTarget((str(ssh),), sys.executable, str(ROOT), str(folder))


def test_what_a_login_script_prints_is_not_part_of_any_output(tmp_path: Path) -> None:
    login = r"""printf 'welcome\n{"unfinished": 1}'"""
    like_ssh = 'for command; do :; done; exec sh -c "$command"'
    tasks = prepare_hosts(LAYOUT, target_with(f'{login}\n{like_ssh}', tmp_path), 0, [])
    assert [task.name for task in tasks] == ['ps 0', 'worker 0']
    out = io.StringIO()
    command = Command('worker 0', ['echo', 'result'], {}, has_result=True, host=tasks[0].host)
    assert launch([command], out=out, err=io.StringIO()) == 0
    assert out.getvalue() == 'result\n'


def test_a_connection_that_is_lost_before_the_answer_is_named(tmp_path: Path) -> None:
    target = target_with(f"printf '%s' '{MARK}{{\"vers'", tmp_path)
    with failed('somewhere', 'cannot be started'):
        prepare_hosts(LAYOUT, target, 0, [])


@pytest.mark.parametrize('subject', ['tf_cnn_benchmarks', 'TensorFlow'])
def test_a_host_with_another_version_is_named(subject: str, tmp_path: Path) -> None:
    answer = json.dumps({'versions': {**versions(), subject: '0.0.9'}, 'tasks': []})
    with failed('somewhere', subject, '0.0.9', 'install the same on both'):
        prepare_hosts(LAYOUT, target_with(f"echo '{MARK}{answer}'", tmp_path), 0, [])
