"""The rows of the report: one for each setting, with what its repeats say. Does not import TensorFlow."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reporting.collection import Collection
from reporting.comparison import estimate
from reporting.labels import names_of
from reporting.measured import MACHINE, MODE, STANDARD, Run, failure_traits, measured
from reporting.repeats import repeat_key


@dataclass(frozen=True)
class Row:
    """A setting.

    Attributes:
      traits: as Run.traits; of failures only what was given. work: as Run.work; empty for failures.
      runs: its repeats; empty if it left no result. reason: why it failed or is incomplete; None if it is complete.
      rate: images/sec, of all repeats; nan if there is none.
      low, high: its interval of 95 %: by its repeats, or, for one run, by its steps; see reporting.comparison.
      speed_up: the rate over that of the first row of the same work; None if it is unknown.
      label: what tells it from other rows, in a few words; see reporting.labels.
    """

    traits: Mapping[str, str]
    work: str
    runs: tuple[Run, ...]
    reason: str | None
    rate: float = math.nan
    low: float = math.nan
    high: float = math.nan
    speed_up: float | None = None
    label: str = ''

    @property
    def status(self) -> str:
        """'complete', 'incomplete' or 'failed'."""
        if not self.runs:
            return 'failed'
        return 'complete' if self.reason is None else 'incomplete'

    @property
    def is_shown(self) -> bool:
        """Whether it stands in the plots: it is complete, and has a rate."""
        return self.status == 'complete' and math.isfinite(self.rate)

    @property
    def share_of_peak(self) -> float | None:
        """Of the measured peak of the machine, from 0 to 1, the mean of the repeats; None if it was not measured."""
        shares = [run.share_of_peak for run in self.runs if run.share_of_peak is not None]
        return statistics.fmean(shares) if shares else None

    @property
    def mode(self) -> str:
        return self.traits[MODE]


@dataclass(frozen=True)
class Summary:
    """All rows.

    Attributes:
      rows: those with results in the order of work, variable_update, batch size and shape; then the failures.
      columns: the names of the traits that are shown: the standard ones, and those that differ between rows.
      modes: the values of variable_update, in the order of the rows.
      problems: one line for each file that could not be read.
    """

    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    modes: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def shown(self) -> list[Row]:
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

    def base_of(self, row: Row) -> Row | None:
        """The row that the speed-up of another one refers to."""
        return next((other for other in self.shown if other.work == row.work), None)


def summarize_collection(collection: Collection, *, across_versions: bool = False) -> Summary:
    """Groups the repeats of each setting on each machine; see Summary.

    Args:
      across_versions: as reporting.repeats.repeat_key.

    Raises:
      KeyError, TypeError, ValueError and so on, as measured; not if reporting.measured.read_measured read the files.
    """
    runs = [measured(record) for record in collection.records]
    rows = _in_order(_grouped(runs, across_versions))
    rows += [
        Row(failure_traits(failure), '', (), _failure_reason(failure.document, failure.reason))
        for failure in collection.failures
    ]
    columns = _columns(rows)
    names = _machine_names(runs)
    rows = [_named(row, names) for row in rows]
    labels = names_of([row.traits for row in rows], columns)
    rows = [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]
    bases: dict[str, float] = {}
    for row in rows:
        if row.is_shown:
            bases.setdefault(row.work, row.rate)
    rows = [replace(row, speed_up=row.rate / bases[row.work]) if row.is_shown else row for row in rows]
    return Summary(
        tuple(rows), columns, tuple(dict.fromkeys(row.mode for row in rows if row.mode)), collection.problems
    )


def number(value: float | None, digits: int = 4) -> str:
    """A number of at most so many significant digits, with commas at thousands; a dash if it is unknown."""
    if value is None or not math.isfinite(value):
        return '—'
    if value == 0:
        return '0'
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f'{value:,.{min(decimals, 6)}f}'


def _grouped(runs: Iterable[Run], across_versions: bool) -> list[Row]:
    groups: dict[str, list[Run]] = {}
    rows = []
    for run in runs:
        if run.record.is_complete:
            groups.setdefault(repeat_key(run.record, across_versions=across_versions), []).append(run)
        else:
            reason = run.record.reason or 'it did not take all of its steps'
            rows.append(_row([run], reason))
    return rows + [_row(group, None) for group in groups.values()]


def _row(runs: Sequence[Run], reason: str | None) -> Row:
    first = runs[0]
    measured = [run.record for run in runs if math.isfinite(run.rate)]
    low = high = rate = math.nan
    if measured:
        found = estimate(measured)
        rate = found.images_per_second
        low, high = found.interval or (rate, rate)
    return Row(first.traits, first.work, tuple(runs), reason, rate, low, high)


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Modes that need fewer processes come first, so that the first row is the plainest setting; then as measured."""
    began = {
        id(row): position for position, row in enumerate(sorted(rows, key=lambda row: row.runs[0].record.started_at))
    }
    works: dict[str, int] = {}
    modes: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        works[row.work] = min(works.get(row.work, len(rows)), began[id(row)])
        mode = (row.work, row.mode)
        modes[mode] = min(
            modes.get(mode, (row.runs[0].num_tasks, began[id(row)])), (row.runs[0].num_tasks, began[id(row)])
        )

    def key(row: Row) -> tuple[object, ...]:
        cluster = row.runs[0].record.document['cluster']
        shape = (row.runs[0].num_devices, cluster['num_workers'], cluster['num_ps'])
        size = row.runs[0].record.run['batch_size']
        return (works[row.work], modes[row.work, row.mode], size, shape, began[id(row)])

    return sorted(rows, key=key)


def _columns(rows: Sequence[Row]) -> tuple[str, ...]:
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


def _named(row: Row, names: Mapping[str, str]) -> Row:
    if not row.runs:
        return row
    return replace(row, traits={**row.traits, MACHINE: names[row.runs[0].machine]})


def _failure_reason(document: Mapping[str, object], reason: str) -> str:
    code = document.get('exit_code')
    return reason if code is None or str(code) in reason else f'{reason} (exit code {code})'
