"""Which process of a cluster runs on which host, by lists of hosts. Does not import TensorFlow."""

import re
from collections.abc import Mapping, Sequence

from cluster.topology import read_ipv6, with_brackets
from errors import UsageError, plural, read_regular

# The most hosts of a list, and the most processes on one.
_MOST_HOSTS, _MOST_SLOTS = 4096, 1024
_HOST_FILE_BYTES = 1 << 20
# user@name, where a name is a host, an alias of ssh, an IPv4 address or an IPv6 address; then :slots.
_HOST = re.compile(
    r'(?P<user>\w[\w.-]*@)?(?:(?P<name>\w[\w.-]*)|\[(?P<address>[\w:.%-]+)\])(?::(?P<slots>\d{1,9}))?', re.ASCII
)
# After a host: how many slots it has, as Open MPI, LAM and LSF write it, and what says no more about that.
_SLOTS = re.compile(r'(?:(?:slots|cpu|count)=)?(\d{1,9})', re.ASCII)
_MOST_OF_HOST = re.compile(r'(?:max[_-]slots|slots[_-]max)=\d{1,9}', re.ASCII)
_FORMS = 'the known forms are `a`, `a:4`, `a 4`, `a slots=4 max_slots=8`, `a cpu=4`, and `[fd00::1]:4` with IPv6'

# The processes of each host, by its name as ssh takes it: the controller, parameter servers, workers.
Layout = Mapping[str, Sequence[tuple[str, int]]]
# How many workers each host may have, by its name: None if the list does not say, 0 for parameter servers alone.
Slots = Mapping[str, int | None]


def read_hosts_flag(text: str) -> dict[str, int | None]:
    """Returns the hosts of --hosts=a:4,b:4, or a,b without numbers of workers."""
    flag = f'--hosts={text}'
    found: dict[str, int | None] = {}
    for entry in text.split(','):
        name, slots = _read_host(entry.strip(), flag, 'write NAME or NAME:NUMBER_OF_WORKERS, or [ADDRESS] with IPv6')
        if name in found:
            once = f'{with_brackets(name)}:2'
            raise UsageError(f'{flag}: {name} is listed twice; write it once, with the number of its workers: {once}')
        found[name] = slots
    return _checked(found, flag)


def read_host_file(path: str) -> dict[str, int | None]:
    """Returns the hosts of a file, as Open MPI, MPICH, Intel MPI, LAM, PBS, LSF and SGE write them.

    A host in several lines has a slot for each of them, or the sum of their numbers.
    """
    flag = f'--hostfile={path}'
    try:
        lines = read_regular(path, _HOST_FILE_BYTES).decode('utf-8-sig').splitlines()
    except OSError as error:
        raise UsageError(f'{flag}: it cannot be read ({error.strerror or error}); write the path of a file') from error
    except UnicodeDecodeError as error:
        raise UsageError(f'{flag}: it is no text; write a host in each line, such as `a slots=4`') from error
    found: dict[str, int | None] = {}
    for number, line in enumerate(lines, 1):
        where = f'{flag}: line {number} is {line.strip()!r}'
        for entry, given in _entries(re.sub(r'\s*=\s*', '=', line.partition('#')[0]).split(), where):
            name, slots = _read_host(entry, where, _FORMS, has_slots=given is not None)
            slots = slots if given is None else given
            if name in found:
                slots = sum(1 if each is None else each for each in (found[name], slots))
            found[name] = slots
    return _checked(found, flag)


def _entries(words: Sequence[str], where: str) -> list[tuple[str, int | None]]:
    """Returns the hosts of a line of a host file, with their slots if these stand apart."""
    words = [word for word in words if not _MOST_OF_HOST.fullmatch(word)]
    counts = [_SLOTS.fullmatch(word) for word in words[1::2]]
    if len(words) < 2:
        return [(word, None) for word in words]
    # SGE: the host, its slots, its queue, its cores.
    if len(words) == 4 and '@' in words[2] and counts[0]:
        return [(words[0], int(counts[0][1]))]
    # LSF has all hosts in one line: a 4 b 2.
    if len(words) % 2 or not all(counts):
        raise UsageError(f'{where}; {_FORMS}')
    return [(word, int(count[1])) for word, count in zip(words[::2], counts, strict=True) if count]


def _read_host(entry: str, where: str, forms: str, *, has_slots: bool = False) -> tuple[str, int | None]:
    """Returns the name of a host, as ssh takes it, and its slots; has_slots: they stand apart from the entry."""
    match = _HOST.fullmatch(entry)
    name = (match['name'] or read_ipv6(match['address'])) if match else None
    if not match or not name or (has_slots and match['slots']):
        raise UsageError(f'{where}: {entry!r} is no host; {forms}')
    return (match['user'] or '') + name, int(match['slots']) if match['slots'] else None


def _checked(found: dict[str, int | None], flag: str) -> dict[str, int | None]:
    for name, slots in found.items():
        if slots is not None and slots > _MOST_SLOTS:
            raise UsageError(f'{flag}: {name} has {slots} slots; write at most {_MOST_SLOTS}')
    if not 1 <= len(found) <= _MOST_HOSTS:
        raise UsageError(f'{flag}: it has {plural(len(found), "host")}; write 1 to {_MOST_HOSTS}')
    if all(slots == 0 for slots in found.values()):
        raise UsageError(f'{flag}: it has 0 slots for workers; write a host with 1 or more')
    return found


def lay_out(slots: Slots, flag: str, num_workers: int | None, num_ps: int, num_controllers: int) -> Layout:
    """Returns which processes run on which host.

    Workers fill the slots of the hosts in order; by default there are as many as slots. A host without a number has
    one slot, but if no host has a number, the workers are divided evenly. Parameter servers go round the hosts, one
    on each, or round those with 0 slots if there are any. The controller is on the first host.
    """
    names = [*slots]
    if num_workers is not None and all(number is None for number in slots.values()):
        size, larger = divmod(num_workers, len(names))
        counts = [size + (number < larger) for number in range(len(names))]
    else:
        counts = [1 if number is None else number for number in slots.values()]
        left = sum(counts) if num_workers is None else num_workers
        if left > sum(counts):
            raise UsageError(
                f'--workers={num_workers}: {flag} has {plural(sum(counts), "slot")}; write at most as many'
            )
        for host, number in enumerate(counts):
            counts[host] = min(number, left)
            left -= counts[host]
    jobs: list[list[tuple[str, int]]] = [[] for _ in names]
    jobs[0] += [('controller', number) for number in range(num_controllers)]
    servers = [here for here, number in zip(jobs, slots.values(), strict=True) if number == 0] or jobs
    for number in range(num_ps):
        servers[number % len(servers)].append(('ps', number))
    first = 0
    for here, count in zip(jobs, counts, strict=True):
        here += [('worker', number) for number in range(first, first + count)]
        first += count
    if idle := [name for name, here in zip(names, jobs, strict=True) if not here]:
        raise UsageError(
            f'{flag}: {", ".join(idle)} would have no process; leave it out, or start more with --workers or --ps'
        )
    return dict(zip(names, jobs, strict=True))
