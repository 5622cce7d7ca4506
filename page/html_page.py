"""Results as one HTML page that needs nothing else: no network, no other file. Needs the extra `report`."""

import base64
import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from errors import counted
from page.findings import ended_groups, flag_differences, machine_cards, machine_differences, warning_groups
from page.plots import Plot, make_plots
from page.rows import BATCH_SIZE, FOLDER, SHAPE, STANDARD, ReportRow, Summary, number, summarize_collection
from results.collection import Collection
from results.document import Record

_TEMPLATES = Path(__file__).parent / 'templates'
_MOST_COMMANDS = 100
_UNKNOWN = '—'
# Settings that a warning names.
_MOST_NAMED = 6


@dataclass(frozen=True)
class Cell:
    """A cell of the table of settings: its text, and the number that it is sorted by; None for text."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """A column of the table of settings: its name, and a cell for each row."""

    name: str
    cells: Sequence[Cell]

    @property
    def is_numeric(self) -> bool:
        """Whether it is sorted by numbers."""
        return any(cell.value is not None for cell in self.cells)


@dataclass(frozen=True)
class Page:
    """A page: its HTML, and the plots in it."""

    html: str
    plots: Sequence[Plot]


def make_page(
    collection: Collection, *, now: datetime, title: str | None = None, history: Sequence[Record] = ()
) -> Page:
    """Makes the page of results.

    Args:
      collection: of results.collection.collect.
      now: when the page is made, in UTC; the page states it.
      title: its heading; by default it names the models.
      history: the runs of the last months.
    """
    summary = summarize_collection(collection)
    runs = summary.runs
    columns = _columns(summary)
    plots = make_plots(summary, history)
    html = _render(
        title=title or _title(summary),
        facts=_facts(summary, now),
        summary=summary,
        columns=columns,
        rows=list(zip(summary.rows, zip(*(column.cells for column in columns), strict=True), strict=True)),
        plots=[(plot, base64.b64encode(plot.image()).decode()) for plot in plots],
        ended=ended_groups(summary),
        warnings=warning_groups(summary),
        most_named=_MOST_NAMED,
        machines=machine_cards(runs),
        machine_differences=machine_differences(runs),
        flag_differences=flag_differences(runs),
        programs=sorted({str((run.record.document.get('program') or {}).get('version', '?')) for run in runs}),
        commands=[(row.label, _command(row)) for row in summary.rows if row.runs][:_MOST_COMMANDS],
    )
    return Page(html, plots)


def _render(**values: Any) -> str:
    script = (_TEMPLATES / 'report.js').read_text(encoding='utf-8')
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters['breakable'] = _breakable
    return environment.get_template('report.html.jinja').render(
        **values,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        css=Markup((_TEMPLATES / 'report.css').read_text(encoding='utf-8')),
        script=Markup(script),
    )


def _title(summary: Summary) -> str:
    models = list(dict.fromkeys(run.record.model for run in summary.runs))
    if not models:
        return 'Benchmark results'
    return f'How fast {models[0]} trains' if len(models) == 1 else f'How fast {len(models)} models train'


def _facts(summary: Summary, now: datetime) -> str:
    """The line below the title: how much was measured, where and when."""
    statuses = [row.status for row in summary.rows]
    facts = [counted(len(statuses), 'setting')]
    facts += [f'{statuses.count(status)} {status}' for status in ('incomplete', 'failed') if status in statuses]
    if summary.runs:
        machines = counted(len({run.machine for run in summary.runs}), 'machine')
        days = sorted({run.record.started_at[:10] for run in summary.runs})
        facts.append(f'{counted(len(summary.runs), "run")} on {machines}')
        facts.append(days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}')
    return f'{", ".join(facts)}. Page made {now:%Y-%m-%d %H:%M} UTC.'


def _columns(summary: Summary) -> list[Column]:
    """The columns of the table of settings."""

    def column(name: str, cell: Callable[[ReportRow], Cell]) -> Column:
        return Column(name, [cell(row) for row in summary.rows])

    first = [*(name for name in (FOLDER, 'model') if name in summary.columns), *STANDARD]
    columns = [_trait_column(name, summary) for name in first]
    if summary.is_numbered:
        columns.insert(0, Column('#', [Cell(str(position), position) for position in range(1, len(summary.rows) + 1)]))
    # All rates have as many decimals, so that they can be compared at a glance.
    least = min((row.rate for row in summary.shown), default=1.0)
    decimals = 2 if least < 100 else 1 if least < 1000 else 0
    columns += [
        column('images/sec', lambda row: _cell(row.rate, lambda rate: f'{rate:,.{decimals}f}', _missing(row))),
        column('±', _plus_minus),
        column('speed-up', lambda row: _cell(row.speed_up, _two_decimals, _missing(row))),
    ]
    if summary.published_in:
        columns += [
            column('published images/sec', lambda row: _cell(row.place.published, _two_decimals)),
            column('published speed-up', lambda row: _cell(row.published_speed_up, _two_decimals)),
        ]
    columns.append(column('runs', lambda row: _cell(len(row.runs), str)))
    figures = [
        column('of peak', lambda row: _cell(row.share_of_peak, lambda share: f'{number(100 * share, 3)} %')),
        column('J per image', lambda row: _cell(row.joules_per_image, lambda joules: number(joules, 3))),
        column('time to accuracy', _time_to_goal),
    ]
    columns += [found for found in figures if any(cell.text != _UNKNOWN for cell in found.cells)]
    return columns + [_trait_column(name, summary) for name in summary.columns if name not in first]


def _trait_column(name: str, summary: Summary) -> Column:
    texts = [row.traits.get(name, '') for row in summary.rows]
    if name == SHAPE:
        # Sorted by devices, then by tasks.
        sizes = [1000.0 * row.num_devices + row.runs[0].num_tasks if row.runs else None for row in summary.rows]
    else:
        sizes = [_as_number(text) for text in texts]
        if name != BATCH_SIZE and any(text and size is None for text, size in zip(texts, sizes, strict=True)):
            sizes = [None] * len(texts)
    return Column(name, [Cell(text or _UNKNOWN, size) for text, size in zip(texts, sizes, strict=True)])


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cell(value: float | None, text: Callable[[float], str], missing: str = _UNKNOWN) -> Cell:
    """A figure, sorted by its value; what stands there if it is missing."""
    return Cell(missing) if value is None or not math.isfinite(value) else Cell(text(value), value)


def _missing(row: ReportRow) -> str:
    return _UNKNOWN if row.status == 'complete' else row.status


def _two_decimals(value: float) -> str:
    return f'{value:.2f}'


def _plus_minus(row: ReportRow) -> Cell:
    is_known = row.estimate and row.estimate.basis
    share = row.estimate.plus_minus if row.estimate else None
    return _cell(share, lambda share: f'{number(100 * share, 2)} %', 'too disturbed' if is_known else _UNKNOWN)


def _time_to_goal(row: ReportRow) -> Cell:
    if not row.goals:
        return Cell(_UNKNOWN)
    wanted, reached = row.goals[0].wanted, [goal for goal in row.goals if goal.is_reached]
    if not reached:
        return Cell(f'top-1 {wanted:g} not reached')
    seconds = row.seconds_to_goal
    after = f'{number(seconds, 3)} s'
    of_runs = f', {len(reached)} of {counted(len(row.runs), "run")}' if len(reached) < len(row.runs) else ''
    return Cell(f'{after} (top-1 {wanted:g}{of_runs})', seconds)


def _breakable(text: str) -> Markup:
    """A name that may go on in the next line after an underscore."""
    return escape(text).replace('_', Markup('_<wbr>'))


def _command(row: ReportRow) -> str:
    return shlex.join(['tf_cnn_benchmarks', *map(str, row.runs[0].record.document['command'].get('argv') or ())])
