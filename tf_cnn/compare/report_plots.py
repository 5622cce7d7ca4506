"""Draws the plots of the report: throughputs, scaling, published numbers, step times.

Needs the extra `report`. Each plot is drawn once, at a width that is readable on a phone; the page
scales it up on larger screens. Each work has its plots; one without enough data is omitted.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tf_cnn.compare.report_rows import MODE, SHAPE, ReportRow, Summary, format_percent
from tf_cnn.results.advice import doubtful_codes, doubtful_note, format_times
from tf_cnn.results.document import Result
from tf_cnn.results.tables import abbreviate, format_number
from tf_cnn.system.errors import format_flag

# Each colour's contrast with white is at least 4.5; neighbours also differ in lightness.
INK, SOFT = '#191c20', '#555d66'
SERIES = ('#1f5fa8', '#c2570c', '#0b7a6f', '#8a3f9e', '#8c6d0a', '#4d5b8c', '#b02a63', '#5d6b2f')
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', 'p')
_LINES = ('-', '--', ':', '-.')

# In CSS pixels, 72 to an inch. At this width, text is readable on a phone 360 pixels wide.
WIDTH, _DPI = 400, 72
_STYLE: dict[Any, Any] = {
    'axes.axisbelow': True,
    **{f'axes.spines.{side}': False for side in ('left', 'right', 'top')},
    'axes.titlelocation': 'left',
    'axes.titlesize': 'medium',
    'figure.dpi': _DPI,
    'font.sans-serif': ['DejaVu Sans', 'Verdana', 'Arial'],
    'font.size': 12,
    'grid.color': '#dfe3e8',
    'legend.frameon': False,
    'lines.markersize': 5,
    'savefig.dpi': 216,
    # Text stays text, and names in the file do not change from run to run.
    'svg.fonttype': 'none',
    'svg.hashsalt': 'report',
    'text.color': INK,
    # Names of hosts and values of flags may contain dollar signs.
    'text.parse_math': False,
    **{f'{axis}tick.major.size': 0 for axis in 'xy'},
}

# More do not fit on a readable page; the table has all.
_MAX_ROWS = 12
_MAX_SERIES = 8
# Longer labels are smaller, to fit.
_FULL_SIZE_LENGTH = 46
# The axes extend beyond the fastest and the slowest throughput by this factor; longer intervals are
# cut at the edge.
_MARGIN = 1.25
# The markers of a single run, and of an interval that is cut at the edge.
_DOT: dict[str, Any] = {'marker': 'o', 'markersize': 4, 'linestyle': '', 'zorder': 4}
_ARROW: dict[str, Any] = {'linestyle': '', 'clip_on': False, 'zorder': 4}
_BEYOND = ' (an arrow marks an interval cut at the edge)'
# The percentiles at the ends of a box plot's line.
_WHISKERS = (5, 95)


@dataclass(frozen=True)
class Plot:
    """A plot of the page.

    Attributes:
      title: its heading.
      help: how to read it.
      finding: its main numbers, as a sentence.
    """

    name: str
    title: str
    help: str
    finding: str
    figure: Figure

    def image(self) -> bytes:
        return self._draw('svg', transparent=True)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields (file name, content) of NAME.svg and NAME.png."""
        for kind in ('svg', 'png'):
            yield f'{self.name}.{kind}', self._draw(kind)

    def _draw(self, kind: str, transparent: bool = False) -> bytes:
        buffer = io.BytesIO()
        # The same results give the same bytes.
        metadata = {'Date': None} if kind == 'svg' else None
        with plot_style():
            self.figure.savefig(buffer, format=kind, metadata=metadata, transparent=transparent)
        return buffer.getvalue()


@contextlib.contextmanager
def plot_style() -> Iterator[None]:
    """Replaces the user's matplotlib settings by the page's style while the block lasts."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def make_plots(summary: Summary) -> tuple[list[Plot], list[str]]:
    """Returns the plots, and the names of the works that none of the plots of rates shows.

    Each work with several settings has a plot of rates. If there is none, the only settings of all
    works share one.
    """
    works = [*zip(summary.works, summary.work_names, strict=True)]
    groups = [work for work in works if len(work[0]) > 1]
    omitted = [work for work in works if len(work[0]) == 1]
    if not groups and len(works) > 1:
        groups = [([row for rows, _ in works for row in rows], '')]
        omitted = sorted(omitted, key=lambda work: -work[0][0].rate)[_MAX_ROWS:]
    with plot_style():
        plots = [
            *(_rates_plot(summary, *group, number) for number, group in enumerate(groups, 1)),
            *_scaling_plots(summary, works),
            _published_plot(summary),
            _steps_plot(summary),
        ]
    return [plot for plot in plots if plot], [name for _, name in omitted if groups]


def _rates_plot(
    summary: Summary, shown_rows: Sequence[ReportRow], work_name: str, number: int
) -> Plot:
    """Draws images/sec of the fastest settings, the fastest on top: a bar with its interval, or a
    dot for a single run.
    """
    rows = sorted(shown_rows, key=lambda row: -row.rate)[:_MAX_ROWS]
    labels = summary.name_rows(rows)
    figure, axes = _lines_figure(labels, [format_number(row.rate) for row in rows])
    colors = [row_color(summary, row) for row in rows]
    repeated = [position for position, row in enumerate(rows) if len(row.runs) > 1]
    error_bar_style: dict[str, Any] = {'ecolor': INK, 'capsize': 3}
    axes.barh(
        repeated,
        [rows[position].rate for position in repeated],
        0.42,
        color=[colors[position] for position in repeated],
        xerr=_error_bars([rows[position] for position in repeated]),
        error_kw=error_bar_style,
    )
    highest = max(row.interval[1] if row.interval else row.rate for row in rows)
    fastest = max([rows[0].rate, *(run.images_per_second for row in rows for run in row.results)])
    edge = min(max(highest, fastest) * 1.02, fastest * _MARGIN)
    axes.set_xlim(0, edge)
    for position, row in enumerate(rows):
        color = INK if position in repeated else colors[position]
        for run in row.results:
            if run.images_per_second > 0:
                axes.plot(run.images_per_second, position, **_dot_style(run, color))
        if row.interval and row.interval[1] > edge:
            axes.plot(edge, position, marker='>', color=INK, **_ARROW)
    axes.set_xlabel('images/sec')
    bars = (
        'Longer is faster. The line at the end of a bar is the 95 % interval of three or more '
        f'runs{_BEYOND}. '
        if repeated
        else 'Farther to the right is faster. '
    )
    return Plot(
        'rates' if number == 1 else f'rates-{number}',
        f'Images per second{work_name and f" of {work_name}"}',
        f'{bars}{_dots_help([run for row in rows for run in row.results])}',
        f'From {labels[-1]} with {format_number(rows[-1].rate)} images/sec to '
        f'{labels[0]} with {format_number(rows[0].rate)}{_doubts(rows)}.'
        f'{_omission_note("fastest", rows, shown_rows)}',
        figure,
    )


def _scaling_plots(
    summary: Summary, works: Iterable[tuple[Sequence[ReportRow], str]]
) -> Iterator[Plot]:
    lines_of_works = [(_find_lines(summary, rows), name) for rows, name in works]
    with_lines = [work for work in lines_of_works if work[0]]
    for number, (lines, name) in enumerate(with_lines, start=1):
        yield _scaling_plot(summary, lines, name, number)


def _scaling_plot(
    summary: Summary, all_lines: Sequence[Sequence[ReportRow]], work_name: str, number: int
) -> Plot:
    """Draws images/sec over the number of devices: a line per setting, and an ideal line."""
    lines = all_lines[:_MAX_SERIES]
    names = summary.name_rows(
        [rows[0] for rows in lines], [name for name in summary.columns if name != SHAPE]
    )
    figure, axes = _make_axes(290, legend_lines=len(lines))
    all_rows = [row for rows in lines for row in rows]
    counts = sorted({row.num_devices for row in all_rows})
    ideal: list[float] = []
    for index, (name, rows) in enumerate(zip(names, lines, strict=True)):
        line_style: dict[str, Any] = {
            'color': row_color(summary, rows[0]),
            'marker': _MARKERS[index % len(_MARKERS)],
        }
        device_counts = [row.num_devices for row in rows]
        axes.errorbar(
            device_counts,
            [row.rate for row in rows],
            _error_bars(rows),
            linestyle='',
            elinewidth=1,
            **line_style,
        )
        best = {
            count: max(row.rate for row in rows if row.num_devices == count)
            for count in sorted(device_counts)
        }
        axes.plot(
            [*best],
            [*best.values()],
            linestyle=_LINES[index % len(_LINES)],
            label=name,
            **line_style,
        )
        fewest_devices = min(best)
        ideal.append(best[fewest_devices] / fewest_devices * counts[-1])
        axes.plot(
            [fewest_devices, counts[-1]],
            [best[fewest_devices], ideal[-1]],
            color=SOFT,
            linewidth=1,
            linestyle='--',
        )
    axes.text(counts[-1], max(ideal), 'ideal  ', ha='right', va='bottom', color=SOFT)
    axes.set_xscale('log', base=2)
    axes.set_yscale('log', base=2)
    axes.set_xticks(counts)
    rates = [
        *(row.rate for row in all_rows),
        *(run.images_per_second for row in all_rows for run in _runs_as_dots(row)),
    ]
    low, high = min(rates) / _MARGIN, max(*rates, *ideal) * _MARGIN
    axes.set_ylim(low, high)
    for row in all_rows:
        color = row_color(summary, row)
        for run in _runs_as_dots(row):
            axes.plot(row.num_devices, run.images_per_second, **_dot_style(run, color))
        if row.interval and row.interval[0] < low:
            axes.plot(row.num_devices, low, marker='v', color=color, **_ARROW)
        if row.interval and row.interval[1] > high:
            axes.plot(row.num_devices, high, marker='^', color=color, **_ARROW)
    axes.xaxis.set_major_formatter('{x:,g}')
    axes.yaxis.set_major_formatter('{x:,g}')
    axes.grid()
    axes.set_ylabel('images/sec')
    axes.set_xlabel('devices (W*G)')
    figure.legend(loc='outside lower left', borderaxespad=0)
    largest = max(all_rows, key=lambda row: (row.num_devices, row.rate))
    ((name, rows),) = (
        (name, rows) for name, rows in zip(names, lines, strict=True) if largest in rows
    )
    smallest = min(rows, key=lambda row: (row.num_devices, -row.rate))
    times = largest.rate / smallest.rate
    return Plot(
        'scaling' if number == 1 else f'scaling-{number}',
        f'Scaling with devices{work_name and f" of {work_name}"}',
        'On a dashed line, each device is as fast as with the fewest devices of that setting. '
        'Both axes double from grid line to grid line. A line through a point is its 95 % '
        f'interval{_BEYOND}. {_dots_help([run for row in all_rows for run in _runs_as_dots(row)])}',
        f'{name} with {largest.properties[SHAPE]} reaches {format_number(times)} times its rate '
        f'with {smallest.properties[SHAPE]}, '
        f'{format_percent(times * smallest.num_devices / largest.num_devices)} of ideal'
        f'{_doubts([largest, smallest])}.{_omission_note("fastest", lines, all_lines)}',
        figure,
    )


def _published_plot(summary: Summary) -> Plot | None:
    """Draws measured over published speed-ups: a point for each row that has both."""
    rows = [row for row in summary.shown if row.published_speed_up and row.speed_up]
    if len(rows) < 2:
        return None
    figure, axes = _make_axes(290, legend_lines=len({row.properties[MODE] for row in rows}))
    ours = np.array([row.speed_up for row in rows], dtype=np.float64)
    theirs = np.array([row.published_speed_up for row in rows], dtype=np.float64)
    ends = [min(ours.min(), theirs.min()) / _MARGIN, max(ours.max(), theirs.max()) * _MARGIN]
    axes.plot(ends, ends, color=SOFT, linewidth=1, linestyle='--')
    axes.text(ends[1], ends[1], 'equal  ', ha='right', va='bottom', color=SOFT)
    modes = list(dict.fromkeys(row.properties[MODE] for row in rows))
    for index, mode in enumerate(modes):
        of_mode = [row.properties[MODE] == mode for row in rows]
        axes.plot(
            theirs[of_mode],
            ours[of_mode],
            color=SERIES[index % len(SERIES)],
            linestyle='',
            label=mode,
            marker=_MARKERS[index % len(_MARKERS)],
        )
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale('log', base=2)
        axis.set_major_formatter('{x:,g}')
    axes.grid()
    axes.set_xlabel('published speed-up')
    axes.set_ylabel('speed-up here')
    figure.legend(loc='outside lower left', borderaxespad=0)
    farthest = int(np.argmax(np.abs(np.log(ours / theirs))))
    return Plot(
        'published',
        'Compared with published numbers',
        'Each point is a row of the table: its speed-up as published, and here. On the dashed '
        'line they are equal.',
        'The median of here over published is '
        f'{format_number(float(np.median(ours / theirs)))}; '
        f'{rows[farthest].label} differs most: {format_number(float(ours[farthest]))} here, '
        f'{format_number(float(theirs[farthest]))} published{_doubts(rows)}.',
        figure,
    )


def _steps_plot(summary: Summary) -> Plot | None:
    """Draws the step times of the least steady settings, the least steady on top."""
    steps = [
        (row, seconds)
        for row in summary.shown
        if (seconds := np.concatenate([run.step_seconds() for run in row.results])).size
        > len(row.results)
    ]
    if not steps:
        return None
    with_steps = [row for row, _ in steps]
    medians = [float(np.median(seconds)) for _, seconds in steps]
    shares = [100 * seconds / median for (_, seconds), median in zip(steps, medians, strict=True)]
    spans = [float(np.subtract(*np.percentile(values, _WHISKERS[::-1]))) / 100 for values in shares]
    indices = np.argsort(np.negative(spans), kind='stable')[:_MAX_ROWS]
    rows, names = [with_steps[index] for index in indices], summary.name_rows(with_steps)
    figure, axes = _lines_figure(
        [names[index] for index in indices],
        [f'{text} {unit}' for (text,), unit in (format_times(medians[index]) for index in indices)],
    )
    boxes = axes.boxplot(
        [shares[index] for index in indices],
        positions=range(len(rows)),
        orientation='horizontal',
        whis=_WHISKERS,
        widths=0.42,
        showfliers=False,
        manage_ticks=False,
        patch_artist=True,
        medianprops={'color': INK},
    )
    for box, row in zip(boxes['boxes'], rows, strict=True):
        box.set_facecolor(f'{row_color(summary, row)}66')
    axes.set_xlabel('step time in % of the median')
    largest = [float(values.max()) / 100 for values in shares]
    slowest = int(np.argmax(largest))
    return Plot(
        'steps',
        'Step times',
        'A narrow box is a steady setting. The stroke is the median; the right side shows its '
        'time. Half of all timed steps lie in the box, 90 % on the line.',
        f'The longest line spans {format_percent(spans[indices[0]])} of the median, for '
        f'{names[indices[0]]}; the slowest step took {format_number(largest[slowest])} times '
        f'the median of {names[slowest]}.{_omission_note("least steady", rows, with_steps)}',
        figure,
    )


def _doubts(rows: Sequence[ReportRow]) -> str:
    return doubtful_note([run for row in rows for run in row.results])


def _omission_note(which: str, drawn: Sequence[object], settings: Sequence[object]) -> str:
    if len(drawn) == len(settings):
        return ''
    return f' Shown are the {len(drawn)} {which} of {len(settings)} settings.'


def row_color(summary: Summary, row: ReportRow) -> str:
    column = summary.color_column
    return SERIES[summary.values(column).index(row.properties[column]) % len(SERIES)]


def _error_bars(rows: Sequence[ReportRow]) -> NDArray[np.float64]:
    """Returns how far the intervals reach below and above the throughputs, [2, num_rows].

    nan for a row without an interval.
    """
    ends = np.array([row.interval or (np.nan, np.nan) for row in rows], dtype=np.float64)
    return np.abs(ends - np.array([[row.rate] for row in rows])).T


def _runs_as_dots(row: ReportRow) -> list[Result]:
    """Returns the runs to draw as dots; none if the row has a single run."""
    return [run for run in row.results if run.images_per_second > 0] if len(row.results) > 1 else []


def _dot_style(run: Result, color: str) -> dict[str, Any]:
    return {**_DOT, 'color': color, 'markerfacecolor': 'white' if doubtful_codes(run) else color}


def _dots_help(runs: Sequence[Result]) -> str:
    hollow = ', hollow if it was disturbed or too short' if any(map(doubtful_codes, runs)) else ''
    return f'A dot is a single run{hollow}.' if runs else ''


def _lines_figure(labels: Sequence[str], ends: Sequence[str]) -> tuple[Figure, Axes]:
    """Makes a figure with a horizontal line for each label, the first on top; line i is at y = i.

    Above each line, its label is at the left and its text of `ends` at the right.
    """
    figure, axes = _make_axes(38 * len(labels) + 8)
    axes.set_ylim(len(labels) - 0.65, -0.8)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter('{x:,g}')
    axes.grid(axis='x')
    axes.spines['bottom'].set_visible(False)
    text_style: dict[str, Any] = {'va': 'bottom', 'transform': axes.get_yaxis_transform()}
    for position, (label, end) in enumerate(zip(labels, ends, strict=True)):
        size = mpl.rcParams['font.size'] * min(1, _FULL_SIZE_LENGTH / len(label))
        axes.text(0, position - 0.28, label, size=size, **text_style)
        axes.text(1, position - 0.28, end, ha='right', **text_style)
    return figure, axes


def _make_axes(height: float, legend_lines: int = 0) -> tuple[Figure, Axes]:
    """Makes a figure with axes of this height in CSS pixels, and room for a legend below them."""
    size = (WIDTH / _DPI, (height + 40 + 20 * legend_lines) / _DPI)
    figure = Figure(figsize=size, layout='constrained')
    return figure, figure.subplots()


def _find_lines(summary: Summary, rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    """Returns the rows of each setting with several numbers of devices, the fastest first."""
    columns = [name for name in summary.columns if name != SHAPE]
    settings: dict[tuple[str, ...], list[ReportRow]] = {}
    for row in rows:
        setting = tuple(row.properties.get(name, '') for name in columns)
        settings.setdefault(setting, []).append(row)
    lines = [rows for rows in settings.values() if len({row.num_devices for row in rows}) > 1]
    return sorted(lines, key=lambda rows: -max(row.rate for row in rows))


# matplotlib's warning about a character that its font lacks. SVG files are not affected: they
# contain the text, and the viewer has another font.
_MISSING_GLYPH = re.compile(r'Glyph (\d+) ')


def plot_warnings(messages: Sequence[str], folder: str | None) -> Iterator[str]:
    """Yields the warnings of matplotlib, in terms of the plots."""
    glyphs = [(_MISSING_GLYPH.match(message), message) for message in dict.fromkeys(messages)]
    letters = [chr(int(match[1])) for match, _ in glyphs if match]
    if letters and folder:
        yield (
            f'{format_flag("plots", folder)}: the font of the plots lacks {abbreviate(letters)}: '
            'the PNG files show a box instead; a browser shows it in the page and the SVG files'
        )
    yield from (f'a plot may look wrong: {message}' for match, message in glyphs if not match)
