"""A script that becomes the command it is given: `tether.py PARENT_PID CORES COMMAND...`. Linux only.

The command dies with its parent, also when that is killed by SIGKILL, and runs on CORES (0,1,2; empty for all).
A script of its own does this rather than code between fork and exec, which is not safe where there are threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of prctl(2); the setting stays when the process becomes another program
_NOT_FOUND = 127  # as a shell exits


def _main() -> None:
    parent, cores, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        # It was gone before it could be told.
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(',')])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f'{command[0]}: it cannot be started ({error.strerror})', file=sys.stderr)
        sys.exit(_NOT_FOUND)


if __name__ == '__main__':
    _main()
