"""The arguments of `compare`: which runs each of them holds, by setting and machine, and which are compared."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from errors import UsageError
from reporting.collection import collect
from reporting.original_logs import is_log, read_logs
from reporting.record import Failure, Record, read_document

# Facts of the run that name the value of a flag as it was used: --batch_size=0 became 64.
_RESOLVED = ('batch_size', 'variable_update', 'optimizer', 'precision', 'data_format', 'device', 'all_reduce_spec')

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """The runs of one setting on one machine.

    Attributes:
      records: those that count, in the order in which they started. facts: the values of flags and the shape, as used.
    """

    argument: str
    records: tuple[Record, ...]
    facts: Facts

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def reason(self) -> str | None:
        """Why its runs are incomplete; None if they are complete."""
        return next((record.reason or 'it is incomplete' for record in self.records if not record.is_complete), None)


@dataclass(frozen=True)
class LeftOut:
    """A run that has no throughput: a failure, an incomplete run without timed steps, or one besides complete ones."""

    argument: str
    name: str
    shape: str
    reason: str
    given: Mapping[str, str]


@dataclass(frozen=True)
class Side:
    """What one argument holds."""

    argument: str
    groups: tuple[Group, ...]
    left_out: tuple[LeftOut, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """A group with the baseline that it is compared with; None if there is none, or if it is the baseline."""

    group: Group
    baseline: Group | None = None
    is_baseline: bool = field(default=False, kw_only=True)


def read_side(argument: str) -> Side:
    """Reads a result file, a folder of results, or a log.

    Raises:
      UsageError: there is no such file, it is neither, or it holds no run with a timed step; one line names the file.
    """
    if Path(argument).is_dir():
        collection = collect([argument])
        return _side(argument, collection.records, collection.failures, collection.problems)
    found = read_one(argument)
    failures = [item for item in found if isinstance(item, Failure)]
    if failures:
        raise UsageError(f'{argument}: this run failed ({failures[0].reason}); give the result of a run that did not')
    side = _side(argument, [item for item in found if isinstance(item, Record)], (), ())
    if not side.groups:
        raise UsageError(f'{argument}: the run has no timed step ({side.left_out[0].reason}); measure it again')
    return side


def read_one(argument: str) -> Sequence[Record | Failure]:
    """Reads a file: one result or failure, or the runs in a log.

    Raises:
      UsageError: as read_side.
    """
    path = Path(argument)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f'{argument}: there is no such file or folder; give a result that --result_file wrote'
        ) from None
    except OSError as error:
        raise UsageError(f'{argument}: it cannot be read ({error.strerror}); give another file') from None
    if not data.strip():
        raise UsageError(f'{argument}: the file is empty; was its run stopped before it wrote a result?')
    if data.lstrip()[:1] in (b'{', b'['):
        try:
            return [_checked(read_document(data.decode(), argument))]
        except UnicodeDecodeError:
            raise UsageError(f'{argument}: it is not UTF-8 text; give a file that --result_file wrote') from None
    # A log may hold any bytes, such as those of a locale.
    return read_logs(data.decode(errors='replace').removeprefix('\ufeff'), argument)


def facts_of(record: Record) -> Facts:
    """The flags that change a step, with the values that were used, and the shape."""
    facts = dict(record.setting)
    facts.update({name: record.run[name] for name in _RESOLVED if record.run.get(name) is not None})
    return facts


def pairs(sides: Sequence[Side]) -> list[Pair]:
    """Which groups are compared with which: the first side is the baseline.

    A single side, and a baseline of a single group: all others are compared with that group. Otherwise with the group
    of the same setting; flags that have one value throughout each side need not be equal, since comparing those is the
    purpose. Every group is in the list, those of the first side first.
    """
    baseline, *others = sides
    if not baseline.groups:
        return [Pair(group) for side in others for group in side.groups]
    if not others or len(baseline.groups) == 1:
        groups = [group for side in sides for group in side.groups]
        # Of a single folder the first setting that is complete, if there is one.
        first = next((group for group in baseline.groups if not group.reason), groups[0])
        rest = [group for group in groups if group is not first]
        return [Pair(first, is_baseline=True), *(Pair(group, first) for group in rest)]
    found = [Pair(group, is_baseline=True) for group in baseline.groups]
    for side in others:
        varying = _varying(baseline.groups) | _varying(side.groups)
        by_setting: dict[str, Group] = {}
        for group in baseline.groups:
            by_setting.setdefault(_key(group, varying), group)
        found += [Pair(group, by_setting.get(_key(group, varying))) for group in side.groups]
    return found


def differences(before: Facts, after: Facts) -> dict[str, tuple[Any, Any]]:
    """The values that differ, by name: before and after. What one of them does not know is left out."""
    return {
        name: (before[name], after[name])
        for name in sorted({*before} & {*after})
        if before[name] != after[name] and before[name] is not None and after[name] is not None
    }


def flag_differences(before: Group, after: Group) -> dict[str, tuple[Any, Any]]:
    """The flags that differ, with the values that were used. A version may lack a flag that another one was given."""
    found = differences(before.facts, after.facts)
    if is_log(before.first) or is_log(after.first):
        return found
    given = {*before.first.given} | {*after.first.given}
    only = sorted(({*before.facts} ^ {*after.facts}) & given)
    return found | {name: (before.facts.get(name), after.facts.get(name)) for name in only}


def different_work(before: Record, after: Record) -> dict[str, tuple[Any, Any]]:
    """What differs between the work of two runs; such runs should not be compared."""
    return differences(before.work, after.work)


def machine_facts(record: Record) -> Facts:
    """What is known of the machine and its software, flat: 'cpu_model', 'versions.tensorflow', 'environment.TF_...'."""
    unimportant = ('fingerprint', 'load_average')
    facts: dict[str, Any] = {}
    sources = {
        '': {name: value for name, value in record.machine.items() if name not in unimportant},
        'program.': record.document.get('program') or {},
        'environment.': record.document.get('environment') or {},
    }
    for prefix, source in sources.items():
        for name, value in source.items():
            if isinstance(value, Mapping):
                facts.update({f'{prefix}{name}.{key}': inner for key, inner in value.items()})
            elif name == 'gpus':
                facts['gpus'] = [gpu.get('name') for gpu in value or []]
            else:
                facts[f'{prefix}{name}'] = value
    return facts


def machine_differences(before: Record, after: Record) -> dict[str, tuple[Any, Any]]:
    """What differs between two machines. A variable of the environment may be set for one of them only."""
    first, second = machine_facts(before), machine_facts(after)
    found = differences(first, second)
    if is_log(before) or is_log(after):
        # A log has the first two numbers of a version.
        found = {name: pair for name, pair in found.items() if not _is_part(*map(str, pair))}
    if 'environment' in before.document and 'environment' in after.document:
        only = sorted(name for name in {*first} ^ {*second} if name.startswith('environment.'))
        found.update({name: (first.get(name), second.get(name)) for name in only})
    return found


def _is_part(first: str, second: str) -> bool:
    return first.startswith(f'{second}.') or second.startswith(f'{first}.')


def _side(argument: str, records: Iterable[Record], failures: Iterable[Failure], problems: Iterable[str]) -> Side:
    problems = list(problems)
    left_out = [_left_out(argument, failure) for failure in failures]
    by_setting: dict[str, list[Record]] = {}
    for record in records:
        try:
            _checked(record)
        except UsageError as error:
            problems.append(str(error))
            continue
        if not record.images_per_second > 0:
            left_out.append(_left_out(argument, record, f'no step was timed: {record.reason}'))
            continue
        by_setting.setdefault(_text([*record.setting, record.machine.get('fingerprint')]), []).append(record)
    groups = []
    for repeats in by_setting.values():
        complete = [record for record in repeats if record.is_complete]
        counting = complete or repeats
        groups.append(Group(argument, tuple(counting), facts_of(counting[0])))
        left_out += [
            _left_out(argument, record, f'incomplete: {record.reason}') for record in repeats if record not in counting
        ]
    return Side(argument, tuple(groups), tuple(left_out), tuple(problems))


def _left_out(argument: str, run: Record | Failure, reason: str | None = None) -> LeftOut:
    return LeftOut(argument, run.source, run.shape, reason or run.reason or 'unknown', run.given)


def _checked(found: Record | Failure) -> Record | Failure:
    """Raises UsageError if a document has not the values that are read from it."""
    try:
        found.given.items()
        if isinstance(found, Failure):
            _ = found.reason, found.shape
        else:
            _ = found.images_per_second, found.images_per_second_of_steps, found.is_complete, found.reason
            _ = found.step_seconds().sum(), found.wall_seconds().sum(), facts_of(found), found.work
            _ = machine_facts(found), [warning['text'] for warning in found.warnings]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        cause = f'{type(error).__name__}: {error}'
        raise UsageError(f'{found.source}: the document is damaged ({cause}); measure again') from None
    return found


def _varying(groups: Sequence[Group]) -> set[str]:
    names = {name for group in groups for name in group.facts}
    return {name for name in names if len({_text(group.facts.get(name)) for group in groups}) > 1}


def _key(group: Group, names: set[str]) -> str:
    return _text({name: group.facts.get(name) for name in sorted(names)})


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
