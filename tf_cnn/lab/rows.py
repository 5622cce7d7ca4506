"""Rows: the repeats of one setting, and what they are held against. Does not import TensorFlow."""

import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_cnn.lab.original_logs import Run, documents
from tf_cnn.lab.runs import (
    MEASURED,
    WITH,
    Differences,
    environment_of,
    equality_key,
    find_varying_names,
    flag_differences,
    format_property,
    group,
    hosts_of,
    machine_differences,
    repeat_key,
    settings_of,
    workload_differences,
)
from tf_cnn.lab.sides import Side
from tf_cnn.plan.params import SPECS
from tf_cnn.results.advice import doubt_mark, is_short
from tf_cnn.results.document import COMMAND_TIME, WALL_TIME, AnyResult, Result
from tf_cnn.results.ratios import Estimate, Ratio, Significance, estimate_runs
from tf_cnn.results.tables import abbreviate, format_number, format_setting
from tf_cnn.system.errors import UsageError

# Names that come first in a setting; all but the precision are always part of its label.
FIRST_NAMES = ('model', 'variable_update', 'batch_size', 'precision', 'shape')
_FORMS = dict.fromkeys((*FIRST_NAMES, 'command', 'data_dir', 'data_sha256', MEASURED), '{}') | {
    'batch_size': 'batch {}',
    'host': 'on {}',
}
UNSTEADY = 'unsteady'
# The units of numbers of which less is better.
_TIMES = (COMMAND_TIME, WALL_TIME)
_GIBIBYTE = 1 << 30


def estimate(runs: Sequence[Run]) -> Estimate:
    """Estimates the throughput of one setting from one or more runs; see estimate_runs."""
    images = [run.images for run in runs]
    throughput = estimate_runs(
        [run.images_per_second for run in runs],
        images if all(number > 0 for number in images) else None,
    )
    return replace(throughput, is_short=any(map(is_short, documents(runs))))


@dataclass(frozen=True)
class Reference:
    """What a row is held against; a row without a ratio has an empty one.

    Attributes:
      name: in sentences: 'epyc', 'the others', 'the 10 runs before', 'published'.
      runs: the runs behind the rate, if they are known.
      row: another row, whose runs count as doubtful here, too.
      same: the verdict if no difference is shown.
      speed_up: the published one.
      price: of an hour of the machine.
    """

    name: str = ''
    rate: float = math.nan
    runs: Sequence[Run] = ()
    row: 'Row | None' = None
    same: str = Significance.SAME.value
    speed_up: float | None = None
    price: float | None = None


@dataclass(frozen=True)
class Row:
    """The repeats of one setting; without runs, a run that is left out or the mean of all ratios.

    Attributes:
      who: the side or host; '' if there is only one.
      setting: the values that tell the rows of one `who` apart, by name.
      label: the same as text.
      facts: all that may tell rows apart, by name.
      remark: why runs are incomplete or left out, or why there is no ratio.
      is_missing: whether a rate is missing that may be a slow one.
      price: of an hour of the machine.
    """

    who: str = ''
    setting: Mapping[str, Any] = field(default_factory=dict)
    label: str = ''
    runs: tuple[Run, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ''
    is_missing: bool = False
    reference: Reference = Reference()
    ratio: Ratio | None = None
    price: float | None = None

    @property
    def first(self) -> Run:
        return self.runs[0]

    @functools.cached_property
    def results(self) -> list[Result]:
        return [run for run in self.runs if isinstance(run, Result)]

    @functools.cached_property
    def documents(self) -> list[AnyResult]:
        """The runs whose noise is known, and those of the row that this one is held against."""
        return documents([*self.compared_runs, *self.runs])

    @property
    def compared_runs(self) -> Sequence[Run]:
        """The runs of the row that this one is held against."""
        return self.reference.row.runs if self.reference.row else ()

    @functools.cached_property
    def estimate(self) -> Estimate:
        return estimate(self.runs)

    @property
    def rate(self) -> float:
        return self.estimate.images_per_second if self.runs else math.nan

    @property
    def unit(self) -> str:
        return self.first.unit if self.runs else ''

    @property
    def is_time(self) -> bool:
        return self.unit in _TIMES

    def in_unit(self, rate: float) -> float:
        """Returns a rate, or the seconds that it stands for."""
        return 1 / rate if self.is_time else rate

    @property
    def interval(self) -> list[float] | None:
        """The 95 % interval of the rate, or of the seconds."""
        interval = self.estimate.interval if self.runs else None
        return interval and sorted(map(self.in_unit, interval))

    def format_number(self, number: float) -> str:
        return f'{format_number(number)}{" s" * self.is_time}'

    def format_rate(self, rate: float) -> str:
        return self.format_number(self.in_unit(rate))

    @property
    def rate_text(self) -> str | None:
        """The rate after the mark of doubtful runs."""
        mark = doubt_mark(documents(self.runs))
        return f'{mark}{self.format_rate(self.rate)}' if self.runs else None

    @property
    def verdict(self) -> str:
        if not self.ratio:
            return self.remark.partition(':')[0] or 'baseline'
        verdict = self.ratio.verdict
        if self.is_unsteady and verdict in (Significance.SAME, Significance.FEW_RUNS):
            return UNSTEADY
        return self.reference.same if verdict is Significance.SAME else verdict.value

    @property
    def is_baseline(self) -> bool:
        return bool(self.runs) and not self.ratio and not self.remark

    @property
    def is_significant(self) -> bool:
        return self.ratio is not None and self.ratio.is_significant

    @property
    def is_unsteady(self) -> bool:
        return self.ratio is not None and self.ratio.is_unsteady

    @property
    def is_left_out(self) -> bool:
        return not self.runs and self.remark.startswith('left out')

    @property
    def is_pair(self) -> bool:
        """Whether these runs have a ratio."""
        return bool(self.runs) and self.ratio is not None

    @property
    def name(self) -> str:
        prefix = '' if self.label.startswith(f'{self.who}/') else self.who
        return ' '.join(filter(None, (prefix, self.label))).removeprefix('on ')

    @functools.cached_property
    def energy_ratio(self) -> float | None:
        """Joules per image over the reference's, if one source measured both: RAPL measures
        processors, NVML GPUs.
        """
        if not (other := self.reference.row):
            return None
        if len({run.energy.source for run in (*other.results, *self.results)}) != 1:
            return None
        joules, joules_before = joules_per_image(self.results), joules_per_image(other.results)
        return joules / joules_before if joules and joules_before else None

    @functools.cached_property
    def changes(self) -> Differences:
        """Work, flags and machine that no run of the reference has: name -> (what most of these
        have, value).
        """
        if not self.reference.runs or not self.runs:
            return {}
        before = [*(self.compared_runs[:1] or self.reference.runs)]
        runs, changes = [*before, self.first], {}
        differences = flag_differences(runs) | machine_differences(runs)
        for name, pair in workload_differences(before[0], self.first).items():
            differences.setdefault(name, pair)
        for name, values in differences.items():
            if name == 'memory_bytes':
                # The kernel reserves a little, which differs with each start.
                name = 'memory_gib'
                values = tuple(value and round(value / _GIBIBYTE) for value in values)
            is_known = name.removeprefix('environment.') in self.setting
            if is_known or (name == 'hostname' and values[-1] == self.who):
                continue
            *keys, key = map(equality_key, values)
            common, count = Counter(keys).most_common(1)[0]
            if 2 * count > len(keys) and key not in keys:
                changes[name] = (values[keys.index(common)], values[-1])
        return changes


# Returns rows with reference, ratio and remark; may drop or add rows.
Against = Callable[[Sequence[Row]], Iterable[Row]]


def settings_with_references(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows with runs, and those that they are held against, each once."""
    settings: dict[int, Row] = {}
    for row in rows:
        if other := row.reference.row:
            settings.setdefault(id(other.runs), other)
        if row.runs:
            settings[id(row.runs)] = row
    return [*settings.values()]


def joules_per_image(results: Iterable[Result]) -> float | None:
    values = [run.energy.joules_per_image for run in results]
    known_values = [value for value in values if value is not None]
    return statistics.fmean(known_values) if known_values else None


def make_rows(sides: Sequence[Side], hold: Against, *, force: bool = False) -> list[Row]:
    """Groups repeats, names what differs within the sides, and holds each row against something.

    Raises UsageError if a row and its reference did different work, unless `force` is set, and for
    a time beside a rate.
    """
    rows = [row for side in sides for row in _rows_of(side)]
    measured = [row for row in rows if row.runs]
    names = _telling_names(
        [[row.facts for row in peers] for peers in group(measured, lambda row: row.who)]
    )
    settings = [{name: _fact(row, name) for name in names} for row in measured]
    usual = _usual_values(settings, {*names} - {*FIRST_NAMES} | {*names} & {'precision'})
    named = [
        replace(row, setting=setting, label=format_label(setting, usual) or format_label(setting))
        for row, setting in zip(measured, settings, strict=True)
    ]
    held = [*hold(named)]
    for row in held:
        _check_work(row, force=force)
    for row in rows:
        if not row.runs:
            # A failed run knows the flags that it was given.
            setting = {name: row.facts[name] for name in names if name in row.facts}
            held.append(replace(row, setting=setting, label=format_label(setting) or row.label))
    return held


def _fact(row: Row, name: str) -> Any:
    value = row.facts.get(name)
    if name == 'data_sha256' and value and row.results:
        # People know the path.
        return f'{row.results[0].flags.get("data_dir")} ({value[:6]})'
    return value


def _check_work(row: Row, *, force: bool) -> None:
    if not row.reference.runs or not row.runs:
        return
    other = row.reference.runs[0]
    work = workload_differences(other, row.first)
    if 'unit' in work or (work and not force):
        differences = ', '.join(f'{name} {a} and {b}' for name, (a, b) in work.items())
        raise UsageError(
            f'{other.source} and {row.first.source}: they measured different work: {differences}; '
            f'compare runs of the same work{", or use --force" * ("unit" not in work)}'
        )


def machine_facts(run: Run) -> dict[str, Any]:
    """Returns what may differ without a flag: limits, versions, variables, and the hosts."""
    limits = {name: value and format_property(value) for name, value in run.limits.items()}
    versions = run.machine.get('versions') or {}
    host = {'host': WITH.join(hosts_of(run)) or None}
    return {**limits, **versions, **environment_of(run), **host}


def _rows_of(side: Side) -> Iterator[Row]:
    """Yields a row for the repeats of each setting, and for each run that is left out."""

    def left_out(
        source: str, reason: str, facts: Mapping[str, str] = {}, is_missing: bool = True
    ) -> Row:
        # A host needs no file.
        label, remark = source if side.path or not side.name else '', f'left out: {reason}'
        return Row(side.name, label=label, facts=facts, remark=remark, is_missing=is_missing)

    timed = [run for run in side.runs if run.images_per_second > 0]
    for repeats in group(timed, repeat_key):
        complete = [run for run in repeats if run.is_complete]
        runs = tuple(complete or repeats)
        remark = '' if complete else f'incomplete: {runs[0].reason or "unknown"}'
        facts = machine_facts(runs[0]) | settings_of(runs[0])
        yield Row(side.name, runs=runs, facts=facts, remark=remark)
        for run in repeats if complete else ():
            if not run.is_complete:
                yield left_out(run.source, f'incomplete: {run.reason}', is_missing=False)
    for run in side.runs:
        if not run.images_per_second > 0:
            is_evaluation = isinstance(run, Result) and run.run.role == 'evaluation'
            evaluation = 'it is an evaluation (--eval) without timed steps'
            reasons = (evaluation if is_evaluation else 'no step was timed', run.reason)
            reason = ': '.join(filter(None, reasons))
            yield left_out(run.source, reason, is_missing=not is_evaluation)
    for source, reason, flags in side.missing:
        facts = {name: text.partition('=')[2] or text for name, text in (flags or {}).items()}
        yield left_out(source, reason, facts)
    if side.strangers:
        names = abbreviate(side.strangers)
        yield Row(side.name, remark=f'not read, since it is no result: {names}')


# ---- names of settings ---------------------------------------------------------------------------


def _telling_names(sides: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Returns the names that vary within a side: the first ones, and others only if they tell more
    rows apart. Flags come before the host, and the host before the limits that differ with it.
    """
    varying = {name for side in sides for name in find_varying_names(side)}
    names = [name for name in FIRST_NAMES if name in varying]

    def count(names: Sequence[str]) -> int:
        return sum(
            len({tuple(str(facts.get(name)) for name in names) for facts in side}) for side in sides
        )

    for name in sorted(
        varying - {*names}, key=lambda name: (name not in SPECS, name != 'host', name)
    ):
        if count([*names, name]) > count(names):
            names.append(name)
    return names


def _usual_values(settings: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Returns the values that more than half of the settings have, unless a value is unknown."""
    usual = {}
    for name in names:
        values = [setting.get(name) for setting in settings]
        common, count = Counter(map(str, values)).most_common(1)[0]
        if 2 * count > len(values) and None not in values:
            usual[name] = next(value for value in values if str(value) == common)
    return usual


def format_label(setting: Mapping[str, Any], usual: Mapping[str, Any] = {}) -> str:
    """Formats a setting for a sentence, without usual values."""
    return ' '.join(
        format_value(name, value)
        for name, value in setting.items()
        if value is not None and value != usual.get(name)
    )


def format_value(name: str, value: Any) -> str:
    return _FORMS[name].format(value) if name in _FORMS else format_setting(name, value)


def importance(row: Row) -> tuple[int, float]:
    """Baselines, then significant differences, the largest on top; then others; then the rest."""
    if not row.ratio:
        return (0 if row.is_baseline else 3 + (not row.runs)), 0.0
    return 2 - row.is_significant, -abs(math.log(row.ratio.value))
