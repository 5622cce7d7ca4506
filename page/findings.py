"""What the report says about machines, flags, warnings and failures. Does not import TensorFlow."""

from collections import Counter
from collections.abc import Sequence

from comparison import differences
from comparison.tables import Table, TableColumn, few
from errors import counted
from page.rows import Summary, as_text, number
from results.document import Record

_MOST_VALUES = 12
# Facts that stand elsewhere, by the beginnings of their names, and those that are too long unless they differ.
_ELSEWHERE = ('environment.', 'hostname')
_LONG = ('affinity', 'cpu_features', 'threads.reason')
_UNKNOWN = '—'


def machine_table(runs: Sequence[Record]) -> Table:
    """A column for each machine, in the order of their first runs, and a line for each fact; those that differ first.

    Each machine is described by its first run. flag_table lists what also differs between runs of one machine.
    """
    counts = Counter(str(record.machine['fingerprint']) for record in runs)
    records = {str(record.machine['fingerprint']): record for record in reversed(runs)}
    facts = [differences.machine_facts(records[mark]) for mark in counts]
    differing = differences.differing(facts)
    known = [name for name in dict.fromkeys(name for found in facts for name in found) if name not in differing]
    names = [*differing, *(name for name in known if name not in _LONG and any(found.get(name) for found in facts))]
    lines = [
        [f'{name} ≠' if name in differing else name, *(_fact(name, found.get(name)) for found in facts)]
        for name in names
        if not name.startswith(_ELSEWHERE)
    ]
    hosts = [TableColumn(str(records[mark].machine['hostname'])) for mark in counts]
    first = [['runs', *map(str, counts.values())], ['fingerprint', *counts]]
    return Table([TableColumn('fact'), *hosts], [*first, *lines])


def flag_table(runs: Sequence[Record]) -> Table:
    """The flags and environment variables that differ between runs, each with its values and their numbers of runs."""
    found = differences.flag_differences(runs) | differences.environment_differences(runs)
    rows = [(name, _listed(Counter(map(as_text, found[name])))) for name in sorted(found)]
    return Table([TableColumn('flag'), TableColumn('values')], rows)


def warning_groups(summary: Summary) -> list[tuple[str, str, str]]:
    """The warnings of all runs, those of most runs first: their code, the most frequent text, and the runs."""
    texts: dict[str, Counter[str]] = {}
    labels: dict[str, dict[int, str]] = {}
    for row in summary.rows:
        for record in row.runs:
            for warning in record.warnings:
                code = str(warning.get('code', ''))
                texts.setdefault(code, Counter())[str(warning.get('text', ''))] += 1
                labels.setdefault(code, {})[id(record)] = row.label
    groups = []
    for code, found in sorted(labels.items(), key=lambda item: -len(item[1])):
        where = f'{len(found)} of {counted(len(summary.runs), "run")}'
        if len(found) < len(summary.runs):
            where += f': {few([*dict.fromkeys(found.values())])}'
        ((text, _),) = texts[code].most_common(1)
        others = f' (and {len(texts[code]) - 1} with other figures)' if len(texts[code]) > 1 else ''
        groups.append((code, f'{text}{others}', where))
    return groups


def ended_groups(summary: Summary) -> dict[tuple[str, str], list[str]]:
    """The labels of the settings without a complete result, by status and reason."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in summary.rows:
        if row.reason:
            labels.setdefault((row.status, row.reason), []).append(row.label)
    return labels


def _listed(counts: Counter[str]) -> str:
    """The most frequent values, each with its count."""
    values = [f'{text} ({counted(count, "run")})' for text, count in counts.most_common(_MOST_VALUES)]
    others = len(counts) - len(values)
    return ', '.join([*values, f'and {counted(others, "other value")}'] if others else values)


def _fact(name: str, value: object) -> str:
    if value is None:
        return _UNKNOWN
    if name.endswith('_bytes') and isinstance(value, int):
        return f'{number(value / 2**30, 3)} GiB'
    # Such as the names of eight equal GPUs.
    values = Counter(map(as_text, value if isinstance(value, list) else [value]))
    return ', '.join(f'{count} * {text}' if count > 1 else text for text, count in values.items())
