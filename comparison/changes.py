"""The rows of a comparison: for each group of runs its throughput, the ratio to its baseline, and what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comparison.differences import flag_differences, machine_differences, varying, work_differences
from comparison.ratios import Clock, Estimate, Ratio, Spread, compare, estimate, given_spread, known_spread, rate_of
from comparison.sides import OTHER_COLUMNS, Group, Pair, Side, Unmatched, group_names, pairs
from errors import UsageError
from results.repeats import far_from_others

Changes = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class ChangeRow:
    """A row of the comparison.

    Attributes:
      name: the argument, and what tells the group from the others of this argument.
      argument: as it was given.
      files: the results.
      shape: as Record.shape.
      status: 'complete', 'incomplete' or 'left out'.
      remark: why it is incomplete, left out, or has no ratio.
      flags: the values of the flags that vary between rows.
      is_baseline: whether others are compared with it.
      baseline: the name of the row that it is compared with.
      flag_changes, machine_changes, work_changes: what differs from the baseline, before and after.
      warnings: what its results warn of, each text once.
      outliers: of many runs, those far from the others.
    """

    name: str
    argument: str
    files: tuple[str, ...]
    shape: str
    status: str
    remark: str = ''
    flags: Mapping[str, Any] = field(default_factory=dict)
    is_baseline: bool = False
    baseline: str | None = None
    estimate: Estimate | None = None
    ratio: Ratio | None = None
    flag_changes: Changes = field(default_factory=dict)
    machine_changes: Changes = field(default_factory=dict)
    work_changes: Changes = field(default_factory=dict)
    warnings: tuple[Mapping[str, str], ...] = ()
    outliers: Mapping[str, float] = field(default_factory=dict)


def make_rows(
    sides: Sequence[Side], clock: Clock, *, force: bool = False, run_spread: float | None = None
) -> list[ChangeRow]:
    """Compares what the sides hold; the first one is the baseline.

    Args:
      force: also compares runs of different work.
      run_spread: how much single runs differ, relative; by default known from repeats of other settings on the same
        machine, or else assumed.

    Raises:
      UsageError: runs that would be compared did different work; the message names what differs with both values.
    """
    paired = pairs(sides)
    estimates = {id(pair.group): estimate(pair.group.records, clock) for pair in paired}
    spreads = _spreads(paired, estimates)
    flags = [name for name in varying([pair.group.facts for pair in paired]) if name not in OTHER_COLUMNS]
    names = group_names(sides)
    matched = {id(pair.baseline) for pair in paired if pair.baseline}
    rows = []
    for pair in paired:
        if pair.baseline and (work := work_differences([pair.baseline.first, pair.group.first])) and not force:
            raise UsageError(_refusal(pair.baseline, pair.group, work))
        spread = spreads.get(pair.group.first.machine.get('fingerprint'))
        if run_spread is not None:
            spread = given_spread(run_spread)
        row = _row(pair, names, estimates, flags, spread, has_partner=id(pair.group) in matched)
        rates = {record.source: rate_of(record, clock) for record in pair.group.records}
        rows.append(replace(row, outliers=far_from_others(rates)))
    return rows + [_left_out(left) for side in sides for left in side.left_out]


def _row(
    pair: Pair,
    names: Mapping[int, str],
    estimates: Mapping[int, Estimate],
    flags: Sequence[str],
    spread: Spread | None,
    *,
    has_partner: bool,
) -> ChangeRow:
    group, baseline = pair.group, pair.baseline
    ratio = compare(estimates[id(baseline)], estimates[id(group)], spread) if baseline else None
    remark = ''
    if pair.is_baseline and not has_partner:
        remark = 'only here: no other argument has this setting'
    elif not pair.is_baseline and not baseline:
        remark = 'only here: the baseline does not have this setting'
    if group.reason:
        remark = '; '.join(part for part in (f'incomplete: {group.reason}', remark) if part)
    warnings = {warning['text']: warning for record in group.records for warning in record.warnings}
    return ChangeRow(
        names[id(group)],
        group.argument,
        tuple(record.source for record in group.records),
        group.first.shape,
        'incomplete' if group.reason else 'complete',
        remark,
        {name: group.facts.get(name) for name in flags},
        pair.is_baseline,
        names[id(baseline)] if baseline else None,
        estimates[id(group)],
        ratio,
        flag_differences([baseline.first, group.first]) if baseline else {},
        machine_differences([baseline.first, group.first]) if baseline else {},
        work_differences([baseline.first, group.first]) if baseline else {},
        tuple(warnings.values()),
    )


def _left_out(left: Unmatched) -> ChangeRow:
    return ChangeRow(left.name, left.argument, (left.name,), left.shape, 'left out', left.reason, dict(left.given))


def _spreads(paired: Sequence[Pair], estimates: Mapping[int, Estimate]) -> dict[Any, Spread | None]:
    """How much runs differ on each machine, by its fingerprint, as far as settings were repeated there."""
    found: dict[Any, list[Estimate]] = {}
    for pair in paired:
        machine = pair.group.first.machine.get('fingerprint')
        if machine is not None:
            found.setdefault(machine, []).append(estimates[id(pair.group)])
    return {machine: known_spread(each) for machine, each in found.items()}


def _refusal(before: Group, after: Group, work: Changes) -> str:
    changes = ', '.join(f'{name} {first} and {second}' for name, (first, second) in work.items())
    return (
        f'{before.first.source} and {after.first.source}: they measured different work: {changes}; '
        'compare runs of the same work, or write --force'
    )
