"""What the report says about machines, flags, warnings and failures. Does not import TensorFlow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comparison import differences
from errors import counted
from page.rows import Run, Summary, as_text, number
from results.advice import counted_cores

_MOST_VALUES = 12
# The heading of the columns of machines, so it is not listed among their differences.
_HEADING = 'hostname'
_GIBIBYTE = 2**30
_LIBRARIES = {'tensorflow': 'TensorFlow', 'python': 'Python', 'numpy': 'NumPy'}


@dataclass(frozen=True)
class MachineCard:
    """A machine: its host name, its facts as names and texts, and how many runs it did."""

    host: str
    fingerprint: str
    facts: Mapping[str, str]
    num_runs: int


@dataclass(frozen=True)
class WarningGroup:
    """The warnings of one code.

    Attributes:
      code: what they have in common.
      texts: the different ones, the most frequent first.
      labels: the settings whose runs gave them.
      num_runs: how many runs gave one.
      all_runs: how many runs there are.
    """

    code: str
    texts: Sequence[str]
    labels: Sequence[str]
    num_runs: int
    all_runs: int


def machine_cards(runs: Sequence[Run]) -> list[MachineCard]:
    """A card for each machine, in the order of their first runs."""
    counts = Counter(run.machine for run in runs)
    return [
        MachineCard(str(record.machine['hostname']), mark, _machine_facts(record.machine), counts[mark])
        for mark, record in _first_records(runs).items()
    ]


def machine_differences(runs: Sequence[Run]) -> list[list[str]]:
    """A table of what differs between machines: its heading, then a line for each fact. Empty if nothing differs.

    Each machine is described by its first run. flag_differences lists what also differs between runs of one machine.
    """
    records = [*_first_records(runs).values()]
    found = differences.differing([differences.machine_facts(record) for record in records])
    variables = {f'environment.{name}' for name in differences.environment_differences(records)}
    lines = [
        [name, *(_fact(name, value) for value in values)]
        for name, values in found.items()
        if name != _HEADING and name not in variables
    ]
    return [['fact', *(str(record.machine['hostname']) for record in records)], *lines] if lines else []


def flag_differences(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The flags and environment variables that differ between runs, each with its values and their numbers of runs."""
    records = [run.record for run in runs]
    found = differences.flag_differences(records) | differences.environment_differences(records)
    return [(name, _listed(Counter(map(as_text, found[name])))) for name in sorted(found)]


def warning_groups(summary: Summary) -> list[WarningGroup]:
    """The warnings of all runs by their code, those of most runs first."""
    texts: dict[str, Counter[str]] = {}
    labels: dict[str, dict[int, str]] = {}
    for row in summary.rows:
        for run in row.runs:
            for warning in run.record.warnings:
                code = str(warning.get('code', ''))
                texts.setdefault(code, Counter())[str(warning.get('text', ''))] += 1
                labels.setdefault(code, {})[id(run)] = row.label
    groups = []
    for code, found in labels.items():
        each = [text for text, _ in texts[code].most_common()]
        groups.append(WarningGroup(code, each, list(dict.fromkeys(found.values())), len(found), len(summary.runs)))
    return sorted(groups, key=lambda group: -group.num_runs)


def ended_groups(summary: Summary) -> dict[tuple[str, str], list[str]]:
    """The labels of the settings without a complete result, by status and reason."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in summary.rows:
        if row.reason:
            labels.setdefault((row.status, row.reason), []).append(row.label)
    return labels


def _first_records(runs: Sequence[Run]) -> dict[str, Any]:
    """The first result of each machine, by its fingerprint."""
    records: dict[str, Any] = {}
    for run in runs:
        records.setdefault(run.machine, run.record)
    return records


def _machine_facts(machine: Mapping[str, Any]) -> dict[str, str]:
    def listed(*facts: tuple[str, str]) -> str:
        """The facts that are known, each by its key and the text that follows its value."""
        return ', '.join(f'{machine[name]}{text}' for name, text in facts if machine.get(name))

    gpus = Counter(str(gpu.get('name', 'GPU')) for gpu in machine.get('gpus') or ())
    threads, versions = machine.get('threads') or {}, machine.get('versions') or {}
    cpus = machine.get('cgroup_cpus')
    limits = (counted_cores(cpus) if cpus else None, _gibibytes(machine.get('cgroup_memory_bytes')))
    sockets = [('num_sockets', ' sockets')] if (machine.get('num_sockets') or 0) > 1 else []
    facts = {
        'processor': machine.get('cpu_model'),
        'cores': listed(('num_cores', ' logical'), ('num_physical_cores', ' physical'), *sockets),
        'GPUs': ', '.join(f'{count} {name}' for name, count in gpus.items()) or 'none',
        'memory': _gibibytes(machine.get('memory_bytes')),
        'limits of its container': ', '.join(limit for limit in limits if limit),
        'frequency governor': machine.get('governor'),
        'virtual': None if machine.get('is_virtual') is None else 'yes' if machine['is_virtual'] else 'no',
        'system': listed(('os', ''), ('kernel', '')),
        'threads': ', '.join(
            f'{threads[name]} {name.replace("_", "-")}' for name in ('intra_op', 'inter_op') if threads.get(name)
        ),
        **{_LIBRARIES.get(name, name): version for name, version in versions.items()},
    }
    return {name: str(value) for name, value in facts.items() if value}


def _listed(counts: Counter[str]) -> str:
    """The most frequent values, each with its count."""
    values = [f'{text} ({counted(count, "run")})' for text, count in counts.most_common(_MOST_VALUES)]
    others = len(counts) - len(values)
    return ', '.join([*values, f'and {counted(others, "other value")}'] if others else values)


def _gibibytes(size: float | None) -> str | None:
    return f'{number(size / _GIBIBYTE, 3)} GiB' if size else None


def _fact(name: str, value: object) -> str:
    if value is None:
        return '—'
    if name.endswith('_bytes') and isinstance(value, int):
        return _gibibytes(value) or '0'
    return ', '.join(map(str, value)) if isinstance(value, list) else as_text(value)
