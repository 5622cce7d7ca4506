"""Assigns the tasks of a cluster to listed hosts. Does not import TensorFlow."""

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from tf_cnn.cluster.topology import may_be_host, split_hosts
from tf_cnn.system.documents import read_text
from tf_cnn.system.errors import UsageError, plural

_HOST_FILE_BYTES = 1 << 20
# More workers on a host are a mistake, such as a port in the place of their number.
_MOST_WORKERS = 64
# Open MPI's limit for oversubscribed hosts; `cluster` never starts more processes than slots.
_MOST_SLOTS = r'(?: (?:max[_-]slots|slots[_-]max)=\d+)?'
# [user@]name, then the slots as MPICH or Open MPI write them. A name is a host, an alias of ssh, an
# IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(
    r'(?P<user>\w[\w.-]*@)?(?:(?P<name>\w[\w.-]*)|\[(?P<address>[\w:.%-]+)\])'
    rf'{_MOST_SLOTS}(?:(?::| slots=)(?P<slots>\d{{1,4}}))?{_MOST_SLOTS}',
    re.ASCII,
)
# The first bracket of a list such as node[1-4]. An IPv6 address has nothing or @ before it.
_NODE_LIST = re.compile(r'\w\[')

# The tasks of each host (its ssh name) as (job, index): controller, parameter servers, workers.
Layout = Mapping[str, Sequence[tuple[str, int]]]
# The slots of each host: None if the list gives no number, 0 for parameter servers only.
HostSlots = Mapping[str, int | None]


def read_hosts_flag(text: str) -> HostSlots:
    """Parses the text of --hosts: 'a:4,b:4', or 'a,b' without slots."""
    entries = split_hosts(text)
    if os.path.isfile(text):
        raise UsageError(
            f'--hosts={text}: it is a file; use --hostfile={text}, or --hosts={text}:1 for a host '
            'of this name'
        )
    slots = _read_hosts(entries, f'--hosts={text}')
    for name, count in slots.items():
        port = f"for a port use --ssh='ssh -p {count}'"
        _check_workers(f'--hosts={text}', name, count, port)
    if len(slots) < len(entries):
        raise UsageError(
            f'--hosts={text}: a host appears twice; list it once, with the number of its workers'
        )
    return slots


def format_host(name: str) -> str:
    """Returns a host as --hosts has it, with an IPv6 address in brackets."""
    user, at, host = name.rpartition('@')
    return f'{user}{at}[{host}]' if ':' in host else name


def read_host_file(path: str) -> HostSlots:
    """Reads a host file of Open MPI, MPICH, Intel MPI or PBS: one host a line."""
    flag = f'--hostfile={path}'
    try:
        lines = read_text(path, _HOST_FILE_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f'{flag}: it cannot be read ({error}); use a file with one host a line'
        ) from error
    entries = (re.sub(r'\s*=\s*', '=', ' '.join(line.partition('#')[0].split())) for line in lines)
    inventory = f'the output of `ansible all -i {path} --list-hosts | sed 1d` for an inventory'
    return _read_hosts(filter(None, entries), flag, f'; or use {inventory}')


def _read_hosts(entries: Iterable[str], flag: str, advice: str = '') -> HostSlots:
    """Returns the slots of each host; for a repeated host the sum, 1 for each bare entry.

    advice: what else to use, for errors.
    """
    slots_by_host: dict[str, int | None] = {}
    for entry in map(str.strip, entries):
        match = _HOST.fullmatch(entry)
        if _NODE_LIST.search(entry):
            raise UsageError(
                f'{flag}: lists in brackets are not expanded; use each name, for a list of Slurm '
                'from `scontrol show hostnames LIST | paste -sd,`'
            )
        if not match or not _is_host(match):
            raise UsageError(
                f'{flag}: {entry!r} is not a host; use NAME, NAME:NUMBER_OF_WORKERS or, in a file, '
                'NAME slots=NUMBER_OF_WORKERS, and an IPv6 address in brackets: [fd00::1]:4'
                f'{advice}'
            )
        name = (match['user'] or '') + (match['name'] or match['address'])
        slots = int(match['slots']) if match['slots'] else None
        if name in slots_by_host:
            slots = sum(1 if each is None else each for each in (slots_by_host[name], slots))
        slots_by_host[name] = slots
    if all(slots == 0 for slots in slots_by_host.values()):
        raise UsageError(f'{flag}: it has 0 slots for workers; give a host 1 or more')
    return slots_by_host


def _is_host(match: re.Match[str]) -> bool:
    if match['address']:
        with contextlib.suppress(ValueError):
            return bool(ipaddress.IPv6Address(match['address']))
        return False
    return may_be_host(match['name'])


def _check_workers(flag: str, name: str, count: int | None, remedy: str) -> None:
    if count and count > _MOST_WORKERS:
        raise UsageError(
            f'{flag}: {count} workers on {format_host(name)}, above {_MOST_WORKERS}; {remedy}'
        )


def lay_out_tasks(
    slots: HostSlots, flag: str, num_workers: int | None, num_ps: int, num_controllers: int
) -> Layout:
    """Returns the tasks of each host; hosts without a task are omitted.

    Workers fill the slots of the hosts in order; by default there is a worker for each slot. A host
    without a number has one slot. If no host has a number and num_workers is set, the workers are
    divided evenly. Parameter servers go to the hosts with 0 slots, or else to all hosts, in turn.
    The controller runs on the first host.
    """
    names = [*slots]
    if num_workers is not None and all(number is None for number in slots.values()):
        size, larger = divmod(num_workers, len(names))
        counts = [size + (number < larger) for number in range(len(names))]
    else:
        counts = [1 if number is None else number for number in slots.values()]
        num_remaining = sum(counts) if num_workers is None else num_workers
        if num_remaining > sum(counts):
            raise UsageError(
                f'--workers={num_workers}: {flag} has {plural(sum(counts), "slot")}; use at '
                'most as many workers'
            )
        for host, number in enumerate(counts):
            counts[host] = min(number, num_remaining)
            num_remaining -= counts[host]
    for name, count in zip(names, counts, strict=True):
        _check_workers(flag, name, count, 'use --workers')
    jobs: list[list[tuple[str, int]]] = [[] for _ in names]
    jobs[0] += [('controller', number) for number in range(num_controllers)]
    servers = [
        here for here, number in zip(jobs, slots.values(), strict=True) if number == 0
    ] or jobs
    for number in range(num_ps):
        servers[number % len(servers)].append(('ps', number))
    first = 0
    for here, count in zip(jobs, counts, strict=True):
        here += [('worker', number) for number in range(first, first + count)]
        first += count
    return {name: here for name, here in zip(names, jobs, strict=True) if here}


def select_hosts(slots: HostSlots, workers: int, num_ps: int, num_controllers: int) -> str:
    """Returns the first hosts with slots for all workers, and the hosts without slots, as in
    --hosts. Raises UsageError if they do not suffice.
    """
    num_unplaced, entries = workers, dict[str, int | None]()
    for name, count in slots.items():
        if num_unplaced > 0 or count == 0:
            entries[name] = count
        num_unplaced -= 1 if count is None else count
    text = ','.join(
        format_host(name) + ('' if count is None else f':{count}')
        for name, count in entries.items()
    )
    lay_out_tasks(entries, f'--hosts={text}', workers, num_ps, num_controllers)
    return text
