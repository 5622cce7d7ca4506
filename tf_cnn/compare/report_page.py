"""Renders results as one self-contained HTML page. Needs the extra `report`."""

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tf_cnn.compare.measured import name_rates
from tf_cnn.compare.report_folders import (
    UNKNOWN,
    compare_folders,
    joules_per_image,
    mean,
    price_of_a_million,
    prices_per_hour,
    short_names,
)
from tf_cnn.compare.report_plots import Plot, make_plots, row_color
from tf_cnn.compare.report_rows import (
    BATCH_SIZE,
    FOLDER,
    MODE,
    SHAPE,
    STANDARD,
    ReportRow,
    Summary,
    describe_fastest,
    format_percent,
    summarize_collection,
)
from tf_cnn.managers.modes import MODES
from tf_cnn.results.advice import doubt_mark, format_doubtful, group_warnings, noise_warnings
from tf_cnn.results.collection import Collection
from tf_cnn.results.document import CommandResult
from tf_cnn.results.summary import accuracy_goal, format_limits, format_machine
from tf_cnn.results.tables import (
    Column,
    Table,
    abbreviate,
    escape_unprintable,
    format_known,
    format_number,
)
from tf_cnn.system.errors import plural

_TEMPLATES = Path(__file__).parent / 'templates'


# More are on the page only in its table.
_MAX_ANSWERS = 4


@dataclass(frozen=True)
class Page:
    """A page, and its first lines."""

    html: str
    plots: Sequence[Plot]
    answers: Sequence[str]


def make_page(
    collection: Collection,
    *,
    now: datetime,
    title: str | None = None,
    price_per_hour: str | None = None,
) -> Page:
    """Renders the page; now is in UTC, and the default title names the models.

    price_per_hour is the flag: see prices_per_hour. Raises UsageError if it is wrong.
    """
    summary = summarize_collection(collection)
    prices = prices_per_hour(price_per_hour, summary.values(FOLDER))
    names = short_names(summary.values(FOLDER))
    sentences, folder_table, different_work = compare_folders(summary)
    answers = (sentences or describe_fastest(summary))[:_MAX_ANSWERS]
    plots = make_plots(summary)
    models = list(dict.fromkeys(filter(None, (run.workload['model'] for run in summary.runs))))
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Documents may contain control characters, also ones that reverse the text direction.
        finalize=lambda value: value if isinstance(value, Markup) else escape_unprintable(value),
    )
    # A long name may break after an underscore.
    environment.filters['breakable'] = lambda text: escape(escape_unprintable(text)).replace(
        '_', Markup('_<wbr>')
    )
    html = environment.get_template('report.html.jinja').render(
        title=title or (f'Images per second: {abbreviate(models)}' if models else 'Commands'),
        facts=_subtitle(summary, now),
        answers=answers,
        noise_warnings=noise_warnings(summary.runs),
        folders=folder_table,
        different_work=different_work,
        problems=summary.problems,
        published_in=list(
            dict.fromkeys(
                row.source_file.published_in for row in summary.rows if row.source_file.published
            )
        ),
        table=_settings_table(summary, prices),
        prices=[(names[folder], format_number(price)) for folder, price in prices.items()],
        words=_words(summary),
        plots=[(plot, base64.b64encode(plot.image()).decode()) for plot in plots],
        ended=[(row.status, row.reason, row.label) for row in summary.rows if row.reason],
        warnings=_warning_rows(summary),
        machines=_machines(summary),
        commands=[(row.label, _command(row)) for row in summary.rows if row.results],
        css=Markup((_TEMPLATES / 'report.css').read_text(encoding='utf-8')),
    )
    return Page(html, plots, answers)


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


def _words(summary: Summary) -> list[tuple[str, str]]:
    """Explains the modes and the shape, with the words of the glossary (docs/glossary.md)."""
    modes = [(name, MODES[name].summary) for name in summary.values(MODE) if name in MODES]
    return [
        *modes,
        (SHAPE, 'Workers * devices of each worker + parameter servers.'),
        ('tower', 'The copy of the network that computes on one device.'),
    ]


def _settings_table(summary: Summary, prices: Mapping[str, float]) -> Table:
    compares_folders = summary.color_column == FOLDER
    first = [*(name for name in (FOLDER, 'model') if name in summary.columns), *STANDARD]
    positions = {row.label: number for number, row in enumerate(summary.rows, start=1)}
    is_numbered = any(label.startswith('#') for label in positions)
    columns = [
        *([Column('#', lambda row: positions[row.label], is_number=True)] if is_numbered else []),
        *map(_property_column, first),
        *_RATES,
        Column(
            'speed-up',
            # Each folder has a baseline, and their 1.00 would seem to compare the folders.
            lambda row: (
                None
                if compares_folders and row.is_baseline
                else _format_metric(row, row.speed_up or math.nan)
            ),
            is_number=True,
            is_optional=True,
        ),
        *_METRICS,
        Column(
            'price of 10^6 images',
            lambda row: _mark_doubts(
                row, price_of_a_million(row, prices.get(row.properties[FOLDER]))
            ),
            is_number=True,
            is_optional=True,
        ),
        *(_property_column(name) for name in summary.columns if name not in first),
    ]
    return Table(name_rates(columns, summary.rows), summary.rows, unknown=UNKNOWN)


def _format_metric(row: ReportRow, value: float) -> str | None:
    """Formats a number; a missing one as the status of the row, if the row is not complete."""
    if not math.isfinite(value):
        return row.status if row.status != 'complete' else None
    return format_number(value)


def _mark_doubts(row: ReportRow, text: str | None) -> str | None:
    """Puts the mark of doubtful runs before a number that follows from their throughput."""
    mark = doubt_mark(row.results) if row.is_shown and text != UNKNOWN else ''
    return format_known('{}{}', mark, text)


def _time_to_goal(row: ReportRow) -> str | None:
    goals = [goal for run in row.benchmark_results if (goal := accuracy_goal(run))]
    reached = [goal.seconds for goal in goals if goal.top_1 >= goal.target]
    if not goals:
        return None
    of_runs = f'top-1 {goals[0].target:g}, {len(reached)} of {plural(len(row.results), "run")}'
    return (
        f'{format_number(mean(reached))} s ({of_runs})' if reached else f'not reached ({of_runs})'
    )


_RATES: tuple[Column[ReportRow], ...] = (
    Column(
        'images/sec',
        lambda row: row.rate_text if row.is_shown else _format_metric(row, row.rate),
        is_number=True,
        is_optional=True,
    ),
    Column(
        '±',
        lambda row: format_percent(row.estimate.plus_minus) if row.estimate else None,
        is_number=True,
        is_optional=True,
    ),
)
_METRICS: tuple[Column[ReportRow], ...] = (
    Column('verdict', lambda row: row.verdict, is_optional=True),
    Column(
        'published images/sec',
        lambda row: format_known('{:g}', row.source_file.published),
        is_number=True,
        is_optional=True,
    ),
    Column(
        'published speed-up',
        lambda row: format_known('{:g}', row.published_speed_up),
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
        lambda row: _mark_doubts(
            row, format_percent(mean(run.compute.share_of_peak for run in row.benchmark_results), 3)
        ),
        is_number=True,
        is_optional=True,
    ),
    Column(
        'J per image',
        lambda row: _mark_doubts(row, format_number(joules_per_image(row.benchmark_results))),
        is_number=True,
        is_optional=True,
    ),
    Column('time to accuracy', _time_to_goal, is_number=True, is_optional=True),
)


def _warning_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Returns (code, text, runs) of each warning; runs names settings and their throughputs."""
    kinds = group_warnings(
        ((row, run), run.warnings) for row in summary.rows for run in row.results
    )
    warning_rows = []
    for warning, runs, is_equal in kinds:
        rates: dict[tuple[str, str], list[str]] = {}
        for row, run in runs:
            rates.setdefault((row.label, row.unit), []).append(
                row.format_rate(run.images_per_second)
            )
        names = [f'{label} ({abbreviate(texts)} {unit})' for (label, unit), texts in rates.items()]
        count = f'{len(runs)} of {plural(len(summary.runs), "run")}'
        numbers = '' if is_equal else ', these numbers in the first'
        warning_rows.append((warning.code, warning.text, f'{count}{numbers}: {abbreviate(names)}'))
    return warning_rows


def _machines(summary: Summary) -> list[tuple[str, str | None, str]]:
    """Returns (name, colour in the plots, description) of each machine; of each machine of each
    folder, if colours show the folders.
    """
    has_colors = summary.color_column == FOLDER
    machines: dict[tuple[str, str], tuple[str, str | None, str]] = {}
    for row in summary.rows:
        folder = row.properties[FOLDER] if has_colors else ''
        for run in row.results:
            name = ': '.join(filter(None, (folder, run.machine['hostname'])))
            color = row_color(summary, row) if has_colors else None
            description = '; '.join([*format_machine(run.machine), *format_limits(run.machine)])
            key = folder, run.machine['fingerprint']
            machines.setdefault(key, (name, color, description))
    return [*machines.values()]


def _command(row: ReportRow) -> str:
    """Returns the command line of one run: each flag once, with the value that was used."""
    run = row.results[0]
    if isinstance(run, CommandResult):
        return run.flags['command']
    flag_texts = run.command.given_flags
    return shlex.join(
        [
            'tf_cnn_benchmarks',
            *(text for name, text in flag_texts.items() if name not in ('repeat', 'result_file')),
        ]
    )
