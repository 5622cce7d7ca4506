"""What tells runs apart: their settings, their differences, and which are repeats of each other.
Does not import TensorFlow.

Differences map the name of a property to its values, one for each run; None if unknown or not set.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tf_cnn.lab.original_logs import Log, Run
from tf_cnn.machine.run_environment import has_generated_name, short_commit
from tf_cnn.plan.params import SPECS
from tf_cnn.results.document import COMMAND_TIME, WALL_TIME, CommandResult, Result
from tf_cnn.system.documents import as_json

T = TypeVar('T')
Properties = Mapping[str, Any]
Differences = dict[str, tuple[Any, ...]]

# The values of omitted flags that are part of the setting of a run.
_DEFAULTS = {
    name: False if spec.output else spec.default for name, spec in SPECS.items() if spec.setting
}
# The name of several hosts: 'a with b'.
WITH = ' with '
# Which of several numbers of a command a run has.
MEASURED = 'measured'


# ---- settings ------------------------------------------------------------------------------------


def hosts_of(run: Run) -> tuple[str, ...]:
    """Returns the hosts of all workers, the chief's first; () if unknown."""
    if isinstance(run, CommandResult) and (pair := run.flags.get('pair')):
        return tuple(pair.split(WITH))
    name = run.machine.get('hostname')
    # What container runtimes generate differs from run to run.
    if isinstance(run, Result) and not has_generated_name(run.machine):
        hosts = dict.fromkeys(worker.host for worker in run.workers)
        return (name, *(host for host in hosts if host != name)) if name else tuple(hosts)
    return (name,) if name else ()


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the shape, and the values of flags that affect a step or the time between steps: of
    given flags what the run used, of others the default.

    A flag that names an output has the value True if the run wrote there, else False. A few flags,
    such as --batch_size, always have the value that the run used.
    """
    if isinstance(run, CommandResult):
        # All of it is the setting: what {placeholders} stand for may have the name of any flag.
        return dict(run.flags)
    defaults = {name: _DEFAULTS[name] for name in run.flags if name in _DEFAULTS}
    return {'shape': run.shape, **defaults, **_given_settings(run), **_resolved_settings(run)}


def _given_settings(run: Result | Log) -> dict[str, Any]:
    """Returns the values of given flags, and of those that this version lacks."""
    settings = {name: run.flags[name] for name in run.flags.keys() - SPECS.keys()}
    for name in run.given_flags.keys() & run.flags.keys() & _DEFAULTS.keys():
        value = run.flags[name]
        settings[name] = value is not None if SPECS[name].output else value
    if isinstance(run, Result) and run.run.data_sha256:
        # The content of the folder counts, not its path.
        settings['data_dir'] = None
    return settings


def environment_of(run: Run) -> dict[str, Any]:
    """Returns the environment variables of a run that no given flag sets."""
    set_by_flags = {SPECS[name].target for name in run.given_flags if name in SPECS}
    return {
        name: value for name, value in (run.environment or {}).items() if name not in set_by_flags
    }


def non_default_settings(run: Run) -> tuple[tuple[str, Any], ...]:
    """Returns the settings that are not defaults, sorted by name. Runs with equal ones have one
    configuration.

    Defaults are left out, so that a new flag does not separate older results from newer ones.
    """
    if isinstance(run, CommandResult):
        return tuple(sorted(run.flags.items()))
    settings = {
        name: value
        for name, value in _given_settings(run).items()
        if (value != _DEFAULTS[name] if name in _DEFAULTS else name in run.given_flags)
    }
    return tuple(sorted({**settings, 'shape': run.shape, **_resolved_settings(run)}.items()))


def _resolved_settings(run: Run) -> dict[str, Any]:
    # Records whether TF32 was used, not whether the flag allowed it, and the content of files and
    # of --data_dir, not their paths.
    names = (
        'tf32',
        'data_sha256',
        'model_file_sha256',
        'variable_mgr_file_sha256',
        *(name for name, spec in SPECS.items() if spec.in_run_section),
    )
    if isinstance(run, Result):
        values = {name: getattr(run.run, name, None) for name in names} | {'model': run.model.name}
    else:
        values = {name: run.flags.get(name) for name in (*names, 'model')}
    return {name: value for name, value in values.items() if value is not None}


# ---- repeats -------------------------------------------------------------------------------------


def workload_differences(first: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Returns the workload properties that differ, by name, with both values.

    Only runs without a difference have comparable throughputs. An unknown property, as in a log, is
    not a difference.
    """
    pairs = {name: (value, other.workload[name]) for name, value in first.workload.items()}
    if {WALL_TIME, COMMAND_TIME} & {*(units := (first.unit, other.unit))}:
        pairs['unit'] = units
    # Each number of a command is work of its own.
    pairs[MEASURED] = first.given_flags.get(MEASURED), other.given_flags.get(MEASURED)
    return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


def repeat_key(result: Run, *, across_versions: bool = False) -> str:
    """Returns a text that is equal for repeats: runs with throughputs that may be pooled.

    Repeats have the same workload, non-default settings, machine, limits, library versions and
    environment variables.

    Args:
      across_versions: whether the versions of libraries may differ, to follow a setting over
        months.
    """
    versions = None if across_versions else result.machine.get('versions')
    machine, hosts = result.machine.get('fingerprint'), hosts_of(result)[1:]
    setting = [machine, hosts, result.workload, non_default_settings(result)]
    return equality_key([setting, result.limits, versions, result.environment or {}])


def group(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Groups items with equal keys, in the order of the first ones."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [*groups.values()]


def equality_key(value: object) -> str:
    """Returns a text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)


# ---- differences ---------------------------------------------------------------------------------


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
        name: tuple(run.get(name, _DEFAULTS.get(name)) for run in flag_values)
        for name in find_varying_names(flag_values)
        if name in SPECS or name in explicit_flags or all(name in run for run in flag_values)
    }
    return {name: values for name, values in values_by_name.items() if not _all_same(values)}


def machine_differences(results: Sequence[Run]) -> Differences:
    """Returns the differences between machines, their software, limits and environment variables.

    A limit or variable that some runs lack counts as a difference: None for these runs. Logs
    contain neither, and commands no variables that this program sets.
    """
    kinds = {type(result) for result in results}
    limits = [
        dict(result.limits)
        | {
            f'environment.{name}': value
            for name, value in result.environment.items()
            if len(kinds) == 1
        }
        for result in results
    ]
    names = [] if Log in kinds else find_varying_names(limits)
    return find_differences([*map(_machine_properties, results)]) | _values(limits, names)


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
            values = [value and short_commit(value) for value in values]
        texts.append(f'{name} {" -> ".join(map(format_property, values))}')
    return ', '.join(texts)


def _machine_properties(result: Run) -> Properties:
    """Returns the machine and software as one flat mapping: 'cpu_model', 'versions.tensorflow'."""
    properties: dict[str, Any] = {}
    program = {f'program.{name}': value for name, value in (as_json(result.program) or {}).items()}
    for name, value in (*result.machine.items(), *program.items()):
        if isinstance(value, Mapping):
            properties |= {f'{name}.{key}': inner for key, inner in value.items()}
        elif name not in ('fingerprint', 'load_average', *result.limits):
            is_gpus = name == 'gpus'
            properties[name] = [gpu.get('name') for gpu in value or []] if is_gpus else value
    return properties


def find_differences(properties_of_runs: Sequence[Properties]) -> Differences:
    """Returns the values that differ, by name; unknown values (None or missing) never differ."""
    return {
        name: values
        for name, values in _values(
            properties_of_runs, find_varying_names(properties_of_runs)
        ).items()
        if not _all_same([value for value in values if value is not None])
    }


def _values(properties_of_runs: Sequence[Properties], names: Iterable[str]) -> Differences:
    return {name: tuple(run.get(name) for run in properties_of_runs) for name in names}


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
