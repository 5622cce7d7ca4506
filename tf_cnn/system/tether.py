"""Runs a command that dies with its parent: `tether.py PARENT_PID CORES NETWORK_PID COMMAND...`.

Linux only. The kernel kills the command when its parent ends, even by SIGKILL. The command runs on
CORES (such as 0,1,2; empty for all) and in the network of the process NETWORK_PID (empty for the
parent's). This is a separate script because code between fork and exec is not safe in a process
with threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Sequence

# prctl(2); the settings survive exec.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NOT_FOUND = 127  # the exit code that shells use
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(
    argv: Sequence[str], cores: Iterable[int] = (), network: int | None = None
) -> list[str]:
    """Returns the command line that runs argv, and kills it when the thread that starts it ends.

    Args:
      cores: the logical cores to run on; empty for all.
      network: a process in the network to use; None for the network of this process.
    """
    words = [str(os.getpid()), ','.join(map(str, cores)), '' if network is None else str(network)]
    return [sys.executable, '-I', '-S', __file__, *words, *argv]


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread of its parent that started it ends.

    parent: the process id of the parent, which may have ended already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parents end, in any session, and SIGTERM
    the signal for the end of its own parent, so that it can end them.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _enter_network(pid: str) -> None:
    """Moves this process into the user namespace of another process, then into its network."""
    for kind in ('user', 'net'):
        path = f'/proc/{pid}/ns/{kind}'
        # setns fails for the user namespace that this process is already in.
        if not os.path.samefile(path, f'/proc/self/ns/{kind}'):
            namespace = os.open(path, os.O_RDONLY)
            if _LIBC.setns(namespace, 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            os.close(namespace)


def _main() -> None:
    parent, cores, network, *command = sys.argv[1:]
    if network:
        try:
            _enter_network(network)
        except OSError as error:
            sys.exit(
                f'{command[0]}: the network of process {network} cannot be entered '
                f'({error.strerror})'
            )
    end_with_parent(int(parent))
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(',')])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f'{command[0]}: cannot be started ({error.strerror})', file=sys.stderr)
        sys.exit(_NOT_FOUND)


if __name__ == '__main__':
    _main()
