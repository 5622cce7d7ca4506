"""Results as one HTML page that needs nothing else: no network, no other file. Needs the extra `report`."""

import base64
import hashlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from errors import counted
from page.figures import DARK, LIGHT, NARROW, WIDE, Plot
from page.findings import ended_groups, flag_differences, machine_cards, machine_differences, warning_groups
from page.headline import headline_stats
from page.measured import BATCH_SIZE, FOLDER, SHAPE, STANDARD
from page.plots import plot_peak, plot_rates, plot_scaling
from page.plots_history import plot_history
from page.plots_steps import plot_distribution, plot_losses, plot_phases, plot_stages, plot_timeline
from page.rows import ReportRow, Summary, number, summarize_collection
from results.collection import Collection
from results.document import Record

_TEMPLATES = Path(__file__).parent / 'templates'
_MOST_COMMANDS = 100
# Settings that a warning names.
_MOST_NAMED = 6


@dataclass(frozen=True)
class Cell:
    """A cell of the table of settings: its text, and the number that it is sorted by; None for text."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Section:
    """A section with plots: its anchor, its heading, and each plot with its two <svg>, wide and narrow."""

    anchor: str
    title: str
    plots: Sequence[tuple[Plot, Markup, Markup]]


@dataclass(frozen=True)
class Page:
    """A page: its HTML, and the plots in it."""

    html: str
    plots: tuple[Plot, ...]


def make_page(
    collection: Collection,
    *,
    now: datetime,
    title: str | None = None,
    history: Sequence[Record] = (),
) -> Page:
    """The page of results.

    Args:
      collection: of results.collection.collect.
      now: when the page is made, in UTC, which it states.
      title: its heading; by default it names the models.
      history: the runs of the last months.
    """
    summary = summarize_collection(collection)
    speed = [plot_rates(summary), plot_scaling(summary), plot_peak(summary)]
    steps = [plot_distribution(summary), plot_timeline(summary), plot_stages(summary), plot_phases(summary)]
    steps.append(plot_losses(summary))
    past = [plot_history(history)]
    groups = (('speed', 'Speed', speed), ('steps', 'Steps', steps), ('history', 'History', past))
    shown = [(anchor, heading, [plot for plot in plots if plot]) for anchor, heading, plots in groups]
    sections = [Section(anchor, heading, [_drawn(plot) for plot in plots]) for anchor, heading, plots in shown if plots]
    runs = summary.runs
    html = _render(
        title=title or _title(summary),
        now=now,
        period=_period([run.record.started_at for run in runs]),
        summary=summary,
        stats=headline_stats(summary),
        columns=_columns(summary),
        rows=[(row, _cells(row, position, summary)) for position, row in enumerate(summary.rows, 1)],
        sections=sections,
        ended=ended_groups(summary),
        warnings=warning_groups(summary),
        most_named=_MOST_NAMED,
        machines=machine_cards(runs),
        machine_differences=machine_differences(runs),
        flag_differences=flag_differences(runs),
        programs=sorted({str((run.record.document.get('program') or {}).get('version', '?')) for run in runs}),
        commands=[(row, _command(row)) for row in summary.rows if _command(row)][:_MOST_COMMANDS],
    )
    return Page(html, tuple(plot for _, _, plots in shown for plot in plots))


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
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src blob: data:; script-src 'sha256-{digest}'",
        css=Markup((_TEMPLATES / 'report.css').read_text(encoding='utf-8')),
        light=LIGHT,
        dark=DARK,
        script=Markup(script),
    )


def _drawn(plot: Plot) -> tuple[Plot, Markup, Markup]:
    # Inline SVG comes from matplotlib, with its texts escaped.
    return plot, Markup(plot.svg(WIDE)), Markup(plot.svg(NARROW))


def _title(summary: Summary) -> str:
    models = list(dict.fromkeys(run.record.model for run in summary.runs))
    if not models:
        return 'Benchmark results'
    return f'How fast {models[0]} trains' if len(models) == 1 else f'How fast {len(models)} models train'


def _period(starts: Sequence[str]) -> str:
    days = sorted({start[:10] for start in starts})
    return '' if not days else days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}'


def _columns(summary: Summary) -> list[tuple[str, bool]]:
    """The names of the columns, and whether each holds numbers."""
    first, more = _first_and_more(summary)
    columns = [('#', True)] if summary.is_numbered else []
    columns += [(name, _is_numeric(name, summary)) for name in first]
    columns += [('images/sec', True), ('±', True), ('speed-up', True)]
    columns += [('published images/sec', True), ('published speed-up', True)] if summary.published_in else []
    columns += [('runs', True)]
    columns += [(name, True) for name in _known_figures(summary)]
    columns += [(name, _is_numeric(name, summary)) for name in more]
    return columns


def _first_and_more(summary: Summary) -> tuple[Sequence[str], Sequence[str]]:
    """The names of the columns before those of the rates, and of those after them."""
    first = [*(name for name in (FOLDER, 'model') if name in summary.columns), *STANDARD]
    return first, [name for name in summary.columns if name not in first]


def _is_numeric(name: str, summary: Summary) -> bool:
    values = [row.traits.get(name, '') for row in summary.rows]
    return name in (BATCH_SIZE, SHAPE) or all(_as_number(value) is not None for value in values if value)


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cells(row: ReportRow, position: int, summary: Summary) -> list[Cell]:
    def trait(name: str) -> Cell:
        text = row.traits.get(name, '')
        if name == SHAPE and row.runs:
            return Cell(text, 1000.0 * row.runs[0].num_devices + row.runs[0].num_tasks)
        return Cell(text or '—', _as_number(text) if _is_numeric(name, summary) else None)

    rate = row.rate if math.isfinite(row.rate) else None
    cells = [Cell(str(position), position)] if summary.is_numbered else []
    first, more = _first_and_more(summary)
    cells += [trait(name) for name in first]
    missing = '—' if row.status == 'complete' else row.status
    cells.append(Cell(missing if rate is None else _fixed(rate, summary), rate))
    cells.append(_plus_minus(row))
    cells.append(Cell(missing if row.speed_up is None else f'{row.speed_up:.2f}', row.speed_up))
    if summary.published_in:
        for value in (row.place.published, summary.published_speed_up(row)):
            cells.append(Cell('—' if value is None else f'{value:.2f}', value))
    cells.append(Cell(str(len(row.runs)), len(row.runs)))
    cells += [figure(row) or Cell('—') for figure in _known_figures(summary).values()]
    cells += [trait(name) for name in more]
    return cells


def _of_peak(row: ReportRow) -> Cell | None:
    share = row.share_of_peak
    return Cell(f'{number(100 * share, 3)} %', 100 * share) if share else None


def _energy(row: ReportRow) -> Cell | None:
    return Cell(number(row.joules_per_image, 3), row.joules_per_image) if row.joules_per_image else None


def _time_to_accuracy(row: ReportRow) -> Cell | None:
    if not row.goals:
        return None
    wanted, reached = row.goals[0].wanted, [goal for goal in row.goals if goal.is_reached]
    if not reached:
        return Cell(f'top-1 {wanted:g} not reached')
    seconds = row.seconds_to_goal
    after = '—' if seconds is None else f'{number(seconds, 3)} s'
    of_runs = f', {len(reached)} of {counted(len(row.runs), "run")}' if len(reached) < len(row.runs) else ''
    return Cell(f'{after} (top-1 {wanted:g}{of_runs})', seconds)


# What some runs know beside their rates, by the name of its column.
_FIGURES: Mapping[str, Callable[[ReportRow], Cell | None]] = {
    'of peak': _of_peak,
    'J per image': _energy,
    'time to accuracy': _time_to_accuracy,
}


def _known_figures(summary: Summary) -> dict[str, Callable[[ReportRow], Cell | None]]:
    return {name: figure for name, figure in _FIGURES.items() if any(map(figure, summary.rows))}


def _plus_minus(row: ReportRow) -> Cell:
    if not row.estimate or row.estimate.basis is None:
        return Cell('—')
    share = row.estimate.plus_minus
    return Cell('too disturbed') if share is None else Cell(f'{number(100 * share, 2)} %', 100 * share)


def _fixed(rate: float, summary: Summary) -> str:
    """A rate with as many decimals as all in its column have, so that they can be compared at a glance."""
    least = min((row.rate for row in summary.shown), default=1.0)
    decimals = 2 if least < 100 else 1 if least < 1000 else 0
    return f'{rate:,.{decimals}f}'


def _breakable(text: str) -> Markup:
    """A name that may go on in the next line after an underscore."""
    return escape(text).replace('_', Markup('_<wbr>'))


def _command(row: ReportRow) -> str:
    if not row.runs:
        return ''
    return shlex.join(['tf_cnn_benchmarks', *map(str, row.runs[0].record.document['command'].get('argv') or ())])
