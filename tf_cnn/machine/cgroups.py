"""The control group (cgroup, version 2) of this process: its limits and counters. Does not import
TensorFlow.

Containers and batch systems limit processes in this way. A group's limit also limits the groups
within it.
"""

from pathlib import Path

from tf_cnn.system.kernel_files import read_key_values, read_number, read_text

# The rows of memory.stat that count file pages.
_FILE_MEMORY = ('inactive_file', 'active_file')
_MICROSECOND = 1e-6


def cpu_limit(root: Path) -> float | None:
    """Returns how many cores the process may use on average, such as 1.5; None without a limit."""
    limits = (read_text(folder / 'cpu.max').split() for folder in _group_folders(root))
    return min(
        (int(limit[0]) / int(limit[1]) for limit in limits if limit and limit[0] != 'max'),
        default=None,
    )


def memory_limit(root: Path) -> int | None:
    """Returns how many bytes the process may use; None without a limit."""
    limits = (read_number(folder / 'memory.max') for folder in _group_folders(root))
    return min((limit for limit in limits if limit is not None), default=None)


def available_memory(root: Path) -> int | None:
    """Returns how many bytes the group can still use within its limits; None without a limit.

    Pages of files count as free, as in MemAvailable of /proc/meminfo: the kernel drops them when
    memory runs out.
    """
    available = []
    for folder in _group_folders(root):
        limit, used = (
            read_number(folder / 'memory.max'),
            read_number(folder / 'memory.current') or 0,
        )
        if limit is not None:
            rows = read_key_values(folder / 'memory.stat')
            of_files = sum(int(rows.get(name, 0)) for name in _FILE_MEMORY)
            available.append(max(0, limit - max(0, used - of_files)))
    return min(available, default=None)


def cpu_seconds(root: Path) -> float | None:
    """Returns the CPU time in seconds that all processes of the group have used; None if it is not
    counted.
    """
    return next(iter(_seconds('usage_usec', root)), None)


def throttled_seconds(root: Path) -> float | None:
    """Returns how long a quota has stopped threads of the group, in seconds summed over cores; None
    if unknown.
    """
    return max(_seconds('throttled_usec', root), default=None)


def _seconds(counter: str, root: Path) -> list[float]:
    """Returns a counter of cpu.stat for each group that has it, innermost first."""
    tables = (read_key_values(folder / 'cpu.stat') for folder in _group_folders(root))
    return [int(table[counter]) * _MICROSECOND for table in tables if counter in table]


def _group_folders(root: Path) -> list[Path]:
    """Returns the folders of the process's control group and of its ancestors, innermost first;
    empty with version 1.
    """
    top = root / 'sys/fs/cgroup'
    for line in read_text(root / 'proc/self/cgroup').splitlines():
        if line.startswith('0::/'):
            group = top / line.removeprefix('0::/')
            # In a container, this may be the path of a group of the host that is not mounted.
            group = group if group.is_dir() else top
            return [group, *group.parents[: len(group.relative_to(top).parts)]]
    return []
