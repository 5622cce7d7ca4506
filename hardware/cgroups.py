"""The control groups (cgroups, version 1 and 2) of this process: its limits and counters. Does not import TensorFlow.

Containers and batch systems limit processes in this way. A limit of a group holds for all groups in it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hardware.kernel_files import read, read_number, read_table

# Version 1 writes a number near 2**63 where there is no limit.
_NO_LIMIT = 2**60
# In place of a controller: all those that version 1 does not have.
_VERSION_2 = 'version 2'
# The files with the limit and with what is used, of version 2 and 1.
_MEMORY = (('memory.max', 'memory.current'), ('memory.limit_in_bytes', 'memory.usage_in_bytes'))
# Rows of memory.stat.
_OF_FILES = ('inactive_file', 'active_file')
_MICROSECOND, _NANOSECOND = 1e-6, 1e-9


def cpu_limit(root: Path) -> float | None:
    """How many cores' time the process may use, such as 1.5; None if any.

    Args:
      root: the folder that holds proc/ and sys/.
    """
    limits = []
    for folder in _folders('cpu', root):
        words = read(folder / 'cpu.max').split()
        quota = int(words[0]) if words and words[0] != 'max' else read_number(folder / 'cpu.cfs_quota_us')
        period = int(words[1]) if len(words) > 1 else read_number(folder / 'cpu.cfs_period_us')
        if quota and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(root: Path) -> int | None:
    """How many bytes the process may use; None if any."""
    found = [read_number(folder / name) for folder in _folders('memory', root) for name, _ in _MEMORY]
    return min((limit for limit in found if limit is not None and limit < _NO_LIMIT), default=None)


def memory_left(root: Path) -> int | None:
    """How many bytes of the limits nobody in the group uses; None if there is no limit.

    Pages of files count as free, as in MemAvailable of /proc/meminfo: the kernel drops them when memory runs out.
    """
    left = []
    for folder in _folders('memory', root):
        for limit_name, used_name in _MEMORY:
            limit, used = read_number(folder / limit_name), read_number(folder / used_name) or 0
            if limit is not None and limit < _NO_LIMIT:
                # Version 1 counts the groups within in rows of their own.
                rows = read_table(folder / 'memory.stat')
                of_files = sum(int(rows.get(f'total_{name}') or rows.get(name) or 0) for name in _OF_FILES)
                left.append(max(0, limit - max(0, used - of_files)))
    return min(left, default=None)


def cpu_seconds(root: Path) -> float | None:
    """The CPU time that all processes of the group have used, in seconds; None if it is not counted."""
    for folder in _folders('cpuacct', root):
        used = read_number(folder / 'cpuacct.usage')
        if used is not None:
            return used * _NANOSECOND
        counted = read_table(folder / 'cpu.stat').get('usage_usec')
        return int(counted) * _MICROSECOND if counted else None
    return None


def throttled_seconds(root: Path) -> float | None:
    """For how long a quota has stopped threads of the group, in seconds summed over cores; None if unknown."""
    found = []
    for folder in _folders('cpu', root):
        table = read_table(folder / 'cpu.stat')
        if 'throttled_usec' in table:
            found.append(int(table['throttled_usec']) * _MICROSECOND)
        elif 'throttled_time' in table:
            found.append(int(table['throttled_time']) * _NANOSECOND)
    return max(found, default=None)


def _folders(controller: str, root: Path) -> list[Path]:
    """The folder of the process' own group for this controller, then those of the groups that it is in."""
    paths = dict(_groups(root))
    key = controller if controller in paths else _VERSION_2
    for mounted, within, controllers in _mounts(root):
        if key not in paths or key not in controllers:
            continue
        top = root / mounted.lstrip('/')
        try:
            own = top / Path(paths[key]).relative_to(within)
        except ValueError:
            own = top
        # In a container the file may name groups of the host, which are not mounted there.
        own = own if own.is_dir() else top
        return [own, *(folder for folder in own.parents if folder == top or top in folder.parents)]
    return []


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """(controller, path of the group) for each controller of version 1, and one pair for version 2."""
    for line in read(root / 'proc/self/cgroup').splitlines():
        _, controllers, path = line.split(':', maxsplit=2)
        for controller in controllers.split(','):
            yield controller or _VERSION_2, path


def _mounts(root: Path) -> Iterator[tuple[str, str, Sequence[str]]]:
    """(where a hierarchy is mounted, the group that is mounted there, its controllers)."""
    for line in read(root / 'proc/self/mountinfo').splitlines():
        mount, _, filesystem = line.partition(' - ')
        within, mounted = mount.split()[3:5]
        kind, *_, options = filesystem.split()
        if kind == 'cgroup':
            yield mounted, within, options.split(',')
        elif kind == 'cgroup2':
            yield mounted, within, [_VERSION_2]
