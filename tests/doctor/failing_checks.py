"""Checks that fail in every way in which a process can fail, and that process, for tests of the check runner."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import NoReturn

from doctor import one_process
from doctor.check_table import Check
from doctor.verdicts import Context, Verdict, ok, warning, wrong
from errors import RunError

# Longer than any limit in these tests.
_FOREVER_SECS = 600


def check(function: str, name: str = '', *, limit_secs: float = 30.0, shares: str | None = None) -> Check:
    """Returns a row of the table of checks, for a function of this module."""
    return Check(
        f'{function}/{name}',
        'nothing',
        globals()[function],
        limit_secs=limit_secs,
        shares=shares,
        remedy='turn it off and on',
    )


def fine(context: Context) -> Verdict:
    print('a library prints to standard output')
    os.write(1, b'and native code does\n')
    return ok('all is well', pid=os.getpid(), num_gpus=context.num_gpus, time_limit=context.time_limit)


def tells_its_environment(context: Context) -> Verdict:
    return ok('it has one', **os.environ)


def slow(context: Context) -> Verdict:
    return warning('it is slow', 'wait')


def bad(context: Context) -> Verdict:
    print('why it is bad', file=sys.stderr)
    return wrong('it is bad', 'repair it')


def raises(context: Context) -> NoReturn:
    raise ArithmeticError('two and two\nmake five')


def refuses(context: Context) -> NoReturn:
    raise RunError('disk: it is full; make room')


def crashes(context: Context) -> NoReturn:
    context.doing('reading address 0')
    ctypes.string_at(0)
    raise AssertionError


def executes_what_the_processor_does_not_know(context: Context) -> NoReturn:
    signal.raise_signal(signal.SIGILL)
    raise AssertionError


def leaves(context: Context) -> NoReturn:
    os._exit(7)


def hangs(context: Context) -> NoReturn:
    context.doing('waiting for a library')
    threading.Event().wait(_FOREVER_SECS)
    raise AssertionError


def hangs_with_a_child(context: Context) -> NoReturn:
    """Starts a process that ignores signals, and prints its pid."""
    code = 'import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); '
    child = subprocess.Popen([sys.executable, '-c', f'{code}time.sleep({_FOREVER_SECS})'], stdout=subprocess.PIPE)
    assert child.stdout is not None
    context.doing(child.stdout.readline().decode().strip())
    # Python runs no signal handlers while native code waits.
    ctypes.CDLL(None).usleep(ctypes.c_uint(2**31))
    time.sleep(_FOREVER_SECS)
    raise AssertionError


def crashes_at_its_end(context: Context) -> Verdict:
    atexit.register(os.abort)
    return ok('all is well', pid=os.getpid())


if __name__ == '__main__':
    one_process.main(lambda name: check(name.partition('/')[0]))
