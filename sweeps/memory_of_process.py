"""How much memory a process and all its descendants use. Linux only: reads /proc."""

import contextlib
import os
from pathlib import Path

_PAGE = os.sysconf('SC_PAGE_SIZE')
# What takes milliseconds of a core that should be measured is read at every tenth reading only.
_READINGS_OF_A_TREE = 10


def processes_of(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir('/proc'):
        if entry.name.isdigit():
            # The process may have ended.
            with contextlib.suppress(OSError, ValueError, IndexError):
                # PID (NAME) STATE PARENT ...; the name may contain blanks and parentheses.
                parent = int(Path(entry.path, 'stat').read_bytes().rpartition(b')')[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


class MemoryMeter:
    """Tells again and again, cheaply, whether a process and its descendants use more memory than a limit.

    The measure is the proportional set size, in which a page that several processes share, such as TensorFlow's code,
    counts once. The kernel walks through all pages for it, which slows the run down. So it is read only, and rarely, if
    its bounds do not decide: private pages alone, and all resident pages, which are quick to read.
    """

    def __init__(self, root: int, limit: int) -> None:
        self._root = root
        self._limit = limit
        self._pids: list[int] = []
        self._num_readings = 0
        self._num_undecided = 0

    def is_exceeded(self) -> bool:
        """Whether the processes use more than the limit."""
        if self._num_readings % _READINGS_OF_A_TREE == 0:
            self._pids = processes_of(self._root)
        self._num_readings += 1
        sizes = [_sizes(pid) for pid in self._pids]
        if sum(resident for resident, _ in sizes) <= self._limit:
            return False
        if sum(private for _, private in sizes) > self._limit:
            return True
        self._num_undecided += 1
        return self._num_undecided % _READINGS_OF_A_TREE == 1 and sum(map(_proportional, self._pids)) > self._limit


def _sizes(pid: int) -> tuple[int, int]:
    """The bytes of all resident pages of a process, and of those that no file and no shared memory backs."""
    try:
        resident, shared = (int(pages) for pages in Path(f'/proc/{pid}/statm').read_bytes().split()[1:3])
    except (OSError, ValueError):
        # It has ended.
        return 0, 0
    return resident * _PAGE, (resident - shared) * _PAGE


def _proportional(pid: int) -> int:
    try:
        lines = Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('Pss:'))
    except (OSError, ValueError, IndexError, StopIteration):
        # The kernel is older than 4.14, or the process has ended.
        return _sizes(pid)[0]
