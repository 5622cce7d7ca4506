"""A signal ends a process between two steps, even if a step takes longer than the usual grace period."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# The signal comes during a step, which ends a second later. A step may take a tenth of a second, or twice as long as
# the last one.
PROGRAM = """
import os, signal, time
from cluster import signals
signals._GRACE_SECS = 0.1
ended = ['step 1']
stop = signals.Stop(lambda *how: print(*how, *ended))
with stop.listening():
    stop.end_if_requested({last_step_secs})
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    ended.append('step 2')
    stop.end_if_requested(1)
"""


@pytest.mark.parametrize(('last_step_secs', 'ended'), [(0, 'step 1'), (30, 'step 1 step 2')])
def test_a_step_may_take_twice_as_long_as_the_last_one(last_step_secs: int, ended: str) -> None:
    program = PROGRAM.format(last_step_secs=last_step_secs)
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (143, f'143 SIGTERM {ended}\n', '')
