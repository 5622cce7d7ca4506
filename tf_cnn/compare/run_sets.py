"""Reads the runs that `compare` compares, groups repeats, and pairs them with their baselines."""

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_cnn.compare.differences import Properties, find_varying_names, format_property
from tf_cnn.compare.measured import Measured
from tf_cnn.compare.original_logs import Run, read_log
from tf_cnn.compare.repeats import baseline_indices, differing_limits, equality_key, group_repeats
from tf_cnn.compare.settings import environment_of, settings_of
from tf_cnn.results.collection import collect, is_folder
from tf_cnn.results.document import MAX_BYTES, Failure, Result, read_document
from tf_cnn.results.tables import format_setting
from tf_cnn.system.errors import UsageError, read_regular_file

# The argument that stands for standard input.
STDIN = '-'
# Properties with a separate column in tables, so that names of rows omit them.
SEPARATE_COLUMNS = ('shape',)


@dataclass(frozen=True)
class Group(Measured):
    """The repeats of one setting on one machine in a run set, sorted by start time."""

    argument: str

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
    def incomplete_reason(self) -> str | None:
        return next(
            (run.reason or 'it is incomplete' for run in self.runs if not run.is_complete),
            None,
        )


@dataclass(frozen=True)
class ExcludedRun:
    """A failure, a run without timed steps, or an incomplete run that has complete repeats.

    Attributes:
      name: its file.
      flag_texts: the given flags, as text.
      is_missing: whether a throughput is missing: the run should have one, and no repeat does.
    """

    argument: str
    name: str
    shape: str
    reason: str
    flag_texts: Mapping[str, str]
    is_missing: bool


@dataclass(frozen=True)
class RunSet:
    """The runs of one argument.

    Attributes:
      groups: the runs that count.
      problems: a line for each file that could not be read.
    """

    argument: str
    groups: tuple[Group, ...]
    excluded_runs: tuple[ExcludedRun, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def unknown_throughputs(self) -> list[str]:
        """A line for each file or run without a known throughput: it may be the slow one."""
        return [
            *self.problems,
            *(f'{run.name}: {run.reason}' for run in self.excluded_runs if run.is_missing),
        ]


@dataclass(frozen=True)
class Comparison:
    """A group and its baseline; baseline is None if there is none, or for the baseline itself."""

    group: Group
    baseline: Group | None = None
    is_baseline: bool = field(default=False, kw_only=True)


def read_run_set(argument: str) -> RunSet:
    """Reads a result file, a folder of results, or a log; STDIN reads standard input.

    Raises UsageError if the file does not exist, is of another kind, or has no timed step.
    """
    if argument == STDIN:
        argument = 'standard input'
        run = _read_text(sys.stdin.buffer.read(MAX_BYTES) if sys.stdin else b'', argument)
    elif is_folder(Path(argument)):
        collection = collect([argument])
        return make_run_set(argument, collection.results, collection.failures, collection.problems)
    else:
        run = _read_file(argument)
    run_set = make_run_set(
        argument, *(([], [run]) if isinstance(run, Failure) else ([run], [])), ()
    )
    if not run_set.groups:
        raise UsageError(
            f'{argument}: {run_set.excluded_runs[0].reason}; give the result of another run'
        )
    return run_set


def _read_file(argument: str) -> Run | Failure:
    try:
        data = read_regular_file(Path(argument), MAX_BYTES)
    except OSError as error:
        raise UsageError(
            f'{argument}: it cannot be read ({error.strerror}); give a result that --result_file '
            'wrote'
        ) from None
    return _read_text(data, argument)


def _read_text(data: bytes, source: str) -> Run | Failure:
    if not data.strip():
        raise UsageError(f'{source}: it is empty; was its run stopped before it wrote a result?')
    text = data.decode(errors='replace')
    return read_document(text, source) if text.lstrip().startswith('{') else read_log(text, source)


def pair_with_baselines(
    run_sets: Sequence[RunSet], *, across_work: bool = False
) -> list[Comparison]:
    """Pairs each group with its baseline in the first run set; the first run set comes first.

    If the first run set has a single group, it is the baseline of all other groups. The groups of a
    single run set are compared with each other: see baseline_indices; complete groups come first.
    Otherwise the baseline is the group of the same setting. Flags, versions and variables that are
    constant within each run set may differ, since comparing them is the purpose.
    """
    baseline, *candidates = run_sets
    if not baseline.groups:
        return [Comparison(group) for candidate in candidates for group in candidate.groups]
    if not candidates:
        groups = sorted(baseline.groups, key=lambda group: group.incomplete_reason is not None)
        firsts = baseline_indices([group.first for group in groups], across_workloads=across_work)
        comparisons = []
        for index in dict.fromkeys(firsts):
            repeats = (group for group, first in zip(groups, firsts, strict=True) if first == index)
            comparisons += [Comparison(groups[index], is_baseline=True)]
            comparisons += [
                Comparison(group, groups[index]) for group in repeats if group is not groups[index]
            ]
        return comparisons
    if len(baseline.groups) == 1:
        first = baseline.groups[0]
        return [
            Comparison(first, is_baseline=True),
            *(Comparison(group, first) for candidate in candidates for group in candidate.groups),
        ]
    comparisons = [Comparison(group, is_baseline=True) for group in baseline.groups]
    for candidate in candidates:
        names = sorted(
            {
                name
                for groups in (baseline.groups, candidate.groups)
                for name in find_varying_names(_properties_of_groups(groups))
            }
        )
        by_setting: dict[str, Group] = {}
        for group in baseline.groups:
            by_setting.setdefault(_setting_key(group, names), group)
        comparisons += [
            Comparison(group, by_setting.get(_setting_key(group, names)))
            for group in candidate.groups
        ]
    return comparisons


def group_names(run_sets: Sequence[RunSet]) -> dict[int, str]:
    """Returns the name of each group, by the group's id().

    A name has the argument, if there are several, and the properties that vary within the run set.
    """
    names = {}
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
            names[id(group)] = ': '.join(parts) or group.first.shape
    return names


def make_run_set(
    argument: str, results: Iterable[Run], failures: Iterable[Failure], problems: Iterable[str]
) -> RunSet:
    excluded_runs = [_make_excluded_run(argument, failure, is_missing=True) for failure in failures]
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
            excluded_runs.append(
                _make_excluded_run(argument, result, reason, is_missing=not is_evaluation)
            )
            continue
        timed.append(result)
    groups = []
    for repeats in group_repeats(timed):
        complete = [result for result in repeats if result.is_complete]
        counted_runs = complete or repeats
        groups.append(Group(tuple(counted_runs), argument))
        excluded_runs += [
            _make_excluded_run(argument, result, f'incomplete: {result.reason}')
            for result in repeats
            if result not in counted_runs
        ]
    return RunSet(argument, tuple(groups), tuple(excluded_runs), tuple(problems))


def _make_excluded_run(
    argument: str, run: Run | Failure, reason: str | None = None, *, is_missing: bool = False
) -> ExcludedRun:
    return ExcludedRun(
        argument,
        run.source,
        run.shape,
        reason or run.reason or 'unknown',
        run.given_flags,
        is_missing,
    )


def _properties_of_groups(groups: Iterable[Group]) -> list[Properties]:
    return [group.properties for group in groups]


def _setting_key(group: Group, names: Iterable[str]) -> str:
    return equality_key({name: group.properties.get(name) for name in names})
