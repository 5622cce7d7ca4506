"""Reads the runs that `compare` compares, groups repeats, and pairs them with their baselines."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tf_cnn.compare.differences import (
    Differences,
    Properties,
    find_varying_names,
    flag_differences,
    format_property,
    machine_differences,
)
from tf_cnn.compare.measured import Measured
from tf_cnn.compare.original_logs import Run, read_log
from tf_cnn.compare.repeats import (
    baseline_indices,
    differing_limits,
    equality_key,
    group_repeats,
    workload_differences,
)
from tf_cnn.compare.settings import environment_of, settings_of
from tf_cnn.results.collection import collect, is_folder
from tf_cnn.results.document import MAX_BYTES, Failure, Result, read_document
from tf_cnn.results.tables import format_setting
from tf_cnn.system.documents import decode_text
from tf_cnn.system.errors import STDIO, UsageError, read_file

# Properties with a separate column in tables, so that names of rows omit them.
SEPARATE_COLUMNS = ('shape',)


@dataclass(frozen=True)
class Group(Measured):
    """The repeats of one setting on one machine in a run set, sorted by start time; or, without
    `runs`, a failure, a run without timed steps, or an incomplete run that has complete repeats.

    Attributes:
      reason: why the runs are incomplete or left out; None for complete ones.
      flags: the values of the flags that distinguish the groups; for a run that is left out the
        given flags, as text.
      is_missing: whether a throughput is missing: the run should have one, and no repeat does.
      name: the argument, and the values that distinguish the group from others of the argument.
      remark: why there is no ratio, or `reason`.
    """

    baseline: 'Group | None' = field(default=None, kw_only=True)

    argument: str
    files: tuple[str, ...]
    shape: str
    reason: str | None
    flags: Mapping[str, object] = field(default_factory=dict)
    is_missing: bool = False
    name: str = ''
    remark: str = ''

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
        return make_run_set(argument, collection.results, collection.failures, collection.problems)
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
    runs, failures = ([], [run]) if isinstance(run, Failure) else ([run], [])
    run_set = make_run_set(argument, runs, failures)
    if not run_set.groups:
        raise UsageError(
            f'{argument}: {run_set.excluded_runs[0].reason}; give the result of another run'
        )
    return run_set


def pair_with_baselines(run_sets: Sequence[RunSet], *, across_work: bool = False) -> list[Group]:
    """Returns the groups with their baselines in the first run set, which comes first.

    If the first run set has a single group, it is the baseline of all other groups. The groups of a
    single run set are compared with each other: see baseline_indices; complete groups come first.
    Otherwise the baseline is the group of the same setting. Flags, versions and variables that are
    constant within each run set may differ, since comparing them is the purpose.
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
        compared += [
            replace(
                group,
                baseline=first.groups[0]
                if len(first.groups) == 1
                else baselines.get(_setting_key(group, names)),
            )
            for group in candidate.groups
        ]
    return compared


def name_groups(run_sets: Sequence[RunSet]) -> list[RunSet]:
    """Returns the run sets with names of their groups.

    A name has the argument, if there are several, the properties that vary within the run set, and
    the shape if nothing else tells two rows apart.
    """
    named_sets = []
    for run_set in run_sets:
        hosts = {group.first.machine.get('hostname') for group in run_set.groups}
        # The host name already shows properties that differ only between machines.
        of_machines = {name for group in run_set.groups for name in group.first.limits}
        of_machines -= differing_limits(group.first for group in run_set.groups)
        distinguishing_names = [
            name
            for name in find_varying_names(_properties_of_groups(run_set.groups))
            if name not in {*SEPARATE_COLUMNS, *of_machines}
        ]
        groups = []
        for group in run_set.groups:
            parts = [run_set.argument] if len(run_sets) > 1 or len(run_set.groups) == 1 else []
            if len(run_set.groups) > 1:
                values = {name: group.properties.get(name) for name in distinguishing_names}
                flags = [
                    format_setting(name, value)
                    for name, value in values.items()
                    if value is not None
                ]
                parts += [' '.join(flags)] if flags else []
                parts += [f'on {group.first.machine.get("hostname")}'] if len(hosts) > 1 else []
            groups.append(replace(group, name=': '.join(parts) or group.shape))
        names = Counter(group.name for group in groups)
        groups = [
            replace(group, name=f'{group.name} ({group.shape})') if names[group.name] > 1 else group
            for group in groups
        ]
        named_sets.append(replace(run_set, groups=tuple(groups)))
    return named_sets


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
        name=run.source,
        remark=reason,
    )


def _properties_of_groups(groups: Iterable[Group]) -> list[Properties]:
    return [group.properties for group in groups]


def _setting_key(group: Group, names: Iterable[str]) -> str:
    return equality_key({name: group.properties.get(name) for name in names})
