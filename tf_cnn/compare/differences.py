"""Finds the differences between runs: flags, machine and software, work. Does not import
TensorFlow.

A difference maps the name of a fact to its value in every run; None if unknown or not set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_cnn.compare.original_logs import is_log
from tf_cnn.params.table import SPECS
from tf_cnn.results.document import Result, as_json, default_fact

Facts = Mapping[str, Any]
Differences = dict[str, tuple[Any, ...]]


def flag_differences(results: Sequence[Result]) -> Differences:
    """Returns the flags that differ, with the values that were used.

    A flag that a version does not have counts as its default. For a flag that this version does not
    have, it counts whether it was given.
    """
    facts = [result.facts for result in results]
    if any(map(is_log, results)):
        return differing(facts)
    given = {name for result in results for name in result.given}
    values = {
        name: tuple(
            found.get(name, default_fact(name) if name in SPECS else None) for found in facts
        )
        for name in varying(facts)
        if name in SPECS or name in given or all(name in found for found in facts)
    }
    return {name: found for name, found in values.items() if not _all_same(found)}


def machine_differences(results: Sequence[Result]) -> Differences:
    """Returns the differences between machines, their software, and what limit_differences
    finds.
    """
    facts = [_flat_machine_facts(result) for result in results]
    return differing(facts) | limit_differences(results)


def limit_differences(results: Sequence[Result]) -> Differences:
    """Returns the differences between what limited runs (Result.limits) and between their
    environment variables.

    A limit that only one of them has counts, and so does a variable: None for the others. Logs name
    neither.
    """
    if any(map(is_log, results)):
        return {}
    facts = [
        {
            **result.limits,
            **{f'environment.{name}': value for name, value in result.environment.items()},
        }
        for result in results
    ]
    return {name: tuple(run.get(name) for run in facts) for name in varying(facts)}


def format_fact(value: object) -> str:
    """Formats a value for people: a missing one as none, numbers of cores as 0-3,8."""
    if value is None:
        return 'none'
    if not isinstance(value, list | tuple):
        return str(value)
    if not value or not all(type(item) is int for item in value):
        return ', '.join(map(format_fact, value)) or 'none'
    starts = [item for place, item in enumerate(value) if not place or item != value[place - 1] + 1]
    ends = [
        item
        for place, item in enumerate(value)
        if place + 1 == len(value) or item + 1 != value[place + 1]
    ]
    return ','.join(
        str(start) if start == end else f'{start}-{end}'
        for start, end in zip(starts, ends, strict=True)
    )


def _flat_machine_facts(result: Result) -> Facts:
    """Returns facts of machine and software in one level: 'cpu_model', 'versions.tensorflow'."""
    left_out = {'fingerprint', 'load_average', *result.limits}
    facts: dict[str, Any] = {}
    sources: dict[str, Mapping[str, Any]] = {
        '': {name: value for name, value in result.machine.items() if name not in left_out},
        'program.': as_json(result.program) or {},
    }
    for prefix, source in sources.items():
        for name, value in source.items():
            if isinstance(value, Mapping):
                facts.update({f'{prefix}{name}.{key}': inner for key, inner in value.items()})
            elif name == 'gpus':
                facts['gpus'] = [gpu.get('name') for gpu in value or []]
            else:
                facts[f'{prefix}{name}'] = value
    return facts


def differing(facts: Sequence[Facts]) -> Differences:
    """Returns the values that differ, by name. Unknown values (None, or missing) do not count as
    differences.
    """
    names = sorted({name for found in facts for name in found})
    values = {name: tuple(found.get(name) for found in facts) for name in names}
    return {
        name: found
        for name, found in values.items()
        if not _all_same([value for value in found if value is not None])
    }


def varying(facts: Sequence[Facts]) -> list[str]:
    """Returns the names whose values are not the same in all facts, sorted; a missing value counts
    as None.
    """
    names = {name for found in facts for name in found}
    return sorted(
        name for name in names if any(found.get(name) != facts[0].get(name) for found in facts)
    )


def _all_same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)
