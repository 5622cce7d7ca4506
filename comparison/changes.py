"""The rows of a comparison: for each group of runs its throughput, the ratio to its baseline, and what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comparison.differences import flag_differences, machine_differences, work_differences
from comparison.ratios import Clock, Estimate, Ratio, Spread, compare, estimate, given_spread, known_spread, rate_of
from comparison.sides import Group, Pair, Side, Unmatched, pairs
from errors import UsageError
from results.repeats import far_from_others

Changes = Mapping[str, tuple[Any, ...]]

# Of the flags they are named by other columns, or follow from them.
_OTHER_COLUMNS = ('shape',)


@dataclass(frozen=True)
class ChangeRow:
    """A row of the comparison.

    Attributes:
      name: the argument, and what tells the group from the others of this argument. argument: as it was given.
      files: the results. shape: as Record.shape.
      status: 'complete', 'incomplete' or 'left out'. remark: why it is incomplete, left out, or has no ratio.
      flags: the values of the flags that vary between rows.
      is_baseline: whether others are compared with it. baseline: the name of the row that it is compared with.
      flag_changes, machine_changes, work_changes: what differs from the baseline, before and after.
      warnings: what its results warn of, each text once. outliers: of many runs, those far from the others.
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
      force: also compares runs of different work. run_spread: how much single runs differ, relative; by default known
        from repeats of other settings on the same machine, or else assumed.

    Raises:
      UsageError: runs that would be compared did different work; the message names what differs with both values.
    """
    paired = pairs(sides)
    estimates = {id(pair.group): estimate(pair.group.records, clock) for pair in paired}
    spreads = _spreads(paired, estimates)
    varying = varying_flags([pair.group for pair in paired])
    names = group_names(sides)
    matched = {id(pair.baseline) for pair in paired if pair.baseline}
    rows = []
    for pair in paired:
        if pair.baseline and (work := work_differences([pair.baseline.first, pair.group.first])) and not force:
            raise UsageError(_refusal(pair.baseline, pair.group, work))
        spread = spreads.get(pair.group.first.machine.get('fingerprint'))
        if run_spread is not None:
            spread = given_spread(run_spread)
        row = _row(pair, names, estimates, varying, spread, has_partner=id(pair.group) in matched)
        rates = {record.source: rate_of(record, clock) for record in pair.group.records}
        rows.append(replace(row, outliers=far_from_others(rates)))
    return rows + [_left_out(left) for side in sides for left in side.left_out]


def _row(
    pair: Pair,
    names: Mapping[int, str],
    estimates: Mapping[int, Estimate],
    varying: Sequence[str],
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
        {name: group.facts.get(name) for name in varying},
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


def varying_flags(groups: Sequence[Group]) -> list[str]:
    """The flags whose value is not the same in all groups."""
    return _varying([group.facts for group in groups])


def _varying(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    known = {name for found in facts for name in found} - {*_OTHER_COLUMNS}
    return sorted(name for name in known if len({repr(found.get(name)) for found in facts}) > 1)


def group_names(sides: Sequence[Side]) -> dict[int, str]:
    """A name for each group, by the id of the group: the argument, unless there is only one, and what varies in it."""
    names = {}
    for side in sides:
        hosts = {group.first.machine.get('hostname') for group in side.groups}
        every = [{**group.facts, **group.software} for group in side.groups]
        varying = _varying(every)
        for group, facts in zip(side.groups, every, strict=True):
            parts = [side.argument] if len(sides) > 1 or len(side.groups) == 1 else []
            if len(side.groups) > 1:
                values = {name: facts.get(name) for name in varying}
                flags = [f'{name}={value}' for name, value in values.items() if value is not None]
                parts += [' '.join(flags)] if flags else []
                parts += [f'on {group.first.machine.get("hostname")}'] if len(hosts) > 1 else []
            names[id(group)] = ': '.join(parts) or group.first.shape
    return names
