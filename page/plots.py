"""The plots of the report, drawn by matplotlib as SVG. Needs the extra `report`.

Each plot is drawn once, at a width that can be read on a phone; the page scales it up on a desk. A plot is left out
where there is nothing to see.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from comparison.tables import Table, TableColumn
from errors import counted
from hardware.atomic import write_whole
from page.rows import MODE, SHAPE, ReportRow, Summary, names_of, number, percent
from results.document import CAUSES, Record, as_float
from results.statistics import OUTLIER_DEVIATIONS, outliers

# The contrast of each with white is at least 4.5; neighbours differ in lightness too.
INK, SOFT, BAD = '#191c20', '#555d66', '#b3261e'
SERIES = ('#1f5fa8', '#c2570c', '#0b7a6f', '#8a3f9e', '#8c6d0a', '#4d5b8c', '#b02a63', '#5d6b2f')
_RULE = '#dfe3e8'
# Most of the time should go into steps, so what does not stands out.
_STEP = '#b9c2cc'
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', 'p')
_LINES = ('-', '--', ':', '-.')

# A figure has 72 CSS pixels to an inch. This width leaves text readable on a phone 360 pixels wide.
WIDTH, _DPI = 400, 72
_STYLE: dict[Any, Any] = {
    'axes.axisbelow': True,
    'axes.edgecolor': SOFT,
    'axes.labelcolor': SOFT,
    **{f'axes.spines.{side}': False for side in ('left', 'right', 'top')},
    'axes.titlelocation': 'left',
    'axes.titlesize': 'medium',
    'figure.dpi': _DPI,
    'font.sans-serif': ['DejaVu Sans', 'Verdana', 'Arial'],
    'font.size': 12,
    'grid.color': _RULE,
    'legend.frameon': False,
    'lines.linewidth': 1.8,
    'lines.markersize': 5,
    # Of PNG files; SVG has no dots.
    'savefig.dpi': 216,
    # Text stays text, and the same results give the same bytes.
    'svg.fonttype': 'none',
    'svg.hashsalt': 'report',
    'text.color': INK,
    # Names of hosts and values of flags may contain dollar signs.
    'text.parse_math': False,
    **{f'{axis}tick.{name}': value for axis in 'xy' for name, value in (('color', SOFT), ('major.size', 0))},
}

_LEGEND_COLUMNS = 4
# More do not fit a page that people read; the table has all.
_MOST_ROWS = 50
_MOST_SERIES = 8
_MOST_FACETS = 4
_MOST_RUNS = 6
_MOST_POINTS = 300
# The axes follow the rates: an interval that reaches further beyond the fastest or the slowest ends at the edge.
_MARGIN = 1.25
_EXCHANGE_BYTES = 'exchange_bytes'
# Steps above this many times the median are drawn at the edge, or nothing could be seen of the others.
_HIGHEST = 4.0
_QUANTILES = (5, 25, 50, 75, 95, 99, 100)
_PHASES, _STAGES = ('import', 'join', 'build', 'initialise', 'warm_up'), ('step', 'input wait', *CAUSES)


@dataclass(frozen=True)
class Plot:
    """A plot of the page.

    Attributes:
      name: of its files and its anchor.
      title: its heading.
      help: how to read it.
      finding: its most important numbers, in a sentence or more.
      columns: the names of the columns of its numbers.
      rows: its numbers; the first cell of each row names what they are of.
      figure: the drawing.
    """

    name: str
    title: str
    help: str
    finding: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figure: Figure

    @property
    def numbers(self) -> Table:
        """Its numbers as a table."""
        return Table([TableColumn(name, is_number=name != self.columns[0]) for name in self.columns], self.rows)

    def image(self, kind: str = 'svg') -> bytes:
        """The file of the drawing: 'svg' or 'png'."""
        buffer = io.BytesIO()
        with mpl.rc_context(_STYLE):
            self.figure.savefig(buffer, format=kind, metadata={'Date': None})
        return buffer.getvalue()

    def save(self, folder: Path) -> None:
        """Writes NAME.svg and NAME.png into a folder.

        Raises:
          OSError: a file cannot be written.
        """
        for kind in ('svg', 'png'):
            write_whole(self.image(kind), folder / f'{self.name}.{kind}')


def make_plots(summary: Summary) -> list[Plot]:
    """The plots of results."""
    with mpl.rc_context(_STYLE):
        made = [plot(summary) for plot in (_rates, _scaling, _exchanges, _distribution, _timeline, _time)]
        return [plot for plot in made if plot]


def _rates(summary: Summary) -> Plot | None:
    """Images/sec of all settings as bars, the fastest on top, with their intervals."""
    rows, left_out = _fastest_first(summary.shown)
    if len(rows) < 2:
        return None
    best, last = rows[0], rows[-1]
    figure, axes = _lines_figure(rows, [number(row.rate) for row in rows])
    _bars(axes, [row.rate for row in rows], [_color(summary, row) for row in rows], xerr=_errors(rows))
    highest = max(row.interval[1] if row.interval else row.rate for row in rows)
    axes.set_xlim(0, min(highest * 1.02, best.rate * _MARGIN))
    axes.set_xlabel('images/sec')
    clipped = ' An interval without an end goes on beyond the plot.' if highest > best.rate * _MARGIN else ''
    return Plot(
        'rates',
        'Images per second',
        'Longer is faster. The line at the end of a bar is the 95 % interval of the rate of all repeats; for a single '
        f'run, by the spread of its steps, which says nothing about the next run.{clipped}',
        f'{best.label} leads with {number(best.rate)} images/sec, {number(best.rate / last.rate, 3)} times '
        f'{last.label} with {number(last.rate)}.{left_out}',
        ('setting', 'images/sec', '95 % from', 'to', 'runs'),
        [(row.label, *map(number, (row.rate, *(row.interval or (None, None)))), str(len(row.runs))) for row in rows],
        figure,
    )


def _scaling(summary: Summary) -> Plot | None:
    """Images/sec over the number of devices: a line for each setting without its shape, and the ideal line."""
    works = _scaled_works(summary)
    if not works:
        return None
    names = list(dict.fromkeys(name for series in works.values() for name in series))
    figure, every = _facets([*works] if len(works) > 1 else [''], 290, legend_lines=len(names))
    lines: dict[str, Any] = {}
    for axes, series in zip(every, works.values(), strict=True):
        rows = [row for found in series.values() for row in found]
        counts = sorted({row.num_devices for row in rows})
        base = rows[0].base or rows[0]
        ideal = [base.rate / base.num_devices * count for count in counts]
        axes.plot(counts, ideal, color=SOFT, linewidth=1, linestyle=_LINES[1])
        axes.text(counts[-1], ideal[-1], 'ideal  ', ha='right', va='bottom', color=SOFT)
        for name, found in series.items():
            color, index = _color(summary, found[0]), names.index(name)
            look: dict[str, Any] = {'color': color, 'marker': _MARKERS[index % len(_MARKERS)]}
            each = [row.num_devices for row in found]
            axes.errorbar(each, [row.rate for row in found], _errors(found), linestyle='', elinewidth=1, **look)
            best = {count: max(row.rate for row in found if row.num_devices == count) for count in sorted(each)}
            lines[name] = axes.plot([*best], [*best.values()], linestyle=_LINES[index % len(_LINES)], **look)[0]
        rates = [row.rate for row in rows]
        axes.set_xscale('log', base=2)
        axes.set_yscale('log', base=2)
        axes.set_xticks(counts)
        axes.set_ylim(min(rates) / _MARGIN, max(*rates, *ideal) * _MARGIN)
        axes.xaxis.set_major_formatter('{x:,g}')
        axes.yaxis.set_major_formatter('{x:,g}')
        axes.grid()
        axes.set_ylabel('images/sec')
    every[-1].set_xlabel('devices (W*G)')
    _legend(figure, list(lines.values()), list(lines), 1)
    shown = [row for series in works.values() for found in series.values() for row in found]
    most = max((row for row in shown if row.work == shown[0].work), key=lambda row: (row.num_devices, row.rate))
    base = most.base or most
    return Plot(
        'scaling',
        'Scaling with devices',
        'Along the dashed line, each device is as fast as in the first row of the table; the further below it, the '
        'more is lost. Both axes double from line to line. A line through a point is its 95 % interval.',
        f'On {most.num_devices} devices {most.label} reaches {number(most.speed_up, 3)} times the rate of '
        f'{base.label}, {percent(most.share_of_ideal)} of ideal.',
        ('setting', 'devices', 'images/sec', 'of ideal'),
        [(row.label, str(row.num_devices), number(row.rate), percent(row.share_of_ideal)) for row in shown],
        figure,
    )


def _exchanges(summary: Summary) -> Plot | None:
    """How fast the tensors of --exchange_bytes meet, over their bytes: a line for each setting without its size.

    Variables of parameter servers that are not cut are measured with large tensors only, which may be one point.
    """
    columns = [name for name in summary.columns if name not in ('model', _EXCHANGE_BYTES)]
    series: dict[tuple[str, ...], list[ReportRow]] = {}
    for row in sorted(summary.shown, key=_exchanged_bytes):
        if _exchanged_bytes(row):
            series.setdefault(tuple(row.traits.get(name, '') for name in columns), []).append(row)
    # Lines first; beside them, a setting of one size is a point, if there is room.
    lines = sorted(series.values(), key=lambda rows: (_is_point(rows), -_fastest(rows)))[:_MOST_SERIES]
    if not lines or _is_point(lines[0]):
        return None
    lines.sort(key=_fastest, reverse=True)
    names = names_of([rows[0].traits for rows in lines], columns)
    figure, (axes,) = _facets([''], 290, legend_lines=len(lines))
    drawn = []
    for index, rows in enumerate(lines):
        look: dict[str, Any] = {
            'color': SERIES[index],
            'marker': _MARKERS[index],
            'linestyle': _LINES[index % len(_LINES)],
        }
        drawn += axes.plot(list(map(_exchanged_bytes, rows)), list(map(_bandwidth, rows)), **look)
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda size, _: f'{size / 2**20:g}Mi' if size >= 2**20 else f'{size / 2**10:g}Ki')
    axes.yaxis.set_major_formatter('{x:,g}')
    axes.grid()
    axes.set_xlabel('bytes')
    axes.set_ylabel('MB/s')
    _legend(figure, drawn, names, 1)
    cells = [
        (
            name,
            f'{_exchanged_bytes(row):,}',
            number(_exchanged_bytes(row) / _bandwidth(row) / 1e3),
            number(_bandwidth(row)),
        )
        for name, rows in zip(names, lines, strict=True)
        for row in rows
    ]
    best = max(lines[0], key=_bandwidth)
    return Plot(
        'exchanges',
        'How fast gradients meet',
        'The bytes of the gradients of one device in 32 bits, over the median seconds of a step: higher is faster. '
        'Small tensors show the latency, large ones the rate.',
        f'{names[0]} is the fastest: {number(_bandwidth(best))} MB/s with {_exchanged_bytes(best):,} bytes.',
        ('setting', 'bytes', 'ms', 'MB/s'),
        cells,
        figure,
    )


def _is_point(rows: Sequence[ReportRow]) -> bool:
    return len({_exchanged_bytes(row) for row in rows}) == 1


def _fastest(rows: Sequence[ReportRow]) -> float:
    return max(map(_bandwidth, rows))


def _exchanged_bytes(row: ReportRow) -> int:
    """The bytes of --exchange_bytes; 0 without it."""
    return int(row.runs[0].flags.get(_EXCHANGE_BYTES) or 0)


def _bandwidth(row: ReportRow) -> float:
    """MB/s of the tensor of --exchange_bytes."""
    return _exchanged_bytes(row) / float(np.median(np.concatenate([run.step_seconds() for run in row.runs]))) / 1e6


def _distribution(summary: Summary) -> Plot | None:
    """The times of the timed steps of each setting as boxes."""
    every = {row.label: 1000 * np.concatenate([run.step_seconds() for run in row.runs]) for row in summary.shown}
    rows, left_out = _fastest_first([row for row in summary.shown if every[row.label].size > len(row.runs)])
    if not rows:
        return None
    times = [every[row.label] for row in rows]
    quantiles = np.array([np.percentile(values, _QUANTILES) for values in times])
    low, first, median, third, high, _, _ = (quantiles / quantiles[:, [2]]).T
    figure, axes = _lines_figure(rows, [f'{number(found[2], 3)} ms' for found in quantiles])
    colors, positions = [_color(summary, row) for row in rows], np.arange(len(rows))
    axes.hlines(positions, low, high, colors=colors, linewidth=1.4)
    _bars(axes, third - first, colors, left=first, alpha=0.4)
    axes.vlines(median, positions - 0.25, positions + 0.25, colors=INK)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda share, _: f'{100 * share:.4g} %')
    axes.set_xlabel('step time in % of the median')
    spans = high - low
    steady, unsteady = int(spans.argmin()), int(spans.argmax())
    finding = f'The 90 % span {percent(spans[steady])} of the median for {rows[steady].label}'
    if len(rows) > 1:
        finding += f' up to {percent(spans[unsteady])} for {rows[unsteady].label}'
    return Plot(
        'distribution',
        'Spread of step times',
        'A narrow box is a steady setting. The stroke is the median, whose time is at the right; half of all timed '
        'steps lie in the box, 90 % on the line.',
        f'{finding}.{left_out}',
        ('setting', 'steps', '5 % ms', 'median ms', '95 % ms', '99 % ms', 'slowest ms'),
        [
            (row.label, str(values.size), *map(number, found[[0, 2, 4, 5, 6]]))
            for row, values, found in zip(rows, times, quantiles, strict=True)
        ],
        figure,
    )


def _timeline(summary: Summary) -> Plot | None:
    """The time of each step, warm-ups included, of the runs whose steps differ most."""
    runs = [(row, run) for row in summary.rows for run in row.runs if run.step_seconds().size > 1]
    if not runs:
        return None

    def slowest(pair: tuple[ReportRow, Record]) -> float:
        seconds = pair[1].step_seconds()
        return float(seconds.max() / np.median(seconds))

    chosen = sorted(runs, key=slowest, reverse=True)[:_MOST_RUNS]
    figure, every = _facets([row.label for row, _ in chosen], 110 if len(chosen) > 1 else 220, legend_lines=1)
    lines = []
    for axes, (row, run) in zip(every, chosen, strict=True):
        steps = run.document['workers'][0]['steps']
        warmups = 1000 * np.array(steps['seconds'])[np.array(steps['phase']) == 'warmup']
        timed = 1000 * run.step_seconds()
        marked = outliers(timed)
        _draw_steps(axes, warmups, timed, marked)
        times = (number(float(value)) for value in (np.median(timed), timed.max()))
        lines.append((row.label, str(warmups.size), str(timed.size), *times, str(marked.sum())))
    every[-1].set_xlabel('step')
    _legend(figure, *every[0].get_legend_handles_labels(), 2)
    total = sum(int(line[-1]) for line in lines)
    finding = '1 step is marked as an outlier.' if total == 1 else f'{total or "No"} steps are marked as outliers.'
    if len(chosen) < len(runs):
        finding += f' Shown are the {len(chosen)} runs of {len(runs)} whose slowest steps stand out most.'
    return Plot(
        'timeline',
        'Step times in order',
        'A level line is good; a slope is a machine that heats up or a cache that fills. Grey rings at the left are '
        f'warm-ups, which do not count; crosses are steps more than {OUTLIER_DEVIATIONS:g} robust standard deviations '
        'above the median, at the upper edge if they are beyond it.',
        finding,
        ('run', 'warm-ups', 'steps', 'median ms', 'slowest ms', 'outliers'),
        lines,
        figure,
    )


def _time(summary: Summary) -> Plot | None:
    """The seconds from the start of the program to the last timed step, by cause."""
    every = {row.label: _mean_parts(row.runs) for row in summary.shown}
    rows, left_out = _fastest_first([row for row in summary.shown if len(every[row.label]) > 1])
    if not rows:
        return None
    parts = [every[row.label] for row in rows]
    known = dict.fromkeys(name for found in parts for name in found)
    names = [name for name in (*_PHASES, *_STAGES) if name in known]
    names += [name for name in known if name not in names]
    shown = [name.replace('_', '-') for name in names]
    seconds = np.array([[found.get(name, 0.0) for name in names] for found in parts])
    ends = [f'{number(total, 3)} s' for total in seconds.sum(axis=1)]
    figure, axes = _lines_figure(rows, ends, legend_lines=math.ceil(len(names) / _LEGEND_COLUMNS))
    lefts = seconds.cumsum(axis=1) - seconds
    bars = [
        _bars(axes, seconds[:, i], _STEP if name == 'step' else SERIES[i % len(SERIES)], left=lefts[:, i])
        for i, name in enumerate(names)
    ]
    axes.set_xlabel('seconds')
    _legend(figure, bars, shown, _LEGEND_COLUMNS)

    is_step, is_start = np.array(names) == 'step', np.isin(names, _PHASES)
    starts = seconds[:, is_start].sum(axis=1)
    # An old result may not know its seconds within steps.
    beside = 1 - seconds[:, is_step].sum(axis=1) / np.maximum(seconds[:, ~is_start].sum(axis=1), 1e-9)
    slowest, most = int(starts.argmax()), int(beside.argmax())
    finding = (
        f'The longest start takes {number(starts[slowest], 3)} s, for {rows[slowest].label}. From the first timed step '
        f'to the last, at most {percent(beside[most])} of the time is not spent in steps, for {rows[most].label}.'
    )
    # A warm-up step, so part of a phase.
    found = [(run.document.get('phases') or {}).get('first_step') for row in rows for run in row.runs]
    if firsts := sorted(seconds for seconds in found if seconds is not None):
        low, high = (number(seconds, 3) for seconds in (firsts[0], firsts[-1]))
        finding += f' The very first step was done after {low if low == high else f"{low} to {high}"} s.'
    return Plot(
        'time',
        'Where the time goes',
        'From the start of the program to the last timed step: importing TensorFlow, joining the cluster, building the '
        'graph, initialising, all warm-up steps; then the steps, waiting for input, and what lies between steps, such '
        'as printing, summaries and checkpoints.',
        f'{finding}{left_out}',
        ('setting', *(f'{name} s' for name in shown)),
        [(row.label, *(number(value, 3) for value in line)) for row, line in zip(rows, seconds, strict=True)],
        figure,
    )


def _fastest_first(rows: Sequence[ReportRow]) -> tuple[list[ReportRow], str]:
    """At most _MOST_ROWS rows in the order of their rates, and the sentence that says so if they are not all."""
    shown = sorted(rows, key=lambda row: -row.rate)[:_MOST_ROWS]
    are_all = len(shown) == len(rows)
    return shown, '' if are_all else f' Shown are the {len(shown)} fastest of {counted(len(rows), "setting")}.'


def _color(summary: Summary, row: ReportRow) -> str:
    """The colour of the mode of a row."""
    return SERIES[summary.modes.index(row.traits[MODE]) % len(SERIES)]


def _errors(rows: Sequence[ReportRow]) -> NDArray[np.float64]:
    """How far the intervals reach below and above the rates, [2, num_rows]; nan where there is none."""
    ends = np.array([row.interval or (np.nan, np.nan) for row in rows], dtype=np.float64)
    return np.abs(ends - np.array([[row.rate] for row in rows])).T


def _lines_figure(rows: Sequence[ReportRow], ends: Sequence[str], legend_lines: int = 0) -> tuple[Figure, Axes]:
    """A figure with a horizontal line for each row, the first on top; row i is at y = i.

    Above each line stand the label of its row, at the left, and one of the ends, at the right.
    """
    figure, (axes,) = _facets([''], 38 * len(rows) + 8, legend_lines)
    axes.set_ylim(len(rows) - 0.65, -0.8)
    axes.set_yticks([])
    axes.grid(axis='x')
    axes.spines['bottom'].set_visible(False)
    place: dict[str, Any] = {'va': 'bottom', 'transform': axes.get_yaxis_transform()}
    for position, (row, end) in enumerate(zip(rows, ends, strict=True)):
        axes.text(0, position - 0.28, row.label, **place)
        axes.text(1, position - 0.28, end, ha='right', **place)
    return figure, axes


def _bars(axes: Axes, widths: Any, color: Any, **look: Any) -> Any:
    return axes.barh(range(len(widths)), widths, 0.42, color=color, error_kw={'ecolor': INK, 'capsize': 3}, **look)


def _facets(titles: Sequence[str], height: float, legend_lines: int = 0) -> tuple[Figure, list[Axes]]:
    """A figure with axes of this height in CSS pixels for each title, one below the other, and a legend below them."""
    size = (WIDTH / _DPI, (height * len(titles) + 40 + 20 * legend_lines) / _DPI)
    figure = Figure(figsize=size, layout='constrained')
    every = list(figure.subplots(len(titles), squeeze=False)[:, 0])
    for axes, title in zip(every, titles, strict=True):
        # A long title must not push the axes together.
        axes.set_title(title).set_in_layout(False)
    return figure, every


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int) -> None:
    """A legend under all axes."""
    figure.legend(handles, labels, loc='outside lower left', ncols=columns, columnspacing=1.2, borderaxespad=0)


def _scaled_works(summary: Summary) -> dict[str, dict[str, list[ReportRow]]]:
    """The series of each work that has results on different numbers of devices: rows by all but their shape."""
    columns = [name for name in summary.columns if name != SHAPE]
    works: dict[str, dict[tuple[str, ...], list[ReportRow]]] = {}
    for row in summary.shown:
        setting = tuple(row.traits.get(name, '') for name in columns)
        works.setdefault(row.work, {}).setdefault(setting, []).append(row)
    facets: dict[str, dict[str, list[ReportRow]]] = {}
    for work, series in works.items():
        lines = [rows for rows in series.values() if len({row.num_devices for row in rows}) > 1]
        fastest = sorted(lines, key=lambda rows: -max(row.rate for row in rows))[:_MOST_SERIES]
        if fastest and len(facets) < _MOST_FACETS:
            facets[work] = dict(zip(names_of([rows[0].traits for rows in fastest], columns), fastest, strict=True))
    return facets


def _draw_steps(
    axes: Axes, warmups: NDArray[np.float64], timed: NDArray[np.float64], marked: NDArray[np.bool_]
) -> None:
    """The steps of a run in ms: a line, rings for warm-ups, crosses for outliers. The first timed step is step 1."""
    median = float(np.median(timed))
    highest = max(float(timed.max()), min(float(warmups.max(initial=0.0)), 2 * median))
    top = min(highest * 1.15, median * _HIGHEST)
    drawn, positions = np.minimum(timed, top), np.arange(1, timed.size + 1)
    line = np.unique(np.linspace(0, timed.size - 1, _MOST_POINTS).round().astype(np.int64))
    axes.plot(positions[line], drawn[line], color=SERIES[0], linewidth=1.2)
    rings: dict[str, Any] = {'fillstyle': 'none', 'markersize': 4, 'color': SOFT, 'label': 'warm-up'}
    axes.plot(np.arange(warmups.size) - warmups.size + 1, np.minimum(warmups, top), 'o', **rings)
    axes.plot(positions[marked], drawn[marked], 'X', label='outlier', color=BAD, markersize=6)
    axes.set_ylim(0, top * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter('{x:,g}')
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(axis='y')
    axes.set_ylabel('ms')


def _mean_parts(runs: Sequence[Record]) -> dict[str, float]:
    """The mean seconds of runs by cause: those before the first timed step, then those up to the end of the last."""
    total: dict[str, float] = {}
    for run in runs:
        throughput, waiting = run.document['throughput'], (run.document.get('input') or {}).get('wait_seconds')
        within = as_float(throughput.get('step_seconds'), 0.0)
        waited = min(as_float(waiting, 0.0), within)
        parts = {**(run.document.get('phases') or {}), 'step': within - waited, 'input wait': waited}
        parts.pop('first_step', None)
        for name, seconds in (parts | (throughput.get('between_seconds') or {})).items():
            if seconds and seconds > 0:
                total[name] = total.get(name, 0.0) + seconds / len(runs)
    return total
