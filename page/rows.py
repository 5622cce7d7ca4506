"""The rows of the report: one for each setting, with what its repeats say. Does not import TensorFlow."""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from comparison.intervals import Estimate
from comparison.ratios import estimate
from page.labels import names_of
from page.measured import FOLDER, MACHINE, MODE, STANDARD, Run, failure_traits, measured
from results.collection import Collection, SourceFile
from results.repeats import repeat_key
from results.summary import Goal


@dataclass(frozen=True)
class ReportRow:
    """A setting.

    Attributes:
      traits: as Run.traits, and the folder if there are several; of failures only what was given.
      work: as Run.work; empty for failures. place: where its results were found.
      runs: its repeats; empty if it left no result. reason: why it failed or is incomplete; None if it is complete.
      estimate: the rate of all repeats, with its interval by the repeats, or, for one run, by its steps.
      speed_up: the rate over that of the first row of the same folder and work; None if it is unknown.
      label: what tells it from other rows, in a few words; see page.labels.
    """

    traits: Mapping[str, str]
    work: str
    place: SourceFile
    runs: tuple[Run, ...]
    reason: str | None
    estimate: Estimate | None = None
    speed_up: float | None = None
    label: str = ''

    @property
    def status(self) -> str:
        """'complete', 'incomplete' or 'failed'."""
        if not self.runs:
            return 'failed'
        return 'complete' if self.reason is None else 'incomplete'

    @property
    def rate(self) -> float:
        """Images/sec of all repeats; nan if there is none."""
        return self.estimate.images_per_second if self.estimate else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the rate, (low, high); None if there is none that says something."""
        return self.estimate.interval if self.estimate else None

    @property
    def is_shown(self) -> bool:
        """Whether it stands in the plots: it is complete, and has a rate."""
        return self.status == 'complete' and math.isfinite(self.rate)

    @property
    def share_of_peak(self) -> float | None:
        """Of the measured peak of the machine, from 0 to 1, the mean of the repeats; None if it was not measured."""
        return _mean(run.share_of_peak for run in self.runs)

    @property
    def joules_per_image(self) -> float | None:
        """The mean of the repeats; None if it was not measured."""
        return _mean(run.joules_per_image for run in self.runs)

    @property
    def goals(self) -> list[Goal]:
        """Of each repeat for which an accuracy was wanted, when it was reached."""
        return [run.goal for run in self.runs if run.goal]

    @property
    def seconds_to_goal(self) -> float | None:
        """The mean over the repeats that reached the accuracy; None if it is unknown."""
        return _mean(goal.seconds for goal in self.goals if goal.is_reached)

    @property
    def mode(self) -> str:
        return self.traits[MODE]


@dataclass(frozen=True)
class Summary:
    """All rows.

    Attributes:
      rows: by folder; those of a sweep in its order, others in that of work, variable_update, batch size and shape,
        then the failures.
      columns: the names of the traits that are shown: the standard ones, and those that differ between rows.
      modes: the values of variable_update, in the order of the rows.
      problems: one line for each file that could not be read.
    """

    rows: tuple[ReportRow, ...]
    columns: tuple[str, ...]
    modes: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def shown(self) -> list[ReportRow]:
        return [row for row in self.rows if row.is_shown]

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]

    @property
    def works(self) -> list[str]:
        return list(dict.fromkeys(row.work for row in self.rows if row.work))

    @property
    def is_numbered(self) -> bool:
        """Whether labels begin with the number of the row, as they would be too long without."""
        return any(row.label.startswith('#') for row in self.rows)

    def name_of(self, work: str) -> str:
        """A work in short: its model, if no other work has it."""
        model = work.partition(',')[0]
        return model if sum(other.partition(',')[0] == model for other in self.works) == 1 else work

    @property
    def published_in(self) -> list[str]:
        """The sources of the published rates."""
        return list(dict.fromkeys(row.place.published_in for row in self.rows if row.place.published))

    @property
    def has_folders(self) -> bool:
        """Whether the results come from several folders."""
        return len({row.place.folder for row in self.rows}) > 1

    def published_speed_up(self, row: ReportRow) -> float | None:
        """The published rate of a row over the first one of the same folder."""
        first = self._first_published.get(row.place.folder)
        return row.place.published / first if row.place.published and first else None

    @functools.cached_property
    def _first_published(self) -> Mapping[str, float]:
        return {row.place.folder: row.place.published for row in reversed(self.rows) if row.place.published}

    def base_of(self, row: ReportRow) -> ReportRow | None:
        """The row that the speed-up of another one refers to."""
        return self._bases.get((row.place.folder, row.work))

    @functools.cached_property
    def _bases(self) -> Mapping[tuple[str, str], ReportRow]:
        """The first row of each folder and work that is shown."""
        return {(row.place.folder, row.work): row for row in reversed(self.shown)}


def summarize_collection(collection: Collection, *, across_versions: bool = False) -> Summary:
    """Groups the repeats of each setting on each machine; see Summary.

    Args:
      across_versions: as results.repeats.repeat_key.
    """
    rows = _grouped(collection, across_versions)
    rows += [
        ReportRow(
            failure_traits(failure),
            '',
            collection.place_of(failure),
            (),
            _failure_reason(failure.document, failure.reason),
        )
        for failure in collection.failures
    ]
    rows = _named(_in_order(rows))
    columns = _columns(rows)
    labels = names_of([row.traits for row in rows], columns)
    rows = [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]
    modes = tuple(dict.fromkeys(row.mode for row in rows if row.mode))
    summary = Summary(tuple(rows), columns, modes, collection.problems)
    bases = [summary.base_of(row) for row in rows]
    speed_ups = [row.rate / base.rate if base and row.is_shown else None for row, base in zip(rows, bases, strict=True)]
    rows = [replace(row, speed_up=speed_up) for row, speed_up in zip(rows, speed_ups, strict=True)]
    return replace(summary, rows=tuple(rows))


def number(value: float | None, digits: int = 4) -> str:
    """A number of at most so many significant digits, with commas at thousands; a dash if it is unknown."""
    if value is None or not math.isfinite(value):
        return '—'
    if value == 0:
        return '0'
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f'{value:,.{min(decimals, 6)}f}'


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _grouped(collection: Collection, across_versions: bool) -> list[ReportRow]:
    groups: dict[tuple[str, str], list[Run]] = {}
    rows = []
    for record in collection.records:
        run, place = measured(record), collection.place_of(record)
        if record.is_complete:
            key = (place.folder, repeat_key(record, across_versions=across_versions))
            groups.setdefault(key, []).append(run)
        else:
            rows.append(_row([run], place, record.reason or 'it did not take all of its steps'))
    return rows + [_row(group, collection.place_of(group[0].record), None) for group in groups.values()]


def _row(runs: Sequence[Run], place: SourceFile, reason: str | None) -> ReportRow:
    first = runs[0]
    measured = [run.record for run in runs if math.isfinite(run.rate)]
    return ReportRow(first.traits, first.work, place, tuple(runs), reason, estimate(measured) if measured else None)


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
        shape = (row.runs[0].num_devices, cluster['num_workers'], cluster['num_ps'])
        size = row.runs[0].record.run['batch_size']
        return (*place, works[row.work], modes[row.work, row.mode], size, shape, began[id(row)])

    return sorted(rows, key=key)


def _columns(rows: Sequence[ReportRow]) -> tuple[str, ...]:
    with_results = [row for row in rows if row.runs] or rows
    more = []
    for name in dict.fromkeys(name for row in with_results for name in row.traits if name not in STANDARD):
        # What a failure was not given is unknown, not different.
        values = {row.traits.get(name) for row in with_results} | {row.traits.get(name) for row in rows} - {None}
        if len(values) > 1:
            more.append(name)
    return (*STANDARD, *more)


def _machine_names(runs: Iterable[Run]) -> dict[str, str]:
    """A name for each machine by its fingerprint: its host name, with the fingerprint where two have the same."""
    hosts = {run.machine: str(run.record.machine['hostname']) for run in runs}
    names = list(hosts.values())
    return {mark: host if names.count(host) == 1 else f'{host} ({mark[:6]})' for mark, host in hosts.items()}


def _named(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows with names for their machines, and for their folders if there are several."""
    machines = _machine_names(run for row in rows for run in row.runs)
    folders = _folder_names([row.place.folder for row in rows])
    named = []
    for row in rows:
        traits = dict(row.traits)
        if row.runs:
            traits[MACHINE] = machines[row.runs[0].machine]
        if len(folders) > 1:
            traits[FOLDER] = folders[row.place.folder]
        named.append(replace(row, traits=traits))
    return named


def _folder_names(folders: Iterable[str]) -> dict[str, str]:
    """A name for each folder: the last part of its path, or all of it where two have the same."""
    last = {folder: Path(folder).absolute().name for folder in folders}
    names = list(last.values())
    return {folder: name if names.count(name) == 1 else folder for folder, name in last.items()}


def _failure_reason(document: Mapping[str, object], reason: str) -> str:
    code = document.get('exit_code')
    return reason if code is None or str(code) in reason else f'{reason} (exit code {code})'
