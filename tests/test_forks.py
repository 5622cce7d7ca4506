"""A forked process of the tests runs a script as a new Python does."""

from typing import Any

import pytest

from tests.support.programs import PROGRAM, environment, launched

pytestmark = pytest.mark.distributed

SCRIPT = """
import json, os, signal, subprocess, sys
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
masks = [status[name] for name in ('SigBlk', 'SigIgn', 'SigCgt', 'Threads', 'Umask')]
inherited = subprocess.run(['env', '-0'], capture_output=True, text=True).stdout.split('\\0')
print(json.dumps([__name__, __file__, sys.argv, sys.path[1:], os.getcwd(), masks,
                  sorted(inherited), sorted(os.environ.items()), os.listdir('/proc/self/fd'),
                  os.getsid(0) == os.getpgid(0) == os.getpid(), sys.stdin.read()]))
print('to stderr', file=sys.stderr)
"""


@pytest.mark.parametrize(
    ('last_line', 'exit_code'),
    [
        ('', 0),
        ('sys.exit(3)', 3),
        ('sys.exit("a reason")', 1),
        ('1 // 0', 1),
        ('raise KeyboardInterrupt', -2),
        ('os.kill(os.getpid(), signal.SIGTERM)', -15),
        ('sys.stdout.flush(); os._exit(7)', 7),
        ('import atexit; atexit.register(print, "at exit")', 0),
    ],
)
def test_a_fork_has_the_environment_and_the_exit_code_of_a_new_python(
    last_line, exit_code, tmp_path
):
    script, folder = tmp_path / 'script.py', tmp_path / 'folder'
    script.write_text(SCRIPT + last_line)
    folder.mkdir()
    env = environment(OF_THIS_TEST='1', HOME=None)

    def outcome(fresh: bool) -> tuple[Any, ...]:
        argv = [PROGRAM[0], str(script), '--flag', 'two words']
        logs = tmp_path / f'fresh-{fresh}'
        logs.mkdir()
        with launched(argv, logs, env, fresh=fresh, cwd=folder) as process:
            assert process.has_ended()
        return process.exit_code, process.out, process.err.splitlines()[::-1][:1]

    fork = outcome(fresh=False)
    assert fork == outcome(fresh=True)
    assert fork[0] == exit_code
