"""Draws the plots of the report: throughputs, scaling, published numbers, step times.

Needs the extra `report`. Each plot is drawn once, at a width that is readable on a phone; the page
scales it up on larger screens. A plot without enough data is omitted.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tf_cnn.compare.report_rows import (
    MODE,
    SHAPE,
    ReportRow,
    Summary,
    format_percent,
    name_settings,
)
from tf_cnn.results.advice import doubtful_codes, doubtful_note, format_times
from tf_cnn.results.document import WALL_TIME, AnyResult, Result
from tf_cnn.results.tables import abbreviate, escape_unprintable, format_number
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
    # Text stays text, and the same results give the same bytes.
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
_MAX_FACETS = 4
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
        return self._draw(format='svg', metadata={'Date': None}, transparent=True)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields (file name, content) of NAME.svg and NAME.png."""
        for kind in ('svg', 'png'):
            yield f'{self.name}.{kind}', self._draw(format=kind)

    def _draw(self, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with _style():
            self.figure.savefig(buffer, **options)
        return buffer.getvalue()


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Replaces the user's matplotlib settings by the page's style while the block lasts."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def make_plots(summary: Summary) -> list[Plot]:
    with _style():
        return [
            plot
            for plot in (
                *_rates_plots(summary),
                _scaling_plot(summary),
                _published_plot(summary),
                _steps_plot(summary),
            )
            if plot
        ]


def _rates_plots(summary: Summary) -> Iterator[Plot | None]:
    """Draws the rows of each work that has several; all rows together if no work has."""
    # Wall times are in the table only.
    shown = [row for row in summary.shown if row.unit != WALL_TIME]
    works = [rows for rows in summary.works if len(rows) > 1 and rows[0].unit != WALL_TIME]
    if not works:
        yield _rates_plot(summary, shown, 'rates', '')
    for number, rows in enumerate(works[:_MAX_FACETS], start=1):
        name = 'rates' if number == 1 else f'rates-{number}'
        is_named = len(summary.works) > 1 and 'model' in rows[0].properties
        model = f' of {rows[0].properties["model"]}' if is_named else ''
        yield _rates_plot(summary, rows, name, model)


def _rates_plot(
    summary: Summary, shown_rows: Sequence[ReportRow], name: str, model: str
) -> Plot | None:
    """Draws images/sec of the fastest settings, the fastest on top: a bar with its interval, or a
    dot for a single run.
    """
    rows = _fastest(shown_rows)
    if len(rows) < 2:
        return None
    figure, axes = _lines_figure(rows, [format_number(row.rate) for row in rows])
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
    unit = rows[0].unit
    axes.set_xlabel(unit)
    bars = (
        'Longer is faster. The line at the end of a bar is the 95 % interval of three or more '
        f'runs{_BEYOND}. '
        if repeated
        else 'Farther to the right is faster. '
    )
    return Plot(
        name,
        f'Images per second{model}' if unit == Result.unit else 'Rates',
        f'{bars}{_dots_help([run for row in rows for run in row.results])}',
        f'From {rows[-1].label} with {format_number(rows[-1].rate)} {unit} to '
        f'{rows[0].label} with {format_number(rows[0].rate)}{_doubts(rows)}.'
        f'{_omission_note(rows, shown_rows)}',
        figure,
    )


def _scaling_plot(summary: Summary) -> Plot | None:
    """Draws images/sec over the number of devices: a line per setting, and an ideal line."""
    series_by_work = _find_scaling_series(summary)
    if not series_by_work:
        return None
    names = list(dict.fromkeys(name for series in series_by_work.values() for name in series))
    figure, all_axes = _make_axes(
        [*series_by_work] if len(series_by_work) > 1 else [''], 290, legend_lines=len(names)
    )
    lines: dict[str, Any] = {}
    for axes, series in zip(all_axes, series_by_work.values(), strict=True):
        rows = [row for setting_rows in series.values() for row in setting_rows]
        counts = sorted({row.num_devices for row in rows})
        ideal: list[float] = []
        for name, setting_rows in series.items():
            color, index = row_color(summary, setting_rows[0]), names.index(name)
            line_style: dict[str, Any] = {'color': color, 'marker': _MARKERS[index % len(_MARKERS)]}
            device_counts = [row.num_devices for row in setting_rows]
            axes.errorbar(
                device_counts,
                [row.rate for row in setting_rows],
                _error_bars(setting_rows),
                linestyle='',
                elinewidth=1,
                **line_style,
            )
            best = {
                count: max(row.rate for row in setting_rows if row.num_devices == count)
                for count in sorted(device_counts)
            }
            lines[name] = axes.plot(
                [*best], [*best.values()], linestyle=_LINES[index % len(_LINES)], **line_style
            )[0]
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
            *(row.rate for row in rows),
            *(run.images_per_second for row in rows for run in _runs_as_dots(row)),
        ]
        low, high = min(rates) / _MARGIN, max(*rates, *ideal) * _MARGIN
        axes.set_ylim(low, high)
        for row in rows:
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
    all_axes[-1].set_xlabel('devices (W*G)')
    figure.legend([*lines.values()], [*lines], loc='outside lower left', borderaxespad=0)
    first = next(iter(series_by_work.values()))
    largest = max(
        (row for setting_rows in first.values() for row in setting_rows),
        key=lambda row: (row.num_devices, row.rate),
    )
    (setting_rows,) = (rows for rows in first.values() if largest in rows)
    smallest = min(setting_rows, key=lambda row: (row.num_devices, -row.rate))
    times = largest.rate / smallest.rate
    return Plot(
        'scaling',
        'Scaling with devices',
        'On a dashed line, each device is as fast as with the fewest devices of that setting. '
        'Both axes double from grid line to grid line. A line through a point is its 95 % '
        f'interval{_BEYOND}. '
        f'{_dots_help([run for row in summary.shown for run in _runs_as_dots(row)])}',
        f'On {largest.num_devices} devices {largest.label} reaches {format_number(times)} '
        f'times the rate of {smallest.label}, '
        f'{format_percent(times * smallest.num_devices / largest.num_devices)} of ideal'
        f'{_doubts([largest, smallest])}.',
        figure,
    )


def _published_plot(summary: Summary) -> Plot | None:
    """Draws measured over published speed-ups: a point for each row that has both."""
    rows = [row for row in summary.shown if row.published_speed_up and row.speed_up]
    if len(rows) < 2:
        return None
    figure, (axes,) = _make_axes(
        [''], 290, legend_lines=len({row.properties[MODE] for row in rows})
    )
    ours = np.array([row.speed_up for row in rows], dtype=np.float64)
    theirs = np.array([row.published_speed_up for row in rows], dtype=np.float64)
    ends = [min(ours.min(), theirs.min()) / _MARGIN, max(ours.max(), theirs.max()) * _MARGIN]
    axes.plot(ends, ends, color=SOFT, linewidth=1, linestyle='--')
    axes.text(ends[1], ends[1], 'equal  ', ha='right', va='bottom', color=SOFT)
    for number_of_mode, mode in enumerate(dict.fromkeys(row.properties[MODE] for row in rows)):
        is_of_mode = np.array([row.properties[MODE] == mode for row in rows])
        marker_style: dict[str, Any] = {
            'color': SERIES[number_of_mode % len(SERIES)],
            'linestyle': '',
            'label': mode,
        }
        axes.plot(
            theirs[is_of_mode],
            ours[is_of_mode],
            marker=_MARKERS[number_of_mode % len(_MARKERS)],
            **marker_style,
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
    seconds_by_label = {
        row.label: np.concatenate([run.step_seconds() for run in row.results])
        for row in summary.shown
    }
    with_steps = [
        row for row in summary.shown if seconds_by_label[row.label].size > len(row.results)
    ]
    rows = _fastest(with_steps)
    if not rows:
        return None
    medians = [float(np.median(seconds_by_label[row.label])) for row in rows]
    shares = [
        100 * seconds_by_label[row.label] / median
        for row, median in zip(rows, medians, strict=True)
    ]
    figure, axes = _lines_figure(
        rows, [f'{text} {unit}' for (text,), unit in map(format_times, medians)]
    )
    boxes = axes.boxplot(
        shares,
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
    spans = [float(np.subtract(*np.percentile(values, _WHISKERS[::-1]))) / 100 for values in shares]
    unsteady = int(np.argmax(spans))
    largest = [float(values.max()) / 100 for values in shares]
    slowest = int(np.argmax(largest))
    return Plot(
        'steps',
        'Step times',
        'A narrow box is a steady setting. The stroke is the median; the right side shows its '
        'time. Half of all timed steps lie in the box, 90 % on the line.',
        f'The longest line spans {format_percent(spans[unsteady])} of the median, for '
        f'{rows[unsteady].label}; the slowest step took {format_number(largest[slowest])} times '
        f'the median of {rows[slowest].label}.{_omission_note(rows, with_steps)}',
        figure,
    )


def _fastest(rows: Sequence[ReportRow]) -> list[ReportRow]:
    return sorted(rows, key=lambda row: -row.rate)[:_MAX_ROWS]


def _doubts(rows: Sequence[ReportRow]) -> str:
    return doubtful_note([run for row in rows for run in row.results])


def _omission_note(shown_rows: Sequence[ReportRow], rows: Sequence[ReportRow]) -> str:
    return (
        ''
        if len(shown_rows) == len(rows)
        else f' Shown are the {len(shown_rows)} fastest of {len(rows)} settings.'
    )


def row_color(summary: Summary, row: ReportRow) -> str:
    column = summary.color_column
    return SERIES[summary.values(column).index(row.properties[column]) % len(SERIES)]


def _error_bars(rows: Sequence[ReportRow]) -> NDArray[np.float64]:
    """Returns how far the intervals reach below and above the throughputs, [2, num_rows].

    nan for a row without an interval.
    """
    ends = np.array([row.interval or (np.nan, np.nan) for row in rows], dtype=np.float64)
    return np.abs(ends - np.array([[row.rate] for row in rows])).T


def _runs_as_dots(row: ReportRow) -> list[AnyResult]:
    """Returns the runs to draw as dots; none if the row has a single run."""
    return [run for run in row.results if run.images_per_second > 0] if len(row.results) > 1 else []


def _dot_style(run: AnyResult, color: str) -> dict[str, Any]:
    return {**_DOT, 'color': color, 'markerfacecolor': 'white' if doubtful_codes(run) else color}


def _dots_help(runs: Sequence[AnyResult]) -> str:
    hollow = ', hollow if it was disturbed or too short' if any(map(doubtful_codes, runs)) else ''
    return f'A dot is a single run{hollow}.' if runs else ''


def _lines_figure(rows: Sequence[ReportRow], ends: Sequence[str]) -> tuple[Figure, Axes]:
    """Makes a figure with a horizontal line for each row, the first on top; row i is at y = i.

    Above each line, the row's label is at the left and its text of `ends` at the right.
    """
    figure, (axes,) = _make_axes([''], 38 * len(rows) + 8)
    axes.set_ylim(len(rows) - 0.65, -0.8)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter('{x:,g}')
    axes.grid(axis='x')
    axes.spines['bottom'].set_visible(False)
    text_style: dict[str, Any] = {'va': 'bottom', 'transform': axes.get_yaxis_transform()}
    for position, (row, end) in enumerate(zip(rows, ends, strict=True)):
        axes.text(0, position - 0.28, row.label, **text_style)
        axes.text(1, position - 0.28, end, ha='right', **text_style)
    return figure, axes


def _make_axes(
    titles: Sequence[str], height: float, legend_lines: int = 0
) -> tuple[Figure, list[Axes]]:
    """Makes a figure with axes below each other, one for each title, and room for a legend.

    height is the height of the axes in CSS pixels.
    """
    size = (WIDTH / _DPI, (height * len(titles) + 40 + 20 * legend_lines) / _DPI)
    figure = Figure(figsize=size, layout='constrained')
    all_axes = list(figure.subplots(len(titles), squeeze=False)[:, 0])
    for axes, title in zip(all_axes, titles, strict=True):
        # Otherwise a long title would shrink the axes.
        axes.set_title(title).set_in_layout(False)
    return figure, all_axes


def _find_scaling_series(summary: Summary) -> dict[str, dict[str, list[ReportRow]]]:
    """Returns the rows to draw as lines, by work and setting name.

    A line has the rows of one setting on different numbers of devices.
    """
    columns = [name for name in summary.columns if name != SHAPE]
    works: dict[str, dict[tuple[str, ...], list[ReportRow]]] = {}
    for row in summary.shown:
        setting = tuple(row.properties.get(name, '') for name in columns)
        # Model, data set, image size and role.
        work = escape_unprintable(', '.join(map(str, row.results[0].workload.values())))
        works.setdefault(work, {}).setdefault(setting, []).append(row)
    facets: dict[str, dict[str, list[ReportRow]]] = {}
    for work, series in works.items():
        lines = [rows for rows in series.values() if len({row.num_devices for row in rows}) > 1]
        fastest = sorted(lines, key=lambda rows: -max(row.rate for row in rows))[:_MAX_SERIES]
        if fastest and len(facets) < _MAX_FACETS:
            facets[work] = dict(
                zip(
                    name_settings([rows[0].properties for rows in fastest], columns),
                    fastest,
                    strict=True,
                )
            )
    return facets


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
