"""Reads the arguments of `compare`: the runs of each, grouped by setting and machine, and the pairs
to compare.
"""

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_cnn.compare.differences import Facts, format_fact, varying
from tf_cnn.compare.original_logs import read_log
from tf_cnn.results.collection import collect, is_folder
from tf_cnn.results.document import MOST_BYTES, Failure, Result, read_document
from tf_cnn.results.repeats import as_key, baselines, grouped, limits_that_differ
from tf_cnn.results.tables import format_setting
from tf_cnn.system.errors import UsageError, read_regular

# The argument that stands for standard input.
STDIN = '-'
# Facts that have a column of their own in tables.
OTHER_COLUMNS = ('shape',)


@dataclass(frozen=True)
class Group:
    """The runs of an argument that count and are repeats of each other, in the order in which they
    started.
    """

    argument: str
    results: tuple[Result, ...]

    @functools.cached_property
    def facts(self) -> Facts:
        return self.first.facts

    @functools.cached_property
    def all_facts(self) -> Facts:
        """The shape, the used values of flags, limits, the versions of libraries, and environment
        variables.
        """
        limits = {name: value and format_fact(value) for name, value in self.first.limits.items()}
        versions = self.first.machine.get('versions') or {}
        return {**limits, **self.facts, **versions, **(self.first.environment or {})}

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def reason(self) -> str | None:
        return next(
            (
                result.reason or 'it is incomplete'
                for result in self.results
                if not result.is_complete
            ),
            None,
        )


@dataclass(frozen=True)
class Unmatched:
    """A run that is left out: a failure, an incomplete run without timed steps, or one beside
    complete repeats.

    Attributes:
      name: its file.
      given: the flags as they were given.
      is_missing: whether it should have a throughput that counts, and no repeat has one either.
    """

    argument: str
    name: str
    shape: str
    reason: str
    given: Mapping[str, str]
    is_missing: bool


@dataclass(frozen=True)
class Side:
    argument: str
    groups: tuple[Group, ...]
    left_out: tuple[Unmatched, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def unknown(self) -> list[str]:
        """A line for each file or run whose throughput is not known, though it may be the slow
        one.
        """
        return [
            *self.problems,
            *(f'{left.name}: {left.reason}' for left in self.left_out if left.is_missing),
        ]


@dataclass(frozen=True)
class Pair:
    """A group and its baseline; None if it has none, or is the baseline itself."""

    group: Group
    baseline: Group | None = None
    is_baseline: bool = field(default=False, kw_only=True)


def read_side(argument: str) -> Side:
    """Reads a result file, a folder of results, or a log; with STDIN a result or a log from
    standard input.

    Raises UsageError if there is no such file, it is none of these, or it has no run with a timed
    step.
    """
    if argument == STDIN:
        argument = 'standard input'
        found = _read_text(sys.stdin.buffer.read(MOST_BYTES) if sys.stdin else b'', argument)
    elif is_folder(Path(argument)):
        collection = collect([argument])
        return side_of(argument, collection.results, collection.failures, collection.problems)
    else:
        found = _read_file(argument)
    side = side_of(argument, *(([], [found]) if isinstance(found, Failure) else ([found], [])), ())
    if not side.groups:
        raise UsageError(f'{argument}: {side.left_out[0].reason}; give the result of another run')
    return side


def _read_file(argument: str) -> Result | Failure:
    try:
        data = read_regular(Path(argument), MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f'{argument}: it cannot be read ({error.strerror}); give a result that --result_file '
            'wrote'
        ) from None
    return _read_text(data, argument)


def _read_text(data: bytes, source: str) -> Result | Failure:
    if not data.strip():
        raise UsageError(f'{source}: it is empty; was its run stopped before it wrote a result?')
    text = data.decode(errors='replace')
    return read_document(text, source) if text.lstrip().startswith('{') else read_log(text, source)


def pairs(sides: Sequence[Side], *, across_work: bool = False) -> list[Pair]:
    """Pairs each group with its baseline, which is in the first side; that side's pairs come first.

    If the baseline has a single group, all other groups are compared with it. The groups of a
    single side are compared with each other: see baselines, of which complete groups come first.
    Otherwise a group is compared with the group of the same setting. Flags, versions and variables
    that are constant within each side may differ, since comparing them is the purpose.
    """
    baseline, *others = sides
    if not baseline.groups:
        return [Pair(group) for side in others for group in side.groups]
    if not others:
        groups = sorted(baseline.groups, key=lambda group: group.reason is not None)
        firsts = baselines([group.first for group in groups], across_work=across_work)
        found = []
        for index in dict.fromkeys(firsts):
            rest = (group for group, first in zip(groups, firsts, strict=True) if first == index)
            found += [Pair(groups[index], is_baseline=True)]
            found += [Pair(group, groups[index]) for group in rest if group is not groups[index]]
        return found
    if len(baseline.groups) == 1:
        first = baseline.groups[0]
        return [
            Pair(first, is_baseline=True),
            *(Pair(group, first) for side in others for group in side.groups),
        ]
    found = [Pair(group, is_baseline=True) for group in baseline.groups]
    for side in others:
        names = sorted(
            {
                name
                for groups in (baseline.groups, side.groups)
                for name in varying(_all_facts(groups))
            }
        )
        by_setting: dict[str, Group] = {}
        for group in baseline.groups:
            by_setting.setdefault(_key(group, names), group)
        found += [Pair(group, by_setting.get(_key(group, names))) for group in side.groups]
    return found


def group_names(sides: Sequence[Side]) -> dict[int, str]:
    """Names each group, by its id(): the argument, unless there is only one, and the facts that
    vary within it.
    """
    names = {}
    for side in sides:
        hosts = {group.first.machine.get('hostname') for group in side.groups}
        # What differs only between machines is said by their names.
        of_machines = {name for group in side.groups for name in group.first.limits}
        of_machines -= limits_that_differ(group.first for group in side.groups)
        telling = [
            name
            for name in varying(_all_facts(side.groups))
            if name not in {*OTHER_COLUMNS, *of_machines}
        ]
        for group in side.groups:
            parts = [side.argument] if len(sides) > 1 or len(side.groups) == 1 else []
            if len(side.groups) > 1:
                values = {name: group.all_facts.get(name) for name in telling}
                flags = [
                    format_setting(name, value)
                    for name, value in values.items()
                    if value is not None
                ]
                parts += [' '.join(flags)] if flags else []
                parts += [f'on {group.first.machine.get("hostname")}'] if len(hosts) > 1 else []
            names[id(group)] = ': '.join(parts) or group.first.shape
    return names


def side_of(
    argument: str, results: Iterable[Result], failures: Iterable[Failure], problems: Iterable[str]
) -> Side:
    left_out = [_left_out(argument, failure, is_missing=True) for failure in failures]
    timed = []
    for result in results:
        if not result.images_per_second > 0:
            is_evaluation = result.run.role == 'evaluation'
            why = (
                'it is an evaluation (--eval) without timed steps'
                if is_evaluation
                else 'no step was timed'
            )
            reason = f'{why}: {result.reason}' if result.reason else why
            left_out.append(_left_out(argument, result, reason, is_missing=not is_evaluation))
            continue
        timed.append(result)
    groups = []
    for repeats in grouped(timed):
        complete = [result for result in repeats if result.is_complete]
        counting = complete or repeats
        groups.append(Group(argument, tuple(counting)))
        left_out += [
            _left_out(argument, result, f'incomplete: {result.reason}')
            for result in repeats
            if result not in counting
        ]
    return Side(argument, tuple(groups), tuple(left_out), tuple(problems))


def _left_out(
    argument: str, run: Result | Failure, reason: str | None = None, *, is_missing: bool = False
) -> Unmatched:
    return Unmatched(
        argument, run.source, run.shape, reason or run.reason or 'unknown', run.given, is_missing
    )


def _all_facts(groups: Iterable[Group]) -> list[Facts]:
    return [group.all_facts for group in groups]


def _key(group: Group, names: Iterable[str]) -> str:
    return as_key({name: group.all_facts.get(name) for name in names})
