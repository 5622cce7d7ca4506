"""Which process of a cluster runs on which host, by lists of hosts. Does not import TensorFlow."""

import re
from collections.abc import Iterable, Mapping, Sequence

from tf_cnn.cluster.topology import may_be_host, split_hosts
from tf_cnn.system.errors import UsageError, plural, read_regular_file

_HOST_FILE_BYTES = 1 << 20
# Open MPI's limit for more processes than slots, which `cluster` never starts.
_MOST_SLOTS = r'(?: (?:max[_-]slots|slots[_-]max)=\d+)?'
# user@name, where a name is a host, an alias of ssh, an IPv4 address or an IPv6 address; then its
# slots, as MPICH and as Open MPI write them.
_HOST = re.compile(
    r'(?P<user>\w[\w.-]*@)?(?:(?P<name>\w[\w.-]*)|\[(?P<address>[\w:.%-]+)\])'
    rf'{_MOST_SLOTS}(?:(?::| slots=)(?P<slots>\d{{1,4}}))?{_MOST_SLOTS}',
    re.ASCII,
)

# The processes of each host, by its name as ssh takes it: the controller, parameter servers,
# workers.
Layout = Mapping[str, Sequence[tuple[str, int]]]
# How many workers each host may have, by its name: None if the list does not say, 0 for parameter
# servers alone.
HostSlots = Mapping[str, int | None]


def read_hosts_flag(text: str) -> HostSlots:
    """Returns the hosts of --hosts=a:4,b:4, or a,b without numbers of workers."""
    entries = split_hosts(text)
    slots = _read_hosts(entries, f'--hosts={text}')
    if len(slots) < len(entries):
        raise UsageError(
            f'--hosts={text}: a host is listed twice; write it once, with the number of its workers'
        )
    return slots


def read_host_file(path: str) -> HostSlots:
    """Returns the hosts of a file with one in each line, as Open MPI, MPICH, Intel MPI and PBS
    write them.
    """
    flag = f'--hostfile={path}'
    try:
        lines = read_regular_file(path, _HOST_FILE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f'{flag}: it cannot be read ({error}); write a file with a host in each line'
        ) from error
    entries = (re.sub(r'\s*=\s*', '=', ' '.join(line.partition('#')[0].split())) for line in lines)
    return _read_hosts(filter(None, entries), flag)


def _read_hosts(entries: Iterable[str], flag: str) -> HostSlots:
    """Returns the slots of each host. One that is listed several times has a slot for each, or the
    sum of its slots.
    """
    slots_by_host: dict[str, int | None] = {}
    for entry in map(str.strip, entries):
        match = _HOST.fullmatch(entry)
        if not match or not may_be_host(match['name'] or match['address']):
            raise UsageError(
                f'{flag}: {entry!r} is no host; write NAME, NAME:NUMBER_OF_WORKERS or, in a file, '
                'NAME slots=NUMBER_OF_WORKERS, and an IPv6 address in brackets: [fd00::1]:4'
            )
        name = (match['user'] or '') + (match['name'] or match['address'])
        slots = int(match['slots']) if match['slots'] else None
        if name in slots_by_host:
            slots = sum(1 if each is None else each for each in (slots_by_host[name], slots))
        slots_by_host[name] = slots
    if all(slots == 0 for slots in slots_by_host.values()):
        raise UsageError(f'{flag}: it has 0 slots for workers; write a host with 1 or more')
    return slots_by_host


def lay_out_tasks(
    slots: HostSlots, flag: str, num_workers: int | None, num_ps: int, num_controllers: int
) -> Layout:
    """Returns which processes run on which host.

    Workers fill the slots of the hosts in order; by default there are as many as slots. A host
    without a number has one slot, but if no host has a number, the workers are divided evenly.
    Parameter servers go round the hosts, one on each, or round those with 0 slots if there are any.
    The controller is on the first host. Hosts without a process are left out.
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
                f'--workers={num_workers}: {flag} has {plural(sum(counts), "slot")}; write at '
                'most as many'
            )
        for host, number in enumerate(counts):
            counts[host] = min(number, num_remaining)
            num_remaining -= counts[host]
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
