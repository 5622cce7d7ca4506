"""Runs a command that dies with its parent: `tether.py PARENT_PID CORES COMMAND...`. Linux only.

The kernel kills the command when its parent ends, even by SIGKILL, and runs it on CORES (such as 0,1,2; empty for all).
This is a separate script because code between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Sequence

_PR_SET_PDEATHSIG = 1  # of prctl(2); the setting stays when the process becomes another program
_NOT_FOUND = 127  # the exit code of a shell


def die_with_parent(argv: Sequence[str], cores: Iterable[int] = ()) -> list[str]:
    """Returns the command line for argv on these cores (empty: all); it also dies with the thread that starts it."""
    return [sys.executable, '-I', '-S', __file__, str(os.getpid()), ','.join(map(str, cores)), *argv]


def _main() -> None:
    parent, cores, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        # The parent ended before prctl was called.
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(',')])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f'{command[0]}: cannot be started ({error.strerror})', file=sys.stderr)
        sys.exit(_NOT_FOUND)


if __name__ == '__main__':
    _main()
