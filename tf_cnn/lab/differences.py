"""Finds the differences between runs: flags, machine and software. Does not import TensorFlow.

Differences map the name of a property to its values, one for each run; None if unknown or not set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_cnn.lab.original_logs import Log, Run
from tf_cnn.lab.settings import default_setting, settings_of
from tf_cnn.plan.params import SPECS
from tf_cnn.results.document import Result
from tf_cnn.system.documents import as_json

Properties = Mapping[str, Any]
Differences = dict[str, tuple[Any, ...]]


def flag_differences(results: Sequence[Run]) -> Differences:
    """Returns the flags that differ, with the values that were used.

    If a run's version lacks a flag, the flag counts as its default. A flag that this version lacks
    counts only if it was given, or if all runs have it.
    """
    flag_values = [settings_of(result) for result in results]
    if not all(isinstance(result, Result) for result in results):
        return find_differences(flag_values)
    explicit_flags = {name for result in results for name in result.given_flags}
    values_by_name = {
        name: tuple(
            run.get(name, default_setting(name) if name in SPECS else None) for run in flag_values
        )
        for name in find_varying_names(flag_values)
        if name in SPECS or name in explicit_flags or all(name in run for run in flag_values)
    }
    return {name: values for name, values in values_by_name.items() if not _all_same(values)}


def machine_differences(results: Sequence[Run]) -> Differences:
    """Returns the differences between machines and their software, with limit_differences."""
    properties_of_runs = [_machine_properties(result) for result in results]
    return find_differences(properties_of_runs) | limit_differences(results)


def limit_differences(results: Sequence[Run]) -> Differences:
    """Returns the differences between the limits (Result.limits) and environment variables of runs.

    A limit or variable that some runs lack counts as a difference: None for these runs. Logs
    contain neither limits nor variables, and commands no variables that this program sets.
    """
    kinds = {type(result) for result in results}
    if Log in kinds:
        return {}
    limits_of_runs = [
        {
            **result.limits,
            **{
                f'environment.{name}': value
                for name, value in result.environment.items()
                if len(kinds) == 1
            },
        }
        for result in results
    ]
    return {
        name: tuple(run.get(name) for run in limits_of_runs)
        for name in find_varying_names(limits_of_runs)
    }


def format_property(value: object) -> str:
    """Formats a value for people: None as 'none', core numbers as 0-3,8."""
    if value is None:
        return 'none'
    if not isinstance(value, list | tuple):
        return str(value)
    if not value or not all(type(item) is int for item in value):
        return ', '.join(map(format_property, value)) or 'none'
    starts = [item for i, item in enumerate(value) if not i or item != value[i - 1] + 1]
    ends = [item for i, item in enumerate(value) if i + 1 == len(value) or item + 1 != value[i + 1]]
    return ','.join(
        str(start) if start == end else f'{start}-{end}'
        for start, end in zip(starts, ends, strict=True)
    )


def format_differences(differences: Mapping[str, Sequence[Any]]) -> str:
    """Formats differences for people; of the features of processors, only those that some lack."""
    texts = []
    for name, values in differences.items():
        if name == 'cpu_features' and all(values):
            common = set.intersection(*map(set, values))
            values = [[item for item in features if item not in common] for features in values]
        if name.endswith('git_commit'):
            values = [value and value[:9] for value in values]
        texts.append(f'{name} {" -> ".join(map(format_property, values))}')
    return ', '.join(texts)


def _machine_properties(result: Run) -> Properties:
    """Returns the machine and software as one flat mapping: 'cpu_model', 'versions.tensorflow'."""
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
    """Returns the values that differ, by name; unknown values (None or missing) never differ."""
    names = sorted({name for run in properties_of_runs for name in run})
    values_by_name = {name: tuple(run.get(name) for run in properties_of_runs) for name in names}
    return {
        name: values
        for name, values in values_by_name.items()
        if not _all_same([value for value in values if value is not None])
    }


def find_varying_names(properties_of_runs: Sequence[Properties]) -> list[str]:
    """Returns the names that have different values, sorted; a missing value counts as None."""
    names = {name for run in properties_of_runs for name in run}
    return sorted(
        name
        for name in names
        if any(run.get(name) != properties_of_runs[0].get(name) for run in properties_of_runs)
    )


def _all_same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)
