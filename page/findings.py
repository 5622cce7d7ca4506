"""What the report says about machines, flags and warnings. Does not import TensorFlow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comparison import differences
from errors import counted
from page.measured import Run, as_text
from page.rows import Summary, number
from results.advice import counted_cores

_MOST_VALUES = 12
# Of machines: it is the heading of their columns.
_HEADING = 'hostname'
_GIBIBYTE = 2**30


@dataclass(frozen=True)
class MachineCard:
    """A machine: its host name, its facts as names and texts, and how many runs it did."""

    host: str
    fingerprint: str
    facts: Sequence[tuple[str, str]]
    num_runs: int


@dataclass(frozen=True)
class WarningGroup:
    """The warnings of one code.

    Attributes:
      texts: the different ones, the most frequent first. labels: the settings whose runs gave them.
      num_runs: how many runs gave one, of all_runs.
    """

    code: str
    texts: Sequence[str]
    labels: Sequence[str]
    num_runs: int
    all_runs: int


@dataclass(frozen=True)
class EndedGroup:
    """The settings whose runs failed or were stopped for one reason."""

    status: str
    reason: str
    labels: Sequence[str]


def machine_cards(runs: Sequence[Run]) -> list[MachineCard]:
    """A card for each machine, in the order of their first runs."""
    found = {run.machine: run.record.machine for run in reversed(runs)}
    counts = Counter(run.machine for run in runs)
    return [
        MachineCard(str(found[mark]['hostname']), mark, list(_machine_facts(found[mark]).items()), counts[mark])
        for mark in dict.fromkeys(run.machine for run in runs)
    ]


def machine_differences(runs: Sequence[Run]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The host names of all machines, and each fact that differs with its text for each; no facts for one machine.

    Of each machine its first run counts. What differs between runs of one machine, too, is told by flag_differences.
    """
    records = [*{run.machine: run.record for run in reversed(runs)}.values()][::-1]
    found = differences.differing([differences.machine_facts(record) for record in records])
    variables = {f'environment.{name}' for name in differences.environment_differences(records)}
    hosts = [str(record.machine['hostname']) for record in records]
    rows = [(name, values) for name, values in found.items() if name != _HEADING and name not in variables]
    return hosts, [(name, [_fact(name, value) for value in values]) for name, values in rows]


def flag_differences(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, int]]]]:
    """The flags and environment variables that differ between runs: each value with the number of runs that had it."""
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
    groups = [
        WarningGroup(
            code,
            [text for text, _ in texts[code].most_common()],
            list(dict.fromkeys(found.values())),
            len(found),
            len(summary.runs),
        )
        for code, found in labels.items()
    ]
    return sorted(groups, key=lambda group: -group.num_runs)


def ended_groups(summary: Summary) -> list[EndedGroup]:
    """The settings without a complete result, by the reason."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in summary.rows:
        if row.reason:
            labels.setdefault((row.status, row.reason), []).append(row.label)
    return [EndedGroup(status, reason, found) for (status, reason), found in labels.items()]


def _machine_facts(machine: Mapping[str, Any]) -> dict[str, str]:
    versions = machine.get('versions') or {}
    threads = machine.get('threads') or {}
    memory = machine.get('memory_bytes')
    gpus = Counter(str(gpu.get('name', 'GPU')) for gpu in machine.get('gpus') or ())
    facts = {
        'processor': machine.get('cpu_model'),
        'cores': _cores(machine),
        'GPUs': ', '.join(f'{count} {name}' for name, count in gpus.items()) or 'none',
        'memory': f'{number(memory / _GIBIBYTE, 3)} GiB' if memory else None,
        'limits of its container': _limits(machine),
        'frequency governor': machine.get('governor'),
        # Without the fact the key is None, which the table lacks; mypy wants a bool.
        'virtual': {True: 'yes', False: 'no'}.get(machine.get('is_virtual')),  # type: ignore[arg-type]
        'system': ', '.join(str(machine[name]) for name in ('os', 'kernel') if machine.get(name)),
        'threads': ', '.join(
            f'{threads[name]} {name.replace("_", "-")}' for name in ('intra_op', 'inter_op') if threads.get(name)
        ),
        **{
            {'tensorflow': 'TensorFlow', 'python': 'Python', 'numpy': 'NumPy'}.get(name, name): versions[name]
            for name in versions
        },
    }
    return {name: str(value) for name, value in facts.items() if value}


def _cores(machine: Mapping[str, Any]) -> str | None:
    logical, physical, sockets = (machine.get(name) for name in ('num_cores', 'num_physical_cores', 'num_sockets'))
    if not logical:
        return None
    parts = [f'{logical} logical', f'{physical} physical' if physical else '']
    return ', '.join(part for part in (*parts, f'{sockets} sockets' if sockets and sockets > 1 else '') if part)


def _limits(machine: Mapping[str, Any]) -> str | None:
    cpus, memory = machine.get('cgroup_cpus'), machine.get('cgroup_memory_bytes')
    parts = [
        counted_cores(cpus) if cpus else '',
        f'{number(memory / _GIBIBYTE, 3)} GiB' if memory else '',
    ]
    return ', '.join(part for part in parts if part) or None


def _listed(counts: Counter[str]) -> list[tuple[str, int]]:
    values = counts.most_common(_MOST_VALUES)
    others = len(counts) - len(values)
    return (
        [*values, (f'and {counted(others, "other value")}', counts.total() - sum(count for _, count in values))]
        if others
        else values
    )


def _fact(name: str, value: object) -> str:
    if value is None:
        return '—'
    if name.endswith('_bytes') and isinstance(value, int):
        return f'{number(value / _GIBIBYTE, 3)} GiB'
    return ', '.join(map(str, value)) if isinstance(value, list) else as_text(value)
