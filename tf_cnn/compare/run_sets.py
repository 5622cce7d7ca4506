"""Reads the runs that `compare` compares, groups repeats, and pairs them with their baselines."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tf_cnn.compare.measured import Measured
from tf_cnn.lab.differences import (
    Differences,
    Properties,
    find_varying_names,
    flag_differences,
    format_property,
    machine_differences,
)
from tf_cnn.lab.original_logs import Run, read_log
from tf_cnn.lab.repeats import (
    baseline_indices,
    equality_key,
    group_repeats,
    workload_differences,
)
from tf_cnn.lab.settings import environment_of, settings_of
from tf_cnn.plan.params import SPECS
from tf_cnn.results.collection import collect, is_folder
from tf_cnn.results.document import MAX_BYTES, CommandResult, Failure, Result, read_document
from tf_cnn.results.tables import format_setting
from tf_cnn.system.documents import decode_text
from tf_cnn.system.errors import STDIO, UsageError, read_file

# Properties that come first in the name of a setting.
FIRST_NAMES = ('model', 'variable_update', 'batch_size', 'precision', 'shape')
# Of all but these, names of settings omit a value that most settings have.
_ALWAYS_NAMED = ('model', 'variable_update', 'batch_size', 'shape')
# Properties in other forms than NAME=VALUE.
_FORMS = dict.fromkeys((*FIRST_NAMES, 'data_dir'), '{}') | {
    'batch_size': 'batch {}',
    'host': 'on {}',
}


@dataclass(frozen=True)
class Group(Measured):
    """The repeats of one setting on one machine in a run set, sorted by start time; or, without
    `runs`, a failure, a run without timed steps, or an incomplete run that has complete repeats.

    Attributes:
      reason: why the runs are incomplete or left out; None for complete ones.
      flags: the values of the flags that distinguish the groups; for a run that is left out the
        given flags, as text.
      is_missing: whether a throughput is missing: the run should have one, and no repeat does.
      setting: the values that distinguish the group from others of the argument.
      name: the argument and the setting.
    """

    baseline: 'Group | None' = field(default=None, kw_only=True)

    argument: str
    files: tuple[str, ...]
    shape: str
    reason: str | None
    flags: Mapping[str, object] = field(default_factory=dict)
    is_missing: bool = False
    setting: str = ''
    name: str = ''

    @functools.cached_property
    def flag_values(self) -> Properties:
        return settings_of(self.first)

    @functools.cached_property
    def properties(self) -> Properties:
        """The shape, flag values, limits, versions of libraries, and environment variables."""
        limits = {
            name: value and format_property(value) for name, value in self.first.limits.items()
        }
        versions = self.first.machine.get('versions') or {}
        return {**limits, **self.flag_values, **versions, **environment_of(self.first)}

    @property
    def named_properties(self) -> Properties:
        """The properties that may be in the name of the setting."""
        return {**self.properties, 'host': self.first.machine.get('hostname')}

    def format_properties(self, names: Iterable[str], omitted: Mapping[str, object]) -> str:
        """Formats known properties without the omitted values."""
        values = {name: self.named_properties.get(name) for name in names}
        return ' '.join(
            _FORMS[name].format(value) if name in _FORMS else format_setting(name, value)
            for name, value in values.items()
            if value is not None and value != omitted.get(name)
        )

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def status(self) -> str:
        if not self.runs:
            return 'left out'
        return 'incomplete' if self.reason else 'complete'

    @functools.cached_property
    def flag_changes(self) -> Differences:
        """The flags that differ from the baseline: name -> (value before, value after)."""
        return flag_differences(self._compared_runs)

    @functools.cached_property
    def machine_changes(self) -> Differences:
        """The same for the machine and its software."""
        return machine_differences(self._compared_runs)

    @functools.cached_property
    def work_changes(self) -> Differences:
        """The same for the work."""
        return workload_differences(*self._compared_runs) if self._compared_runs else {}

    @property
    def _compared_runs(self) -> list[Run]:
        return [self.baseline.first, self.first] if self.baseline and not self.is_baseline else []


@dataclass(frozen=True)
class RunSet:
    """The runs of one argument.

    Attributes:
      groups: the runs that count.
      excluded_runs: the runs that are left out.
      problems: a line for each file that could not be read.
    """

    argument: str
    groups: tuple[Group, ...]
    excluded_runs: tuple[Group, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def unknown_throughputs(self) -> list[str]:
        """A line for each file or run without a known throughput: it may be the slow one."""
        return [
            *self.problems,
            *(f'{run.name}: {run.reason}' for run in self.excluded_runs if run.is_missing),
        ]


def read_run_set(argument: str) -> RunSet:
    """Reads a result file, a folder of results, or a log; STDIO reads standard input.

    Raises UsageError if the file does not exist, is of another kind, or has no timed step.
    """
    if argument != STDIO and is_folder(Path(argument)):
        collection = collect([argument])
        runs: list[Run] = [*collection.results, *collection.commands]
        return make_run_set(argument, runs, collection.failures, collection.problems)
    path, argument = argument, 'standard input' if argument == STDIO else argument
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(
            f'{argument}: it cannot be read ({error.strerror}); give a result that --result_file '
            'wrote'
        ) from None
    text = decode_text(data, 'replace')
    if not data.strip():
        raise UsageError(f'{argument}: it is empty; was its run stopped before it wrote a result?')
    is_document = text.lstrip().startswith('{')
    run = read_document(text, argument) if is_document else read_log(text, argument)
    run_set = make_run_set(argument, *(([], [run]) if isinstance(run, Failure) else ([run], [])))
    if not run_set.groups:
        raise UsageError(
            f'{argument}: {run_set.excluded_runs[0].reason}; give the result of another run'
        )
    return run_set


def refuse_commands(run_sets: Iterable[RunSet], flag: str) -> None:
    """Raises UsageError for runs of other programs, which the flag cannot compare."""
    for group in (group for run_set in run_sets for group in run_set.groups):
        if isinstance(group.first, CommandResult):
            raise UsageError(
                f'{group.first.source}: it is a run of another program, and --{flag} needs runs of '
                f'this one; remove it, or compare it without --{flag}'
            )


def pair_with_baselines(run_sets: Sequence[RunSet], *, across_work: bool = False) -> list[Group]:
    """Returns the groups with their baselines in the first run set, which comes first.

    The baseline is the group of the same setting. Flags, versions and variables that are constant
    within each run set may differ, since comparing them is the purpose. If the first run set has a
    single group, and another run set no group of its setting, it is the baseline of all groups
    there. The groups of a single run set are compared with each other: see baseline_indices;
    complete groups come first.
    """
    first, *candidates = run_sets
    if not first.groups:
        return [group for candidate in candidates for group in candidate.groups]
    if not candidates:
        groups = sorted(first.groups, key=lambda group: group.reason is not None)
        indices = baseline_indices([group.first for group in groups], across_workloads=across_work)
        # Each baseline comes before the groups that are compared with it.
        pairs = sorted(zip(indices, groups, strict=True), key=lambda pair: pair[0])
        return [replace(group, baseline=groups[index]) for index, group in pairs]
    compared = [replace(group, baseline=group) for group in first.groups]
    for candidate in candidates:
        names = sorted(
            {
                name
                for groups in (first.groups, candidate.groups)
                for name in find_varying_names(_properties_of_groups(groups))
            }
        )
        baselines: dict[str, Group] = {}
        for group in first.groups:
            baselines.setdefault(_setting_key(group, names), group)
        keys = [_setting_key(group, names) for group in candidate.groups]
        fallback = None if len(first.groups) > 1 or {*keys} & {*baselines} else first.groups[0]
        compared += [
            replace(group, baseline=baselines.get(key, fallback))
            for key, group in zip(keys, candidate.groups, strict=True)
        ]
    return compared


def name_groups(run_sets: Sequence[RunSet]) -> list[RunSet]:
    """Returns the run sets with names of their groups.

    A setting is named by properties that vary within a run set: the first ones, and further ones
    only if they tell more groups apart. Values that most groups have are omitted.
    """
    sets = [[group.named_properties for group in run_set.groups] for run_set in run_sets]
    varying_names = {name for properties in sets for name in find_varying_names(properties)}
    names = [name for name in FIRST_NAMES if name in varying_names]

    def count_groups(names: Sequence[str]) -> int:
        return sum(
            len({equality_key([row.get(name) for name in names]) for row in properties})
            for properties in sets
        )

    # Flags first; the host tells machines apart better than their limits.
    for name in sorted(
        varying_names - {*names}, key=lambda name: (name not in SPECS, name != 'host', name)
    ):
        if count_groups([*names, name]) > count_groups(names):
            names.append(name)
    rows = [row for properties in sets for row in properties]
    omitted = {name: _usual_value(rows, name) for name in names if name not in _ALWAYS_NAMED}
    named_sets = []
    for run_set in run_sets:
        has_argument = len(run_sets) > 1 or len(run_set.groups) == 1
        groups = []
        for group in run_set.groups:
            setting = (
                group.format_properties(names or ['model'], omitted)
                or group.format_properties(names, {})
                or group.shape
            )
            parts = [run_set.argument] * has_argument + [setting] * (len(run_set.groups) > 1)
            groups.append(replace(group, setting=setting, name=': '.join(parts)))
        named_sets.append(replace(run_set, groups=tuple(groups)))
    return named_sets


def _usual_value(rows: Sequence[Properties], name: str) -> object:
    """Returns the value that more than half of the rows have; None if there is none, or if the
    value of a row is unknown.
    """
    keys = [equality_key(row.get(name)) for row in rows]
    index = keys.index(max(keys, key=keys.count))
    is_usual = 2 * keys.count(keys[index]) > len(keys) and equality_key(None) not in keys
    return rows[index][name] if is_usual else None


def make_run_set(
    argument: str,
    results: Iterable[Run],
    failures: Iterable[Failure] = (),
    problems: Iterable[str] = (),
) -> RunSet:
    excluded_runs = [_exclude(argument, failure, is_missing=True) for failure in failures]
    timed = []
    for result in results:
        if not result.images_per_second > 0:
            is_evaluation = isinstance(result, Result) and result.run.role == 'evaluation'
            why = (
                'it is an evaluation (--eval) without timed steps'
                if is_evaluation
                else 'no step was timed'
            )
            reason = f'{why}: {result.reason}' if result.reason else why
            excluded_runs.append(_exclude(argument, result, reason, is_missing=not is_evaluation))
            continue
        timed.append(result)
    groups = []
    for repeats in group_repeats(timed):
        complete = [result for result in repeats if result.is_complete]
        runs = tuple(complete or repeats)
        groups.append(
            Group(
                runs,
                argument,
                files=tuple(run.source for run in runs),
                shape=runs[0].shape,
                reason=None if complete else runs[0].reason or 'it is incomplete',
            )
        )
        excluded_runs += [
            _exclude(argument, result, f'incomplete: {result.reason}')
            for result in repeats
            if result not in runs
        ]
    return RunSet(argument, tuple(groups), tuple(excluded_runs), tuple(problems))


def _exclude(
    argument: str, run: Run | Failure, reason: str | None = None, *, is_missing: bool = False
) -> Group:
    reason = reason or run.reason or 'unknown'
    return Group(
        (),
        argument,
        (run.source,),
        run.shape,
        reason,
        run.given_flags,
        is_missing,
        Path(run.source).name,
        run.source,
    )


def _properties_of_groups(groups: Iterable[Group]) -> list[Properties]:
    return [group.properties for group in groups]


def _setting_key(group: Group, names: Iterable[str]) -> str:
    return equality_key({name: group.properties.get(name) for name in names})
