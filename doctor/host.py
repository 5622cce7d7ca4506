"""Checks of the host: how much of it this process may use. Does not import TensorFlow."""

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from doctor.verdicts import Context, Verdict, ok, warning
from errors import counted
from machine import cgroups
from machine.kernel_files import read, read_table
from machine.meters import Disturbances
from machine.processors import processor_facts

_GIBIBYTE = 2**30
_KIBIBYTE = 2**10
# Training ResNet-50 with a batch of 32 takes 4.4 GB on a CPU; with a GPU, TensorFlow, CUDA and the input take 3 GB.
_FEWEST_BYTES = 5 * _GIBIBYTE
# NCCL needs some MB for each pair of GPUs there, and Docker gives 64 MB unless it is told --shm-size.
_FEWEST_SHARED_BYTES = _GIBIBYTE
# Libraries, shards, and sockets to all tasks of a cluster: some hundreds.
_FEWEST_FILES = 1024
# The share of the usable cores that other processes may use without a warning.
_LARGEST_SHARE = 0.1
# How long other processes are watched.
_WATCH_SECS = 1.5
# The variables that set TensorFlow's default numbers of threads: in each pool (the first two), and in oneDNN.
_THREADS = ('TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS', 'OMP_NUM_THREADS')


def cores(context: Context, root: str = '/', environ: Mapping[str, str] = os.environ) -> Verdict:
    """Checks that this process may use as many cores as TensorFlow starts threads.

    By default TensorFlow starts a thread for each core of the affinity (tsl::port::MaxParallelism). It ignores the CPU
    quotas of control groups, which limit containers: when a quota is used up, all threads stop until the next period.
    """
    del context
    facts = processor_facts(Path(root))
    usable = len(os.sched_getaffinity(0))
    num_cores = facts['num_cores'] or os.cpu_count() or usable
    quota = cgroups.cpu_limit(Path(root))
    asked = {name: int(environ[name]) for name in _THREADS if environ.get(name, '').isdigit()}
    figures = {**facts, 'affinity': usable, 'cgroup_cpus': quota, 'threads_of_environment': asked}
    where = f'{facts["cpu_model"] or "unknown processor"}, {counted(num_cores, "logical core")}'
    if usable < num_cores:
        where += f', of which this process may use {usable}'
    if quota is not None and quota < usable:
        threads = max(1, round(quota))
        return warning(
            f'{where}; a CPU quota leaves {quota:g} cores, and TensorFlow starts {counted(usable, "thread")} for each '
            'pool',
            f'give the container {usable} cores (docker run --cpus, a limit in Kubernetes), or write '
            f'--num_intra_threads={threads}',
            **figures,
        )
    for name, number in asked.items():
        if number > usable:
            return warning(
                f'{where}; {name}={number} asks for more threads than there are cores', f'unset {name}', **figures
            )
        if 0 < number < usable:
            return warning(f'{where}; {name}={number} leaves cores idle', f'unset {name}', **figures)
    return ok(f'{where}; as many threads', **figures)


def load(context: Context, root: str = '/') -> Verdict:
    """Checks that no other processes, or virtual machines on the same hardware, use the cores."""
    del context
    disturbances = Disturbances(root=Path(root))
    disturbances.start()
    time.sleep(_WATCH_SECS)
    found = disturbances.stop()
    average = found['load_average_end']
    shown = f'load average {average[0]:.2f} over a minute' if average else 'load average unknown'
    others, stolen = found['other_cpu_share'] or 0.0, found['steal_share'] or 0.0
    if others > _LARGEST_SHARE:
        return warning(
            f'others use {others:.0%} of the cores; {shown}',
            'end the other programs or wait for them (look at top): rates that are measured meanwhile are too low',
            **found,
        )
    if stolen > _LARGEST_SHARE:
        return warning(
            f'the hypervisor gives {stolen:.0%} of the cores to other machines; {shown}',
            'measure on a machine whose cores are not shared',
            **found,
        )
    return ok(f'others use {others:.0%} of the cores; {shown}', **found)


def memory(context: Context, root: str = '/') -> Verdict:
    """Checks that there is enough memory for a usual run."""
    del context
    rows = read_table(Path(root) / 'proc/meminfo')
    total, available = (int(rows[name].split()[0]) * _KIBIBYTE for name in ('MemTotal', 'MemAvailable'))
    limit, left = cgroups.memory_limit(Path(root)), cgroups.memory_left(Path(root))
    usable = available if left is None else min(available, left)
    shown = f'{usable / _GIBIBYTE:.1f} GiB of {total / _GIBIBYTE:.1f} GiB are available'
    figures = {'total_bytes': total, 'available_bytes': available, 'cgroup_bytes': limit, 'cgroup_bytes_left': left}
    if limit is not None and limit < total:
        shown += f'; the control group has {limit / _GIBIBYTE:.1f} GiB'
    if usable < _FEWEST_BYTES:
        return warning(shown, 'free memory, raise the limit of the container, or write a small --batch_size', **figures)
    return ok(shown, **figures)


def shared_memory(context: Context, folder: str = '/dev/shm') -> Verdict:
    """Checks that /dev/shm is large enough for NCCL, which uses it to move data between GPUs without a link."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return warning(f'{folder} cannot be read ({error.strerror})', 'mount a tmpfs there: NCCL needs it')
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    shown = f'{folder} has {free / _GIBIBYTE:.2f} GiB free of {size / _GIBIBYTE:.2f} GiB'
    figures = {'bytes': size, 'free_bytes': free}
    if free < _FEWEST_SHARED_BYTES:
        return warning(
            f'{shown}, and NCCL may need more between {context.num_gpus} GPUs',
            'start the container with docker run --shm-size=8g (or --ipc=host), or remove what is in the folder',
            **figures,
        )
    return ok(shown, **figures)


def open_files(context: Context) -> Verdict:
    """Checks that a process may open enough files and sockets."""
    del context
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures = {'soft': soft, 'hard': hard}
    shown = 'any number of open files' if soft == resource.RLIM_INFINITY else f'{soft} open files'
    if soft != resource.RLIM_INFINITY and soft < _FEWEST_FILES:
        limit = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        return warning(
            f'a process may have {shown}; sockets of a cluster and shards may need more',
            f'write ulimit -n {limit} before a run',
            **figures,
        )
    return ok(f'a process may have {shown}', **figures)


def clock(context: Context, root: str = '/') -> Verdict:
    """Checks that the processor may run at its full clock rate."""
    del context
    governor = processor_facts(Path(root))['governor']
    if governor is None:
        return ok('the kernel does not set the clock of the cores here')
    folder = Path(root) / 'sys/devices/system/cpu/cpufreq'
    drivers = {read(path) for path in folder.glob('policy*/scaling_driver')}
    # With these drivers, powersave means that the processor chooses its clock rate.
    if 'powersave' in governor and not drivers & {'intel_pstate', 'amd-pstate-epp'}:
        return warning(
            f'the cores run at their lowest clock (governor {governor})',
            'as root, write cpupower frequency-set --governor performance',
            governor=governor,
        )
    return ok(f'governor {governor}', governor=governor)
