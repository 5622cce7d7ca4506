"""The control groups (cgroups, version 1 and 2) of this process: its limits and counters. Does not import TensorFlow.

Containers and batch systems limit processes in this way. The limit of a group also limits the groups within it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from machine.kernel_files import read_key_values, read_number, read_text

# Without a limit, version 1 shows a number near 2**63.
_NO_LIMIT = 2**60
# The key of the controllers of version 2, in place of the name of a controller of version 1.
_VERSION_2 = 'version 2'
# The files with the limit and with the memory in use, for version 2 and 1.
_MEMORY = (('memory.max', 'memory.current'), ('memory.limit_in_bytes', 'memory.usage_in_bytes'))
# The rows of memory.stat that count pages of files.
_FILE_MEMORY = ('inactive_file', 'active_file')
_MICROSECOND, _NANOSECOND = 1e-6, 1e-9


def cpu_limit(root: Path) -> float | None:
    """Returns how many cores the process may use on average, such as 1.5; None without a limit."""
    limits = []
    for folder in _folders('cpu', root):
        words = read_text(folder / 'cpu.max').split()
        quota = int(words[0]) if words and words[0] != 'max' else read_number(folder / 'cpu.cfs_quota_us')
        period = int(words[1]) if len(words) > 1 else read_number(folder / 'cpu.cfs_period_us')
        if quota and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(root: Path) -> int | None:
    """Returns how many bytes the process may use; None without a limit."""
    found = [read_number(folder / name) for folder in _folders('memory', root) for name, _ in _MEMORY]
    return min((limit for limit in found if limit is not None and limit < _NO_LIMIT), default=None)


def memory_left(root: Path) -> int | None:
    """Returns how many bytes the group can still use within its limits; None without a limit.

    Pages of files count as free, as in MemAvailable of /proc/meminfo: the kernel drops them when memory runs out.
    """
    left = []
    for folder in _folders('memory', root):
        for limit_name, used_name in _MEMORY:
            limit, used = read_number(folder / limit_name), read_number(folder / used_name) or 0
            if limit is not None and limit < _NO_LIMIT:
                # In version 1 the rows named total_ include the groups within this one.
                rows = read_key_values(folder / 'memory.stat')
                of_files = sum(int(rows.get(f'total_{name}') or rows.get(name) or 0) for name in _FILE_MEMORY)
                left.append(max(0, limit - max(0, used - of_files)))
    return min(left, default=None)


def cpu_seconds(root: Path) -> float | None:
    """Returns the CPU time in seconds that all processes of the group have used; None if it is not counted."""
    for folder in _folders('cpuacct', root):
        used = read_number(folder / 'cpuacct.usage')
        if used is not None:
            return used * _NANOSECOND
        micros = read_key_values(folder / 'cpu.stat').get('usage_usec')
        return int(micros) * _MICROSECOND if micros else None
    return None


def throttled_seconds(root: Path) -> float | None:
    """Returns how long a quota has stopped threads of the group, in seconds summed over cores; None if unknown."""
    found = []
    for folder in _folders('cpu', root):
        table = read_key_values(folder / 'cpu.stat')
        if 'throttled_usec' in table:
            found.append(int(table['throttled_usec']) * _MICROSECOND)
        elif 'throttled_time' in table:
            found.append(int(table['throttled_time']) * _NANOSECOND)
    return max(found, default=None)


def _folders(controller: str, root: Path) -> list[Path]:
    """Returns the folder of the process's own group for this controller, then those of the groups around it."""
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
        # In a container, proc/self/cgroup may name groups of the host that are not mounted there.
        own = own if own.is_dir() else top
        return [own, *(folder for folder in own.parents if folder == top or top in folder.parents)]
    return []


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """Yields (controller, path of the group) for each controller of version 1, and one pair for version 2."""
    for line in read_text(root / 'proc/self/cgroup').splitlines():
        _, controllers, path = line.split(':', maxsplit=2)
        for controller in controllers.split(','):
            yield controller or _VERSION_2, path


def _mounts(root: Path) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yields for each hierarchy: its mount point, the group that is mounted there, its controllers."""
    for line in read_text(root / 'proc/self/mountinfo').splitlines():
        mount, _, filesystem = line.partition(' - ')
        within, mounted = mount.split()[3:5]
        kind, *_, options = filesystem.split()
        if kind == 'cgroup':
            yield mounted, within, options.split(',')
        elif kind == 'cgroup2':
            yield mounted, within, [_VERSION_2]
