"""The control group (cgroup) of this process: its limits and counters. Does not import TensorFlow.

Containers and batch systems limit processes in this way. A group's limit also limits the groups
within it. With version 2, a process has one group. With version 1, it has a group of each
controller, and files have other names and units.
"""

from pathlib import Path

from tf_cnn.system.kernel_files import read_key_values, read_number, read_text

# The rows of memory.stat that count file pages. With version 1, the rows that start with total_
# include the groups within the group, as with version 2.
_FILE_MEMORY = ('inactive_file', 'active_file')
# Version 1 writes "no limit" as the largest number of pages.
_NO_LIMIT = 2**62
_MICROSECOND, _NANOSECOND = 1e-6, 1e-9


def cpu_limit(root: Path) -> float | None:
    """Returns how many cores the process may use on average, such as 1.5; None without a limit."""
    limits = []
    for folder in _group_folders(root, 'cpu'):
        quota, _, period = read_text(folder / 'cpu.max').partition(' ')
        quota = quota or read_text(folder / 'cpu.cfs_quota_us')
        # Without a quota it is "max" or -1.
        if quota.isdigit():
            limits.append(int(quota) / int(period or read_text(folder / 'cpu.cfs_period_us')))
    return min(limits, default=None)


def memory_limit(root: Path) -> int | None:
    """Returns how many bytes the process may use; None without a limit."""
    limits = map(_memory_limit, _group_folders(root, 'memory'))
    return min((limit for limit in limits if limit is not None), default=None)


def available_memory(root: Path) -> int | None:
    """Returns how many bytes the group can still use within its limits; None without a limit.

    Pages of files count as free, as in MemAvailable of /proc/meminfo: the kernel drops them when
    memory runs out.
    """
    available = []
    for folder in _group_folders(root, 'memory'):
        if (limit := _memory_limit(folder)) is not None:
            used = _read_number(folder, 'memory.current', 'memory.usage_in_bytes') or 0
            rows = read_key_values(folder / 'memory.stat')
            of_files = sum(
                int(rows.get(f'total_{name}', rows.get(name, 0))) for name in _FILE_MEMORY
            )
            available.append(max(0, limit - max(0, used - of_files)))
    return min(available, default=None)


def cpu_seconds(root: Path) -> float | None:
    """Returns the CPU time in seconds that all processes of the group have used; None if it is not
    counted.
    """
    for folder in _group_folders(root, 'cpuacct'):
        if (nanoseconds := read_number(folder / 'cpuacct.usage')) is not None:
            return nanoseconds * _NANOSECOND
        if microseconds := read_key_values(folder / 'cpu.stat').get('usage_usec'):
            return int(microseconds) * _MICROSECOND
    return None


def throttled_seconds(root: Path) -> float | None:
    """Returns how long a quota has stopped threads of the group, in seconds summed over cores; None
    if unknown.
    """
    tables = [read_key_values(folder / 'cpu.stat') for folder in _group_folders(root, 'cpu')]
    return max(
        (
            int(table[counter]) * unit
            for table in tables
            for counter, unit in (('throttled_usec', _MICROSECOND), ('throttled_time', _NANOSECOND))
            if counter in table
        ),
        default=None,
    )


def _read_number(folder: Path, *names: str) -> int | None:
    """Returns the number in the first of these files that has one: each version has its own."""
    numbers = (read_number(folder / name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _memory_limit(folder: Path) -> int | None:
    limit = _read_number(folder, 'memory.max', 'memory.limit_in_bytes')
    return None if limit is None or limit > _NO_LIMIT else limit


def _group_folders(root: Path, controller: str) -> list[Path]:
    """Returns the folders of the process's control group and of its ancestors, innermost first.

    It is the group of this controller with version 1, if the kernel lists one, even where version 2
    is mounted, too; else the group of version 2.
    """
    mounts = root / 'sys/fs/cgroup'
    # The line of version 2, which names no controller, is the last.
    for line in read_text(root / 'proc/self/cgroup').splitlines():
        _, controllers, path = line.split(':', 2)
        if controller in controllers.split(','):
            # One mount may have several controllers: cpu,cpuacct.
            folders = (
                folder for folder in mounts.glob('*') if controller in folder.name.split(',')
            )
            top = next(folders, mounts / controller)
        elif not controllers:
            top = mounts / 'unified' if (mounts / 'unified').is_dir() else mounts
        else:
            continue
        # In a container, the path may begin with groups of the host that are not mounted.
        names = Path(path).parts[1:]
        starts = (top.joinpath(*names[start:]) for start in range(len(names)))
        group = next((folder for folder in starts if folder.is_dir()), top)
        return [group, *group.parents[: len(group.relative_to(top).parts)]]
    return []
