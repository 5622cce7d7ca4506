"""Finds the differences between runs: flags, machine and software, work. Does not import
TensorFlow.

A difference maps the name of a fact to its value in every run; None if unknown or not set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_cnn.compare.original_logs import is_log
from tf_cnn.params.table import SPECS
from tf_cnn.results.document import Result, as_json, default_setting

Properties = Mapping[str, Any]
Differences = dict[str, tuple[Any, ...]]


def flag_differences(results: Sequence[Result]) -> Differences:
    """Returns the flags that differ, with the values that were used.

    A flag that a version does not have counts as its default. For a flag that this version does not
    have, it counts whether it was given.
    """
    flag_values = [result.settings for result in results]
    if any(map(is_log, results)):
        return find_differences(flag_values)
    explicit_flags = {name for result in results for name in result.given_flags}
    values = {
        name: tuple(
            found.get(name, default_setting(name) if name in SPECS else None)
            for found in flag_values
        )
        for name in find_varying_names(flag_values)
        if name in SPECS or name in explicit_flags or all(name in found for found in flag_values)
    }
    return {name: found for name, found in values.items() if not _all_same(found)}


def machine_differences(results: Sequence[Result]) -> Differences:
    """Returns the differences between machines, their software, and what limit_differences
    finds.
    """
    properties_of_runs = [_machine_properties(result) for result in results]
    return find_differences(properties_of_runs) | limit_differences(results)


def limit_differences(results: Sequence[Result]) -> Differences:
    """Returns the differences between what limited runs (Result.limits) and between their
    environment variables.

    A limit that only one of them has counts, and so does a variable: None for the others. Logs name
    neither.
    """
    if any(map(is_log, results)):
        return {}
    limits_of_runs = [
        {
            **result.limits,
            **{f'environment.{name}': value for name, value in result.environment.items()},
        }
        for result in results
    ]
    return {
        name: tuple(run.get(name) for run in limits_of_runs)
        for name in find_varying_names(limits_of_runs)
    }


def format_property(value: object) -> str:
    """Formats a value for people: a missing one as none, numbers of cores as 0-3,8."""
    if value is None:
        return 'none'
    if not isinstance(value, list | tuple):
        return str(value)
    if not value or not all(type(item) is int for item in value):
        return ', '.join(map(format_property, value)) or 'none'
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


def _machine_properties(result: Result) -> Properties:
    """Returns facts of machine and software in one level: 'cpu_model', 'versions.tensorflow'."""
    ignored_names = {'fingerprint', 'load_average', *result.limits}
    properties: dict[str, Any] = {}
    sources: dict[str, Mapping[str, Any]] = {
        '': {name: value for name, value in result.machine.items() if name not in ignored_names},
        'program.': as_json(result.program) or {},
    }
    for prefix, source in sources.items():
        for name, value in source.items():
            if isinstance(value, Mapping):
                properties.update({f'{prefix}{name}.{key}': inner for key, inner in value.items()})
            elif name == 'gpus':
                properties['gpus'] = [gpu.get('name') for gpu in value or []]
            else:
                properties[f'{prefix}{name}'] = value
    return properties


def find_differences(properties_of_runs: Sequence[Properties]) -> Differences:
    """Returns the values that differ, by name. Unknown values (None, or missing) do not count as
    differences.
    """
    names = sorted({name for found in properties_of_runs for name in found})
    values = {name: tuple(found.get(name) for found in properties_of_runs) for name in names}
    return {
        name: found
        for name, found in values.items()
        if not _all_same([value for value in found if value is not None])
    }


def find_varying_names(properties_of_runs: Sequence[Properties]) -> list[str]:
    """Returns the names whose values are not the same in all facts, sorted; a missing value counts
    as None.
    """
    names = {name for found in properties_of_runs for name in found}
    return sorted(
        name
        for name in names
        if any(found.get(name) != properties_of_runs[0].get(name) for found in properties_of_runs)
    )


def _all_same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)
