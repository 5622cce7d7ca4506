"""The rows of the report: what it shows of each run, one row for each setting, and short names of settings.

Does not import TensorFlow or matplotlib.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comparison.intervals import Estimate
from comparison.ratios import estimate
from params.table import SPECS
from results.collection import Collection, SourceFile
from results.document import Failure, Record, as_float, default_fact, is_of_setting
from results.repeats import repeat_key
from results.summary import Goal, goal_of

# The columns of every table of settings, in this order.
MODE, BATCH_SIZE, SHAPE = 'variable_update', 'batch size', 'W*G+P'
STANDARD = (MODE, BATCH_SIZE, SHAPE)
MACHINE, FOLDER = 'machine', 'folder'
# Flags whose values stand in the standard columns, or in those of the work.
_SHOWN_OTHERWISE = frozenset({'model', 'variable_update', 'batch_size', 'num_gpus', 'shape', 'forward_only', 'eval'})
# Which GPUs a process saw: as many as --num_gpus says, so all but the first follow from the shape.
_GPUS = 'CUDA_VISIBLE_DEVICES'
# In document['phases'], but not a phase of its own: the time until the very first step, a warm-up, was done.
_FIRST_STEP = 'first_step'
# The names of settings: their length, the columns that come first in them, and those whose values need no name.
_CHARACTERS = 48
_PART_CHARACTERS = 28
_NUMBERED_CHARACTERS = 44
_FIRST = (FOLDER, 'model', MODE, BATCH_SIZE, SHAPE)
_PLAIN = (FOLDER, MODE, SHAPE, 'model', MACHINE, 'data set', 'role')


@dataclass(frozen=True)
class Run:
    """A run as the report shows it.

    Attributes:
      record: the result.
      traits: what it measured and how, by the name of a column, as text.
      work: what must be the same for two rates to be comparable: model, data set, image size, role.
      num_devices: workers * devices of each.
      num_tasks: workers and parameter servers.
      warmups: seconds of each warm-up step of the chief, [num_warmups] float64.
      timed: seconds of each timed step of the chief, [num_timed] float64.
      phases: seconds until the first timed step began, by cause; warm_up covers all warm-up steps.
      first_step: seconds until the very first step was done; None if unknown.
      stages: seconds between the start of the first timed step and the end of the last, by cause.
      share_of_peak: share of the measured peak of the machine, from 0 to 1; None if it was not measured.
      joules_per_image: energy of the chips of its one host; None if unknown, or if there were several hosts.
      goal: the accuracy that was wanted, and when it was reached; None if none was.
    """

    record: Record
    traits: Mapping[str, str]
    work: str
    num_devices: int
    num_tasks: int
    warmups: NDArray[np.float64]
    timed: NDArray[np.float64]
    phases: Mapping[str, float]
    first_step: float | None
    stages: Mapping[str, float]
    share_of_peak: float | None
    joules_per_image: float | None
    goal: Goal | None

    @property
    def machine(self) -> str:
        """The fingerprint of the machine."""
        return str(self.record.machine['fingerprint'])

    @property
    def rate(self) -> float:
        """Images/sec; nan if no step was timed."""
        return self.record.images_per_second


@dataclass(frozen=True)
class ReportRow:
    """A setting.

    Attributes:
      traits: as Run.traits, and the folder if there are several; of a failure only the flags that were given.
      work: as Run.work; empty for failures.
      place: where its results were found.
      runs: its repeats; empty if it left no result.
      reason: why it failed or is incomplete; None if it is complete.
      estimate: the rate of all repeats, with its interval by the repeats, or, for one run, by its steps.
      base: the first shown row of the same folder and work, which speed-ups are against; None if it is not shown.
      published_speed_up: its published rate over the first one of the same folder; None if it has none.
      label: tells it from other rows, in a few words; see names_of.
    """

    traits: Mapping[str, str]
    work: str
    place: SourceFile
    runs: tuple[Run, ...]
    reason: str | None
    estimate: Estimate | None = None
    base: 'ReportRow | None' = None
    published_speed_up: float | None = None
    label: str = ''

    @property
    def status(self) -> str:
        """'complete', 'incomplete' or 'failed'."""
        if not self.runs:
            return 'failed'
        return 'complete' if self.reason is None else 'incomplete'

    @property
    def mode(self) -> str:
        """The value of --variable_update."""
        return self.traits[MODE]

    @property
    def num_devices(self) -> int:
        """Workers * devices of each; 0 for failures."""
        return self.runs[0].num_devices if self.runs else 0

    @property
    def rate(self) -> float:
        """Images/sec of all repeats; nan if there is none."""
        return self.estimate.images_per_second if self.estimate else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the rate, (low, high); None if too little was measured, or it would say nothing."""
        return self.estimate.interval if self.estimate else None

    @property
    def is_shown(self) -> bool:
        """Whether the plots show the row: it is complete and has a rate."""
        return self.status == 'complete' and math.isfinite(self.rate)

    @property
    def speed_up(self) -> float | None:
        """The rate over that of the base; None if the row is not shown."""
        return self.rate / self.base.rate if self.base else None

    @property
    def share_of_ideal(self) -> float | None:
        """The speed-up over the ratio of devices; None if the row is not shown."""
        return self.rate / self.base.rate * self.base.num_devices / self.num_devices if self.base else None

    @property
    def share_of_peak(self) -> float | None:
        """Share of the measured peak of the machine, from 0 to 1: the mean of the repeats; None if unknown."""
        return _mean(run.share_of_peak for run in self.runs)

    @property
    def joules_per_image(self) -> float | None:
        """The mean of the repeats; None if it was not measured."""
        return _mean(run.joules_per_image for run in self.runs)

    @property
    def goals(self) -> list[Goal]:
        """When each repeat reached the accuracy that was wanted of it, if one was."""
        return [run.goal for run in self.runs if run.goal]

    @property
    def seconds_to_goal(self) -> float | None:
        """The mean over the repeats that reached the accuracy; None if unknown."""
        return _mean(goal.seconds for goal in self.goals if goal.is_reached)


@dataclass(frozen=True)
class Summary:
    """All rows.

    Attributes:
      rows: by folder; those of a sweep in its order, others by work, variable_update, batch size and shape, then the
        failures.
      columns: the names of the traits that are shown: the standard ones, and those that differ between rows.
      modes: the values of variable_update, in the order of the rows.
      problems: one line for each file that could not be read.
    """

    rows: tuple[ReportRow, ...]
    columns: tuple[str, ...]
    modes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def shown(self) -> list[ReportRow]:
        """The rows that the plots show."""
        return [row for row in self.rows if row.is_shown]

    @property
    def runs(self) -> list[Run]:
        """The runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def works(self) -> list[str]:
        """The different works, in the order of the rows."""
        return list(dict.fromkeys(row.work for row in self.rows if row.work))

    @property
    def published_in(self) -> list[str]:
        """The sources of the published rates."""
        return list(dict.fromkeys(row.place.published_in for row in self.rows if row.place.published))

    @property
    def has_folders(self) -> bool:
        """Whether the results come from several folders."""
        return len({row.place.folder for row in self.rows}) > 1

    @property
    def is_numbered(self) -> bool:
        """Whether labels begin with the number of the row, as they would be too long without."""
        return any(row.label.startswith('#') for row in self.rows)

    def name_of(self, work: str) -> str:
        """A short name of a work: its model, if no other work has the same one."""
        model = work.partition(',')[0]
        return model if sum(other.partition(',')[0] == model for other in self.works) == 1 else work


def summarize_collection(collection: Collection, *, across_versions: bool = False) -> Summary:
    """Groups the repeats of each setting on each machine; see Summary.

    Args:
      across_versions: whether runs with different versions of TensorFlow are repeats; see results.repeats.repeat_key.
    """
    rows = [*_settings(collection, across_versions), *_failures(collection)]
    rows = _with_names(_in_order(rows))
    columns = _columns(rows)
    labels = names_of([row.traits for row in rows], columns)
    rows = [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]
    modes = tuple(dict.fromkeys(row.mode for row in rows if row.mode))
    return Summary(tuple(_with_bases(rows)), columns, modes, collection.problems)


def names_of(settings: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """A name for each setting, from as few columns as tell them apart; '#3 ...' where that is not enough.

    Args:
      settings: the traits of each.
      columns: the traits that a name may consist of.
    """
    candidates = [name for name in _FIRST if name in columns] + [name for name in columns if name not in _FIRST]
    # A flag that a failure was not given is unknown, and only tells it from others if nothing else does.
    known = [setting for setting in settings if all(setting.get(name) for name in candidates)]
    for among in (known or settings, settings):
        chosen = _telling(among, candidates)
        parts = [
            [_part(name, setting[name]) for name in chosen if setting.get(name)] or [*setting.values()][:1]
            for setting in settings
        ]
        names = [' · '.join(found) for found in parts]
        if len(set(names)) == len(names) and all(len(name) <= _CHARACTERS for name in names):
            return names
    return [_shortened(f'#{position} {name}', _NUMBERED_CHARACTERS) for position, name in enumerate(names, 1)]


def number(value: float | None, digits: int = 4) -> str:
    """A number of at most so many significant digits, with commas at thousands; a dash if unknown."""
    if value is None or not math.isfinite(value):
        return '—'
    if value == 0:
        return '0'
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f'{value:,.{min(decimals, 6)}f}'


def as_text(value: object) -> str:
    """A value of a flag or a fact, as a command line would have it."""
    if value is None:
        return 'none'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(collection: Collection, across_versions: bool) -> Iterator[ReportRow]:
    """A row for each setting, and one for each run that is incomplete."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for record in collection.records:
        run, place = _measured(record), collection.place_of(record)
        if record.is_complete:
            key = (place.folder, repeat_key(record, across_versions=across_versions))
            groups.setdefault(key, []).append(run)
        else:
            yield _row([run], place, record.reason or 'it did not take all of its steps')
    for group in groups.values():
        yield _row(group, collection.place_of(group[0].record), None)


def _row(runs: Sequence[Run], place: SourceFile, reason: str | None) -> ReportRow:
    records = [run.record for run in runs if math.isfinite(run.rate)]
    return ReportRow(runs[0].traits, runs[0].work, place, tuple(runs), reason, estimate(records) if records else None)


def _failures(collection: Collection) -> Iterator[ReportRow]:
    for failure in collection.failures:
        code, reason = failure.document.get('exit_code'), failure.reason
        if code is not None and str(code) not in reason:
            reason = f'{reason} (exit code {code})'
        yield ReportRow(_failure_traits(failure), '', collection.place_of(failure), (), reason)


def _failure_traits(failure: Failure) -> dict[str, str]:
    """The flags that were given, by the names of columns."""
    given = {str(name): str(text).partition('=')[2] or 'true' for name, text in failure.given.items()}
    mode = given.get('variable_update', str(SPECS['variable_update'].default))
    traits = {MODE: mode, BATCH_SIZE: given.get('batch_size', ''), SHAPE: failure.shape}
    if 'model' in given:
        traits['model'] = given['model']
    return traits | {name: text for name, text in given.items() if name not in _SHOWN_OTHERWISE}


def _measured(record: Record) -> Run:
    document, cluster = record.document, record.document['cluster']
    steps = document['workers'][0]['steps'] if document['workers'] else {'seconds': [], 'phase': []}
    seconds = np.asarray(steps['seconds'], dtype=np.float64)
    phases = document.get('phases') or {}
    num_workers = int(cluster['num_workers'])
    return Run(
        record,
        _traits(record),
        _work(record),
        num_devices=num_workers * int(cluster['devices_per_worker']),
        num_tasks=num_workers + int(cluster['num_ps']),
        warmups=seconds[np.asarray(steps['phase'], dtype=str) == 'warmup'],
        timed=record.step_seconds(),
        phases={str(name): float(value) for name, value in phases.items() if name != _FIRST_STEP and value},
        first_step=phases.get(_FIRST_STEP),
        stages=_stages(document),
        share_of_peak=(document.get('compute') or {}).get('share_of_peak'),
        joules_per_image=(document.get('energy') or {}).get('joules_per_image'),
        goal=goal_of(document),
    )


def _traits(record: Record) -> dict[str, str]:
    work = record.work
    traits = {MODE: record.run['variable_update'], BATCH_SIZE: record.run['batch_size'], SHAPE: record.shape}
    traits |= {
        'model': record.model,
        'data set': f'{work["data_set"]}{", synthetic" if work["is_synthetic"] else ""}',
        'image size': work['image_size'],
        'role': work['role'],
        MACHINE: record.machine['fingerprint'],
        'TensorFlow': record.machine['versions'].get('tensorflow'),
    }
    # A version that lacks a flag behaves as its default.
    defaults = {name: default_fact(name) for name in SPECS if is_of_setting(name)}
    settings = {name: value for name, value in (defaults | record.facts).items() if name not in _SHOWN_OTHERWISE}
    environment = dict(record.document.get('environment') or {})
    if _GPUS in environment:
        environment[_GPUS] = environment[_GPUS].partition(',')[0]
    return {name: as_text(value) for name, value in (traits | settings | environment).items()}


def _work(record: Record) -> str:
    work = record.work
    size = f'{work["image_size"]}*{work["image_size"]}'
    data = f'{"synthetic " if work["is_synthetic"] else ""}{work["data_set"]} {size}'
    return ', '.join([record.model, data, str(work['role'])])


def _stages(document: Mapping[str, Any]) -> dict[str, float]:
    throughput = document['throughput']
    within = as_float(throughput.get('step_seconds'), 0.0)
    waiting = min(as_float((document.get('input') or {}).get('wait_seconds'), 0.0), within)
    stages = {'step': within - waiting, 'input wait': waiting}
    stages |= {str(cause): float(seconds) for cause, seconds in (throughput.get('between_seconds') or {}).items()}
    return {name: seconds for name, seconds in stages.items() if seconds > 0}


def _in_order(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Rows of a sweep stay in its order. Of others, modes that need fewer processes come first; then as measured."""
    with_results = sorted((row for row in rows if row.runs), key=lambda row: row.runs[0].record.started_at)
    began = {id(row): position for position, row in enumerate(with_results)}
    folders = list(dict.fromkeys(row.place.folder for row in rows))
    works: dict[str, int] = {}
    modes: dict[tuple[str, str], tuple[int, int]] = {}
    for row in with_results:
        works.setdefault(row.work, began[id(row)])
        mode, first = (row.work, row.mode), (row.runs[0].num_tasks, began[id(row)])
        modes[mode] = min(modes.get(mode, first), first)

    def key(row: ReportRow) -> tuple[object, ...]:
        position = len(rows) if row.place.position is None else row.place.position
        place = (folders.index(row.place.folder), position, not row.runs)
        if not row.runs:
            return place
        cluster = row.runs[0].record.document['cluster']
        shape = (row.num_devices, cluster['num_workers'], cluster['num_ps'])
        size = row.runs[0].record.run['batch_size']
        return (*place, works[row.work], modes[row.work, row.mode], size, shape, began[id(row)])

    return sorted(rows, key=key)


def _with_names(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows with names for their machines, and for their folders if there are several."""
    hosts = {run.machine: str(run.record.machine['hostname']) for row in rows for run in row.runs}
    machines = _distinct(hosts, {mark: f'{host} ({mark[:6]})' for mark, host in hosts.items()})
    paths = dict.fromkeys(row.place.folder for row in rows)
    folders = _distinct({path: Path(path).absolute().name for path in paths}, {path: path for path in paths})
    named = []
    for row in rows:
        machine = {MACHINE: machines[row.runs[0].machine]} if row.runs else {}
        folder = {FOLDER: folders[row.place.folder]} if len(folders) > 1 else {}
        named.append(replace(row, traits={**row.traits, **machine, **folder}))
    return named


def _distinct(short: Mapping[str, str], long: Mapping[str, str]) -> dict[str, str]:
    """The short name of each key, or the long one where two keys have the same short name."""
    names = list(short.values())
    return {key: name if names.count(name) == 1 else long[key] for key, name in short.items()}


def _columns(rows: Sequence[ReportRow]) -> tuple[str, ...]:
    with_results = [row for row in rows if row.runs] or rows
    more = []
    for name in dict.fromkeys(name for row in with_results for name in row.traits if name not in STANDARD):
        # A flag that a failure was not given is unknown, not different.
        values = {row.traits.get(name) for row in with_results} | {row.traits.get(name) for row in rows} - {None}
        if len(values) > 1:
            more.append(name)
    return (*STANDARD, *more)


def _with_bases(rows: Sequence[ReportRow]) -> Iterator[ReportRow]:
    bases = {(row.place.folder, row.work): row for row in reversed(rows) if row.is_shown}
    published = {row.place.folder: row.place.published for row in reversed(rows) if row.place.published}
    for row in rows:
        first, own = published.get(row.place.folder), row.place.published
        yield replace(
            row,
            base=bases[row.place.folder, row.work] if row.is_shown else None,
            published_speed_up=own / first if own and first else None,
        )


def _telling(settings: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """The columns each of which tells apart settings that those before it do not; the first ones if there are none."""
    chosen: list[str] = []
    num_groups = 1
    for column in columns:
        num_found = len({tuple(setting.get(name) for name in (*chosen, column)) for setting in settings})
        # The shape says how large a setting is, also where others would do.
        is_shape = column == SHAPE and len({setting.get(SHAPE) for setting in settings}) > 1
        if num_found > num_groups or is_shape:
            chosen.append(column)
            num_groups = max(num_groups, num_found)
    return chosen or [name for name in columns if name in _FIRST]


def _part(column: str, value: str) -> str:
    text = value if column in _PLAIN else f'batch {value}' if column == BATCH_SIZE else f'{column}={value}'
    return _shortened(text, _PART_CHARACTERS)


def _shortened(text: str, characters: int) -> str:
    """A text of at most this many characters."""
    return text if len(text) <= characters else f'{text[: characters - 1].rstrip()}…'


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
