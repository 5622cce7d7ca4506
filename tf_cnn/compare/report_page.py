"""Renders results as one self-contained HTML page. Needs the extra `report`."""

import base64
import math
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tf_cnn.compare.changes import make_rows, work_notes
from tf_cnn.compare.intervals import Estimate
from tf_cnn.compare.ratios import Ratio
from tf_cnn.compare.report_plots import Plot, make_plots
from tf_cnn.compare.report_rows import (
    BATCH_SIZE,
    FOLDER,
    SHAPE,
    STANDARD,
    ReportRow,
    Summary,
    describe_fastest,
    format_number,
    format_percent,
    summarize_collection,
)
from tf_cnn.compare.run_sets import make_run_set
from tf_cnn.results.advice import doubt_mark, format_doubtful, noise_warnings
from tf_cnn.results.collection import Collection
from tf_cnn.results.document import Result
from tf_cnn.results.summary import accuracy_goal, format_machine
from tf_cnn.results.tables import Column, Table, abbreviate, escape_unprintable, format_known
from tf_cnn.system.errors import plural

_TEMPLATES = Path(__file__).parent / 'templates'
_UNKNOWN = '—'


@dataclass(frozen=True)
class Page:
    html: str
    plots: Sequence[Plot]


def make_page(collection: Collection, *, now: datetime, title: str | None = None) -> Page:
    """Renders the page; now is in UTC, and the default title names the models."""
    summary = summarize_collection(collection)
    plots = make_plots(summary)
    models = list(dict.fromkeys(run.model.name for run in summary.runs))
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Documents may contain control characters, also ones that reverse the text direction.
        finalize=lambda value: value if isinstance(value, Markup) else escape_unprintable(value),
    )
    folders, different_work = _compare_folders(summary)
    # A long name may break after an underscore.
    environment.filters['breakable'] = lambda text: escape(escape_unprintable(text)).replace(
        '_', Markup('_<wbr>')
    )
    html = environment.get_template('report.html.jinja').render(
        title=title or f'Images per second: {abbreviate(models)}',
        facts=_subtitle(summary, now),
        answers=describe_fastest(summary.shown),
        noise_warnings=noise_warnings(summary.runs),
        folders=folders,
        different_work=different_work,
        problems=summary.problems,
        published_in=list(
            dict.fromkeys(
                row.source_file.published_in for row in summary.rows if row.source_file.published
            )
        ),
        table=_settings_table(summary),
        plots=[(plot, base64.b64encode(plot.image()).decode()) for plot in plots],
        ended=[(row.status, row.reason, row.label) for row in summary.rows if row.reason],
        warnings=_warning_rows(summary),
        machines=_machines(summary),
        commands=[(row.label, _command(row)) for row in summary.rows if row.results],
        css=Markup((_TEMPLATES / 'report.css').read_text(encoding='utf-8')),
    )
    return Page(html, plots)


def _subtitle(summary: Summary, now: datetime) -> str:
    """Returns the line below the title: numbers of settings, runs and machines, and the days."""
    statuses = [row.status for row in summary.rows]
    phrases = [plural(len(statuses), 'setting')]
    phrases += [
        f'{statuses.count(status)} {status}'
        for status in ('incomplete', 'failed')
        if status in statuses
    ]
    if summary.runs:
        machines = plural(len({run.machine['fingerprint'] for run in summary.runs}), 'machine')
        days = sorted({run.started_at[:10] for run in summary.runs})
        phrases.append(f'{plural(len(summary.runs), "run")} on {machines}')
        phrases.append(days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}')
    return f'{", ".join(phrases)}. Page made {now:%Y-%m-%d %H:%M} UTC.'


def _property_column(name: str) -> Column[ReportRow]:
    return Column(
        name, lambda row: row.properties.get(name) or None, is_number=name in (BATCH_SIZE, SHAPE)
    )


def _settings_table(summary: Summary) -> Table:
    first = [*(name for name in (FOLDER, 'model') if name in summary.columns), *STANDARD]
    positions = {row.label: number for number, row in enumerate(summary.rows, start=1)}
    is_numbered = any(label.startswith('#') for label in positions)
    columns = [
        *([Column('#', lambda row: positions[row.label], is_number=True)] if is_numbered else []),
        *map(_property_column, first),
        *_METRICS,
        *(_property_column(name) for name in summary.columns if name not in first),
    ]
    return Table(columns, summary.rows, unknown=_UNKNOWN)


class _FolderPair(NamedTuple):
    """A setting in two folders."""

    setting: str
    estimates: tuple[Estimate, Estimate]
    ratio: Ratio


def _folder_column(folder: str, side: int) -> Column[_FolderPair]:
    return Column(
        folder, lambda pair: format_number(pair.estimates[side].images_per_second), is_number=True
    )


def _format_ratio_interval(pair: _FolderPair) -> str | None:
    interval = pair.ratio.interval
    return ' to '.join(map(format_number, interval)) if interval else None


def _compare_folders(summary: Summary) -> tuple[Table | None, list[str]]:
    """Compares the settings of two folders, as `compare` does.

    Returns the table of ratios, or None unless there are two folders; and a line for each
    difference in work, since settings of different work are not in the table.
    """
    runs_by_folder: dict[str, list[Result]] = {}
    for setting in summary.rows:
        runs_by_folder.setdefault(setting.source_file.folder, []).extend(setting.results)
    if len(runs_by_folder) != 2:
        return None, []
    run_sets = [make_run_set(folder, runs, (), ()) for folder, runs in runs_by_folder.items()]
    rows = {row.name: row for row in make_rows(run_sets, force=True)}
    pairs = [
        _FolderPair(row.name.removeprefix(f'{row.argument}: '), (baseline, row.estimate), row.ratio)
        for row in rows.values()
        if not row.work_changes
        and row.ratio
        and row.baseline
        and row.estimate
        and (baseline := rows[row.baseline].estimate)
    ]
    columns: list[Column[_FolderPair]] = [
        Column('setting', lambda pair: pair.setting),
        *(_folder_column(folder, side) for side, folder in enumerate(runs_by_folder)),
        Column('ratio', lambda pair: format_number(pair.ratio.value), is_number=True),
        Column('95 %', _format_ratio_interval, is_number=True),
        Column('verdict', lambda pair: pair.ratio.verdict.value),
    ]
    table = Table(columns, pairs, unknown=_UNKNOWN)
    return table if pairs else None, work_notes([*rows.values()])


def _format_metric(row: ReportRow, value: float) -> str | None:
    """Formats a number; a missing one as the status of the row, if the row is not complete."""
    if not math.isfinite(value):
        return row.status if row.status != 'complete' else None
    return f'{value:.2f}'


def _mean(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return statistics.fmean(known_values) if known_values else None


def _time_to_goal(row: ReportRow) -> str | None:
    goals = [goal for run in row.results if (goal := accuracy_goal(run))]
    reached = [goal.seconds for goal in goals if goal.top_1 >= goal.target]
    if not goals:
        return None
    of_runs = f'top-1 {goals[0].target:g}, {len(reached)} of {plural(len(row.results), "run")}'
    return (
        f'{format_number(_mean(reached), 3)} s ({of_runs})'
        if reached
        else f'not reached ({of_runs})'
    )


_METRICS: tuple[Column[ReportRow], ...] = (
    Column(
        'images/sec',
        lambda row: format_known(
            '{}{}', doubt_mark(row.results) if row.is_shown else '', _format_metric(row, row.rate)
        ),
        is_number=True,
        is_optional=True,
    ),
    Column(
        '±',
        lambda row: format_percent(row.estimate.plus_minus) if row.estimate else None,
        is_number=True,
        is_optional=True,
    ),
    Column(
        'speed-up',
        lambda row: _format_metric(row, row.speed_up or math.nan),
        is_number=True,
        is_optional=True,
    ),
    Column('verdict', lambda row: row.verdict_against(row.baseline), is_optional=True),
    Column(
        'published images/sec',
        lambda row: format_known('{:.2f}', row.source_file.published),
        is_number=True,
        is_optional=True,
    ),
    Column(
        'published speed-up',
        lambda row: format_known('{:g}', row.source_file.published_speed_up),
        is_number=True,
        is_optional=True,
    ),
    Column('runs', lambda row: len(row.results), is_number=True, is_optional=True),
    Column(
        'doubtful runs',
        lambda row: format_doubtful(row.results) or None,
        is_number=True,
        is_optional=True,
    ),
    Column(
        'of peak',
        lambda row: format_percent(_mean(run.compute.share_of_peak for run in row.results), 3),
        is_number=True,
        is_optional=True,
    ),
    Column(
        'J per image',
        lambda row: format_number(_mean(run.energy.joules_per_image for run in row.results), 3),
        is_number=True,
        is_optional=True,
    ),
    Column('time to accuracy', _time_to_goal, is_number=True, is_optional=True),
)


def _warning_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Returns (code, text, runs) of each warning; runs names settings and their throughputs."""
    first_texts: dict[str, str] = {}
    rates: dict[str, dict[str, list[str]]] = {}
    for row in summary.rows:
        for run in row.results:
            for warning in {warning.code: warning for warning in run.warnings}.values():
                first_texts.setdefault(warning.code, warning.text)
                by_label = rates.setdefault(warning.code, {})
                by_label.setdefault(row.label, []).append(format_number(run.images_per_second))
    warning_rows = []
    for code, text in first_texts.items():
        count = sum(map(len, rates[code].values()))
        names = [
            f'{label} ({abbreviate(row_rates)} images/sec)'
            for label, row_rates in rates[code].items()
        ]
        runs = f'{count} of {plural(len(summary.runs), "run")}: {abbreviate(names)}'
        warning_rows.append((code, text, runs))
    return warning_rows


def _machines(summary: Summary) -> list[tuple[str, str]]:
    first = {str(run.machine['fingerprint']): run for run in reversed(summary.runs)}
    return [
        (str(run.machine['hostname']), '; '.join(format_machine(run.machine)))
        for run in reversed(first.values())
    ]


def _command(row: ReportRow) -> str:
    """Returns the command line of one run: each flag once, with the value that was used."""
    flag_texts = row.results[0].command.given_flags
    return shlex.join(
        [
            'tf_cnn_benchmarks',
            *(text for name, text in flag_texts.items() if name not in ('repeat', 'result_file')),
        ]
    )
