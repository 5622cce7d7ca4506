"""How much memory a process and all its descendants use. Linux only: reads /proc."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_PAGE = os.sysconf('SC_PAGE_SIZE')
# Reading the whole table of processes takes milliseconds of a core that should be measured, so it is read rarely.
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
    """Measures the memory of a process and its descendants again and again, cheaply.

    Shared pages, such as TensorFlow's code, count once for each process in the resident set size, which is quick to
    read. Only if that is above the limit, the proportional set size decides, in which each page counts once.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._pids: list[int] = []
        self._num_readings = 0

    def exceeds(self, limit: int) -> bool:
        """Whether the processes use more than `limit` bytes."""
        if self._num_readings % _READINGS_OF_A_TREE == 0:
            self._pids = processes_of(self._root)
        self._num_readings += 1
        return _resident(self._pids) > limit and _proportional(self._pids) > limit


def _resident(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f'/proc/{pid}/statm').read_bytes().split()[1]) * _PAGE
    return total


def _proportional(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            lines = Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith('Pss:'))
        except (OSError, ValueError, IndexError, StopIteration):
            # An older kernel, or the process has ended.
            total += _resident([pid])
    return total
