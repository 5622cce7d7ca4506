"""The agent that starts processes on other hosts, without ssh in between."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.hosts import HostNeeds
from cluster.ssh import Reach, connections

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.distributed
@pytest.mark.parametrize(('wanted', 'found'), [('here', 'here'), ('no such folder', 'home')])
def test_processes_run_in_the_working_folder_if_the_host_has_it_else_at_home(
    wanted: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / 'here').mkdir()
    (tmp_path / 'home').mkdir()
    command: dict[str, object] = {'name': 'worker 0', 'argv': ['pwd'], 'env': {}, 'cores': None}
    with subprocess.Popen(
        [sys.executable, '-m', 'cluster.agent', str(tmp_path / wanted)],
        cwd=ROOT,
        env={'HOME': str(tmp_path / 'home'), 'PATH': '/usr/bin:/bin'},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdin
        assert agent.stdout
        agent.stdin.write(json.dumps({'start': command}) + '\n')
        agent.stdin.flush()
        answers = map(json.loads, agent.stdout)
        assert next(answer['out'] for answer in answers if 'out' in answer) == str(tmp_path / found)
        agent.stdin.close()
        assert agent.wait(60) == 0


# Prints what a login script may print, then does as ssh does.
_NOISY_SSH = """#!/bin/sh
printf '{"motd": 1}\\n[1]\\n{"hello": 2}\\n{"name": ["worker 0"]}\\n{"members": []}\\n{"unfinished": 1}'
for command; do :; done
exec sh -c "$command"
"""


@pytest.mark.distributed
def test_json_of_a_login_script_is_no_answer_of_the_agent(tmp_path: Path) -> None:
    ssh = tmp_path / 'ssh'
    ssh.write_text(_NOISY_SSH)
    ssh.chmod(0o700)
    reach = Reach((str(ssh),), sys.executable, str(ROOT), str(tmp_path))
    with connections(['somewhere'], reach) as (host,):
        assert [one.name for one in host.prepare(HostNeeds([('ps', 0), ('worker', 0)]))] == ['ps 0', 'worker 0']
