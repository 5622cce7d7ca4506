"""Results as one HTML page that needs nothing else: no network, no other file. Needs the extra `report`."""

import base64
import hashlib
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from comparison.tables import Table, TableColumn
from errors import counted
from page.findings import ended_groups, flag_table, machine_table, warning_groups
from page.plots import Plot, make_plots
from page.rows import BATCH_SIZE, FOLDER, SHAPE, STANDARD, ReportRow, Summary, number, percent, summarize_collection
from results.collection import Collection
from results.summary import goal_of

_TEMPLATES = Path(__file__).parent / 'templates'
_MOST_COMMANDS = 100
_UNKNOWN = '—'
# The figures that have a column even if no run knows them.
_ALWAYS = ('images/sec', '±', 'speed-up', 'runs')


@dataclass(frozen=True)
class Page:
    """A page: its HTML, and the plots in it."""

    html: str
    plots: Sequence[Plot]


def make_page(collection: Collection, *, now: datetime, title: str | None = None) -> Page:
    """Makes the page of results.

    Args:
      collection: of results.collection.collect.
      now: when the page is made, in UTC; the page states it.
      title: its heading; by default it names the models.
    """
    summary = summarize_collection(collection)
    published_in = {row.place.published_in: None for row in summary.rows if row.place.published}
    plots = make_plots(summary)
    html = _render(
        title=title or _title(summary),
        facts=_facts(summary, now),
        summary=summary,
        published_in=[*published_in],
        table=_settings_table(summary),
        plots=[(plot, base64.b64encode(plot.image()).decode()) for plot in plots],
        ended=ended_groups(summary),
        warnings=warning_groups(summary),
        machines=machine_table(summary.runs),
        flags=flag_table(summary.runs),
        programs=sorted({str((run.document.get('program') or {}).get('version', '?')) for run in summary.runs}),
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
    models = list(dict.fromkeys(run.model for run in summary.runs))
    if not models:
        return 'Benchmark results'
    if all(run.work['role'] == 'exchange-only' for run in summary.runs):
        return 'How fast gradients meet'
    return f'How fast {models[0]} trains' if len(models) == 1 else f'How fast {len(models)} models train'


def _facts(summary: Summary, now: datetime) -> str:
    """The line below the title: how much was measured, where and when."""
    statuses = [row.status for row in summary.rows]
    facts = [counted(len(statuses), 'setting')]
    facts += [f'{statuses.count(status)} {status}' for status in ('incomplete', 'failed') if status in statuses]
    if summary.runs:
        machines = counted(len({run.machine['fingerprint'] for run in summary.runs}), 'machine')
        days = sorted({run.started_at[:10] for run in summary.runs})
        facts.append(f'{counted(len(summary.runs), "run")} on {machines}')
        facts.append(days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}')
    return f'{", ".join(facts)}. Page made {now:%Y-%m-%d %H:%M} UTC.'


def _settings_table(summary: Summary) -> Table:
    """The table of settings: what they are, what was measured, and the other flags that differ."""
    rows = summary.rows
    first = [*(name for name in (FOLDER, 'model') if name in summary.columns), *STANDARD]
    # All rates have as many decimals, so that they can be compared at a glance.
    least = min((row.rate for row in summary.shown), default=1.0)
    decimals = 2 if least < 100 else 1 if least < 1000 else 0
    figures = {
        'images/sec': [_figure(row, row.rate, f',.{decimals}f') for row in rows],
        '±': [_plus_minus(row) for row in rows],
        'speed-up': [_figure(row, row.speed_up, '.2f') for row in rows],
        'published images/sec': [_figure(None, row.place.published, '.2f') for row in rows],
        'published speed-up': [_figure(None, row.published_speed_up, '.2f') for row in rows],
        'runs': [str(len(row.runs)) for row in rows],
        'of peak': [percent(_mean(row, 'compute', 'share_of_peak'), 3) for row in rows],
        'J per image': [number(_mean(row, 'energy', 'joules_per_image'), 3) for row in rows],
        'time to accuracy': [_time_to_goal(row) for row in rows],
    }
    columns = {name: [row.traits.get(name) or _UNKNOWN for row in rows] for name in first}
    if any(row.label.startswith('#') for row in rows):
        columns = {'#': [str(position) for position in range(1, len(rows) + 1)], **columns}
    columns |= {
        name: cells for name, cells in figures.items() if name in _ALWAYS or any(cell != _UNKNOWN for cell in cells)
    }
    columns |= {
        name: [row.traits.get(name) or _UNKNOWN for row in rows] for name in summary.columns if name not in first
    }
    numbers = ('#', BATCH_SIZE, SHAPE, *figures)
    titles = [TableColumn(name, name in numbers or all(map(_is_number, cells))) for name, cells in columns.items()]
    return Table(titles, [*zip(*columns.values(), strict=True)])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return text == _UNKNOWN


def _figure(row: ReportRow | None, value: float | None, form: str) -> str:
    """A number, or what stands there if it is missing: the status of a row that is not complete."""
    if value is None or not math.isfinite(value):
        return row.status if row and row.status != 'complete' else _UNKNOWN
    return f'{value:{form}}'


def _plus_minus(row: ReportRow) -> str:
    return percent(row.estimate.plus_minus) if row.estimate else _UNKNOWN


def _mean(row: ReportRow, part: str, name: str) -> float | None:
    """The mean of a number in a part of the documents, over the repeats that know it."""
    found = [(run.document.get(part) or {}).get(name) for run in row.runs]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known else None


def _time_to_goal(row: ReportRow) -> str:
    goals = [goal for run in row.runs if (goal := goal_of(run.document))]
    if not goals:
        return _UNKNOWN
    wanted, reached = goals[0].wanted, [goal.seconds for goal in goals if goal.is_reached]
    if not reached:
        return f'top-1 {wanted:g} not reached'
    known = [seconds for seconds in reached if seconds is not None]
    after = number(statistics.fmean(known) if known else None, 3)
    of_runs = f', {len(reached)} of {counted(len(row.runs), "run")}' if len(reached) < len(row.runs) else ''
    return f'{after} s (top-1 {wanted:g}{of_runs})'


def _breakable(text: str) -> Markup:
    """A name that may go on in the next line after an underscore."""
    return escape(text).replace('_', Markup('_<wbr>'))


def _command(row: ReportRow) -> str:
    return shlex.join(['tf_cnn_benchmarks', *map(str, row.runs[0].document['command'].get('argv') or ())])
