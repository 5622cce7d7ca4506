"""Renders results as one self-contained HTML page. Needs the extra `report`."""

import base64
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tf_cnn.compare.changes import work_notes
from tf_cnn.compare.measured import joules_per_image, mean
from tf_cnn.compare.report_folders import (
    UNKNOWN,
    compare_folders,
    price_of_a_million,
    prices_per_hour,
)
from tf_cnn.compare.report_hosts import describe_hosts
from tf_cnn.compare.report_plots import Plot, make_plots, row_color
from tf_cnn.compare.report_rows import (
    FOLDER,
    MODE,
    SHAPE,
    ReportRow,
    Summary,
    describe_fastest,
    format_percent,
    format_properties,
    short_names,
    summarize_collection,
)
from tf_cnn.managers.modes import MODES
from tf_cnn.results.advice import doubt_mark, format_doubtful, group_warnings, noise_warnings
from tf_cnn.results.collection import Collection
from tf_cnn.results.summary import accuracy_goal, format_limits, format_machine
from tf_cnn.results.tables import (
    Column,
    Table,
    abbreviate,
    escape_unprintable,
    format_known,
    format_number,
)
from tf_cnn.system.errors import UsageError, plural

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
    folders = list(dict.fromkeys(row.source_file.folder for row in summary.rows))
    prices, names = prices_per_hour(price_per_hour, folders), short_names(folders)
    comparison = compare_folders(collection)
    different_work = work_notes(comparison.rows) if comparison else []
    is_compared = comparison is not None and comparison.pairs and not different_work
    if collection.commands and not is_compared:
        raise UsageError(
            f'{collection.commands[0].source}: report shows runs of other programs only beside '
            'comparable runs; name the folders of both sides, such as out/results/a out/results/b'
        )
    host_answers, host_plots = describe_hosts(summary)
    answers = [*host_answers, *describe_fastest(summary)][:_MAX_ANSWERS]
    if comparison and is_compared:
        answers = [*host_answers, comparison.answer]
    plots, works_without_plot = make_plots(summary)
    plots = [*host_plots, *plots]
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
    # A long name may break after an underscore.
    environment.filters['breakable'] = lambda text: escape(escape_unprintable(text)).replace(
        '_', Markup('_<wbr>')
    )
    html = environment.get_template('report.html.jinja').render(
        title=title or (f'Images per second: {abbreviate(models)}' if models else 'Commands'),
        facts=_subtitle(summary, now, len(collection.commands)),
        answers=answers,
        noise_warnings=noise_warnings(summary.runs),
        folders=comparison if is_compared else None,
        different_work=different_work,
        problems=summary.problems,
        published_in=list(
            dict.fromkeys(
                row.source_file.published_in for row in summary.rows if row.source_file.published
            )
        ),
        table=_settings_table(summary, prices),
        usual=summary.usual_properties,
        prices=[(names[folder], format_number(price)) for folder, price in prices.items()],
        words=_words(summary),
        plots=[(plot, base64.b64encode(plot.image()).decode()) for plot in plots],
        works_without_plot=works_without_plot,
        ended=[(row.status, row.reason, row.label) for row in summary.rows if row.reason],
        warnings=_warning_rows(summary),
        machines=_machines(summary),
        commands=_commands(summary),
        css=Markup((_TEMPLATES / 'report.css').read_text(encoding='utf-8')),
    )
    return Page(html, plots, answers)


def _subtitle(summary: Summary, now: datetime, num_commands: int) -> str:
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
    if num_commands:
        phrases.append(f'{plural(num_commands, "run")} of other programs')
    return f'{", ".join(phrases)}. Page made {now:%Y-%m-%d %H:%M} UTC.'


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
    is_numbered = any(row.label.startswith('#') for row in summary.rows)
    columns = [
        *([Column('#', lambda row: row.number, is_number=True)] if is_numbered else []),
        Column('setting', lambda row: format_properties(row.properties, row.name_columns)),
        *_RATES,
        _number_column(
            'speed-up',
            # Each folder has a baseline, and their 1.00 would seem to compare the folders.
            lambda row: (
                None
                if compares_folders and row.is_baseline
                else _format_metric(row, row.speed_up or math.nan)
            ),
        ),
        *_METRICS,
        _number_column(
            'price of 10^6 images',
            lambda row: _mark_doubts(
                row, price_of_a_million(row, prices.get(row.source_file.folder))
            ),
            wraps=True,
        ),
        Column(
            'other differences',
            lambda row: '; '.join(map(' '.join, summary.other_properties(row).items())) or None,
            wraps=True,
            is_optional=True,
        ),
    ]
    return Table(columns, summary.rows, unknown=UNKNOWN)


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
    goals = [goal for run in row.results if (goal := accuracy_goal(run))]
    reached = [goal.seconds for goal in goals if goal.top_1 >= goal.target]
    if not goals:
        return None
    of_runs = f'top-1 {goals[0].target:g}, {len(reached)} of {plural(len(row.results), "run")}'
    return (
        f'{format_number(mean(reached))} s ({of_runs})' if reached else f'not reached ({of_runs})'
    )


def _number_column(
    title: str, value: Callable[[ReportRow], object], wraps: bool = False
) -> Column[ReportRow]:
    return Column(title, value, is_number=True, wraps=wraps, is_optional=True)


_RATES = (
    _number_column('images/sec', lambda row: _mark_doubts(row, _format_metric(row, row.rate))),
    _number_column(
        '±', lambda row: format_percent(row.estimate.plus_minus) if row.estimate else None
    ),
)
_METRICS = (
    Column[ReportRow]('verdict', lambda row: row.verdict, wraps=True, is_optional=True),
    _number_column(
        'published images/sec', lambda row: format_known('{:g}', row.source_file.published)
    ),
    _number_column('published speed-up', lambda row: format_known('{:g}', row.published_speed_up)),
    _number_column('runs', lambda row: len(row.results)),
    Column[ReportRow](
        'doubtful runs',
        lambda row: format_doubtful(row.results) or None,
        wraps=True,
        is_optional=True,
    ),
    _number_column(
        'of peak',
        lambda row: _mark_doubts(
            row, format_percent(mean(run.compute.share_of_peak for run in row.results), 3)
        ),
    ),
    _number_column(
        'J per image',
        lambda row: _mark_doubts(row, format_number(joules_per_image(row.results))),
    ),
    _number_column('time to accuracy', _time_to_goal, wraps=True),
)


def _warning_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Returns (code, text, runs) of each warning; runs names settings and their throughputs."""
    kinds = group_warnings(
        ((row, run), run.warnings) for row in summary.rows for run in row.results
    )
    warning_rows = []
    for warning, runs, is_equal in kinds:
        rates: dict[str, list[str]] = {}
        for row, run in runs:
            rates.setdefault(row.label, []).append(format_number(run.images_per_second))
        names = [f'{label} ({abbreviate(texts)} images/sec)' for label, texts in rates.items()]
        count = f'{len(runs)} of {plural(len(summary.runs), "run")}'
        numbers = '' if is_equal else ', these numbers in the first'
        warning_rows.append((warning.code, warning.text, f'{count}{numbers}: {abbreviate(names)}'))
    return warning_rows


def _machines(summary: Summary) -> Mapping[tuple[str | None, str], Sequence[str]]:
    """Returns the names of machines by (colour in the plots, description).

    The colour is None unless colours show the folders.
    """
    has_colors = summary.color_column == FOLDER
    machines: dict[tuple[str | None, str], list[str]] = {}
    for row in summary.rows:
        folder = row.properties[FOLDER] if has_colors else ''
        color = row_color(summary, row) if has_colors else None
        for run in row.results:
            # A machine may have a folder with its own name.
            name = ': '.join(dict.fromkeys(filter(None, (folder, run.machine['hostname']))))
            description = '; '.join([*format_machine(run.machine), *format_limits(run.machine)])
            names = machines.setdefault((color, description), [])
            if name not in names:
                names.append(name)
    return machines


def _commands(summary: Summary) -> Mapping[str, Sequence[str]]:
    """Returns the labels of settings by command line: each flag once, with the value that was
    used.
    """
    labels: dict[str, list[str]] = {}
    for row in summary.rows:
        if row.results:
            flags = row.results[0].command.given_flags.items()
            texts = [text for name, text in flags if name not in ('repeat', 'result_file')]
            command = shlex.join(['tf_cnn_benchmarks', *texts])
            labels.setdefault(command, []).append(row.label)
    return labels
