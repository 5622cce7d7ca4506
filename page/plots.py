"""Plots of rates: of all settings, over the number of devices, and as a share of the machine's peak.

Needs the extra `report`. Each function returns None if there is nothing to see.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from errors import counted
from page.figures import (
    LIGHT,
    LINES,
    MARKERS,
    WIDE,
    Plot,
    PlotData,
    legend_below,
    legend_columns,
    new_figure,
    row_axes,
    series_color,
    title_facet,
)
from page.labels import names_of
from page.measured import SHAPE
from page.rows import ReportRow, Summary, number

# More do not fit a page that people read; the table has all.
MOST_ROWS = 50
_MOST_SERIES = 8
_MOST_FACETS = 4
# The axes follow the rates: an interval that reaches further beyond the fastest or the slowest ends at the edge.
_MARGIN = 1.25
# Shares of the peak for each image/sec that differ by less belong to one model on one machine.
_SAME = 1.05
_ARROWS = ' An arrow marks an interval that goes on beyond the plot.'


def fastest_first(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """At most MOST_ROWS rows in the order of their rates."""
    return sorted(rows, key=lambda row: -row.rate)[:MOST_ROWS]


def left_out(shown: Sequence[ReportRow], rows: Sequence[ReportRow]) -> str:
    """The sentence that says that not all rows are shown; empty if all are."""
    return f' Shown are the {len(shown)} fastest of {counted(len(rows), "setting")}.' if len(shown) < len(rows) else ''


def plot_rates(summary: Summary) -> Plot | None:
    """Images/sec of all settings as bars, the fastest on top, with their intervals."""
    rows = fastest_first(summary.shown)
    if len(rows) < 2:
        return None
    best, last = rows[0], rows[-1]
    edge = _MARGIN * best.rate

    def draw(width: int) -> Figure:
        figure, axes, height = row_axes(width, [row.label for row in rows])
        top = best.rate
        for position, row in enumerate(rows):
            axes.barh(position, row.rate, height, color=series_color(summary.modes.index(row.mode)), linewidth=0)
            low, high = row.interval or (row.rate, row.rate)
            end = min(high, edge)
            top = max(top, end)
            if row.interval:
                axes.plot([low, end], [position, position], color=LIGHT['ink'], linewidth=1.4)
                axes.plot(low, position, '|', color=LIGHT['ink'], markersize=7)
                axes.plot(end, position, '|' if end == high else '>', color=LIGHT['ink'], markersize=7)
            axes.annotate(number(row.rate), (end, position), (6, 0), textcoords='offset points', va='center')
        axes.set_xlim(0, top * (1.12 if width >= WIDE else 1.2))
        axes.set_xlabel('images/sec')
        return figure

    spread = ''
    if any(row.interval for row in rows):
        spread = ' The line at the end of a bar is the 95 % interval ' + (
            'of the rate of all repeats; for a single run, by the spread of its steps.'
            if any(len(row.runs) > 1 for row in rows)
            else 'by the spread of the steps of one run, which says nothing about the next run.'
        )
        spread += _ARROWS if any(row.interval and row.interval[1] > edge for row in rows) else ''
    return Plot(
        'rates',
        'Images per second',
        f'Longer is faster. {best.label} leads with {number(best.rate)} images/sec, '
        f'{number(best.rate / last.rate, 3)} times the slowest.{spread}{left_out(rows, summary.shown)}',
        f'Bars of {counted(len(rows), "setting")}. Fastest: {best.label}, {number(best.rate)} images/sec. '
        f'Slowest: {last.label}, {number(last.rate)} images/sec.',
        PlotData(
            ('setting', 'images/sec', '95 % from', 'to', 'runs'),
            [
                (row.label, *map(number, (row.rate, *(row.interval or (None, None)))), str(len(row.runs)))
                for row in rows
            ],
        ),
        draw,
    )


def plot_scaling(summary: Summary) -> Plot | None:
    """Images/sec over the number of devices: a line for each setting without its shape, and the ideal line."""
    works = _scaled_works(summary)
    if not works:
        return None

    def draw(width: int) -> Figure:
        columns = 2 if width >= WIDE and len(works) > 1 else 1
        lines = math.ceil(len(works) / columns)
        names = list(dict.fromkeys(name for series in works.values() for name in series))
        legend_rows = math.ceil(len(names) / legend_columns(width, names))
        figure = new_figure(width, (360 if columns == 1 and width >= WIDE else 290) * lines + 22 * legend_rows)
        handles: dict[str, Line2D] = {}
        for position, (work, series) in enumerate(works.items()):
            axes = figure.add_subplot(lines, columns, position + 1)
            if len(works) > 1:
                title_facet(axes, summary.name_of(work), width, columns)
            bases = summary.shown
            base = next(row for row in bases if row.work == work)
            counts = sorted({row.runs[0].num_devices for rows in series.values() for row in rows})
            per_device = base.rate / base.runs[0].num_devices
            axes.plot(
                counts, [per_device * count for count in counts], color=LIGHT['soft'], linewidth=1.2, linestyle=LINES[1]
            )
            axes.annotate(
                'ideal', (counts[-1], per_device * counts[-1]), (-6, 0), textcoords='offset points', ha='right',
                color=LIGHT['soft'],
            )  # fmt: skip
            for index, (name, rows) in enumerate(series.items()):
                handles.setdefault(name, _draw_series(axes, rows, _style_of(summary, series, index)))
            axes.set_xscale('log', base=2)
            axes.set_yscale('log', base=2)
            _end_at_rates(axes, [row for rows in series.values() for row in rows], per_device * counts[-1])
            axes.xaxis.set_major_locator(FixedLocator(counts))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f'{count:g}'))
            axes.yaxis.set_major_locator(LogLocator(base=2))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f'{rate:,g}'))
            axes.grid()
            axes.set_xlabel('devices (W*G)')
            axes.set_ylabel('images/sec')
        legend_below(figure, list(handles.values()), list(handles), legend_columns(width, names))
        return figure

    work, series = next(iter(works.items()))
    every = [row for rows in series.values() for row in rows]
    base = next(row for row in summary.shown if row.work == work)
    most = max(row.runs[0].num_devices for row in every)
    best = max((row for row in every if row.runs[0].num_devices == most), key=lambda row: row.rate)
    efficiency = best.rate / base.rate * base.runs[0].num_devices / most
    finding = (
        f'On {most} devices {best.label} reaches {number(best.rate / base.rate, 3)} times the first row of the table, '
        f'{100 * efficiency:.0f} % of ideal.'
    )
    intervals = ' A line through a point is its 95 % interval.' + _ARROWS if any(row.interval for row in every) else ''
    return Plot(
        'scaling',
        'Scaling with devices',
        f'Along the dashed line, each device is as fast as in the first row ({base.label}); the further below it, the '
        f'more is lost. {finding} Both axes double from line to line.{intervals}',
        f'Lines of images/sec over the number of devices, for {counted(len(series), "setting")}. {finding}',
        PlotData(
            ('setting', 'devices', 'images/sec', 'of ideal'),
            [
                (row.label, str(row.runs[0].num_devices), number(row.rate), _of_ideal(row, summary))
                for series in works.values()
                for rows in series.values()
                for row in rows
            ],
        ),
        draw,
    )


def plot_peak(summary: Summary) -> Plot | None:
    """The share of the machine's measured peak that each setting reaches, unless it only repeats the rates."""
    every = [row for row in summary.shown if row.share_of_peak]
    rows = sorted(every, key=lambda row: -(row.share_of_peak or 0))[:MOST_ROWS]
    percent = [100 * (row.share_of_peak or 0) for row in rows]
    per_image = [share / row.rate for row, share in zip(rows, percent, strict=True)]
    if not rows or max(per_image) < _SAME * min(per_image):
        return None

    def draw(width: int) -> Figure:
        figure, axes, _ = row_axes(width, [row.label for row in rows])
        for position, (row, share) in enumerate(zip(rows, percent, strict=True)):
            series = summary.modes.index(row.mode)
            axes.plot([0, share], [position, position], color=LIGHT['rule'], linewidth=3)
            axes.plot(share, position, MARKERS[series % len(MARKERS)], color=series_color(series), markersize=8)
            axes.annotate(f'{number(share, 3)} %', (share, position), (9, 0), textcoords='offset points', va='center')
        axes.set_xlim(0, max(percent) * (1.18 if width >= WIDE else 1.28))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel('% of the peak FLOP/s measured on the machine')
        return figure

    return Plot(
        'peak',
        'Share of the peak',
        f'How much of the arithmetic that the machine can do goes into training: at best {number(percent[0], 3)} %, by '
        f'{rows[0].label}. The rest is memory, waiting and overhead.{left_out(rows, every)}',
        f'Dots of {counted(len(rows), "setting")}, from {number(percent[-1], 3)} % to '
        f'{number(percent[0], 3)} % of the peak.',
        PlotData(
            ('setting', '% of peak'),
            [(row.label, number(share, 3)) for row, share in zip(rows, percent, strict=True)],
        ),
        draw,
    )


def _of_ideal(row: ReportRow, summary: Summary) -> str:
    base = summary.base_of(row)
    if not base:
        return number(None)
    return f'{row.rate / base.rate * base.runs[0].num_devices / row.runs[0].num_devices * 100:.0f} %'


def _scaled_works(summary: Summary) -> dict[str, dict[str, list[ReportRow]]]:
    """The series of each work which have results on different numbers of devices: rows by all but their shape."""
    found: dict[tuple[str, ...], list[ReportRow]] = {}
    columns = [name for name in summary.columns if name != SHAPE]
    for row in summary.shown:
        found.setdefault((row.work, *(row.traits.get(name, '') for name in columns)), []).append(row)
    lines = [rows for rows in found.values() if len({row.runs[0].num_devices for row in rows}) > 1]
    # The facet says which work it is.
    works = dict.fromkeys(rows[0].work for rows in lines)
    largest = sorted(works, key=lambda work: -sum(len(rows) for rows in lines if rows[0].work == work))[:_MOST_FACETS]
    facets: dict[str, dict[str, list[ReportRow]]] = {}
    for work in (work for work in works if work in largest):
        own = [rows for rows in lines if rows[0].work == work]
        names = names_of([rows[0].traits for rows in own], columns)
        facets[work] = _fastest_series(dict(zip(names, own, strict=True)))
    return facets


def _fastest_series(series: dict[str, list[ReportRow]]) -> dict[str, list[ReportRow]]:
    """At most _MOST_SERIES series, those with the highest rates, in their order."""
    chosen = sorted(series, key=lambda name: -max(row.rate for row in series[name]))[:_MOST_SERIES]
    return {name: rows for name, rows in series.items() if name in chosen}


def _style_of(summary: Summary, series: dict[str, list[ReportRow]], index: int) -> dict[str, Any]:
    """The colour of a series says its mode; its marker and line tell it from others of the mode."""
    names = list(series)
    mode = series[names[index]][0].mode
    among = [name for name in names if series[name][0].mode == mode].index(names[index])
    number_of_mode = summary.modes.index(mode)
    return {
        'color': series_color(number_of_mode),
        'marker': MARKERS[number_of_mode % len(MARKERS)],
        'linestyle': LINES[among % len(LINES)],
        'markerfacecolor': series_color(number_of_mode) if among % 2 == 0 else LIGHT['paper'],
    }


def _end_at_rates(axes: Axes, rows: Sequence[ReportRow], ideal: float) -> None:
    """Limits the axis of rates to those of the rows and the ideal one; an arrow marks each interval that goes on."""
    rates = [row.rate for row in rows]
    bottom, top = min(rates) / _MARGIN, max(*rates, ideal) * _MARGIN
    for row in rows:
        low, high = row.interval or (row.rate, row.rate)
        ends = ((bottom, 'v', low < bottom), (top, '^', high > top))
        for end, marker, goes_on in ends:
            if goes_on:
                count = row.runs[0].num_devices
                axes.plot(count, end, marker, color=LIGHT['soft'], markersize=6, clip_on=False)
    axes.set_ylim(bottom, top)


def _draw_series(axes: Axes, rows: Sequence[ReportRow], style: dict[str, Any]) -> Line2D:
    """Draws all points, and a line through the best for each number of devices; returns what stands in the legend."""
    best: dict[int, float] = {}
    for row in rows:
        count = row.runs[0].num_devices
        best[count] = max(best.get(count, 0.0), row.rate)
        if row.interval:
            axes.plot([count, count], row.interval, color=style['color'], linewidth=1)
    points = {name: value for name, value in style.items() if name != 'linestyle'}
    axes.plot([row.runs[0].num_devices for row in rows], [row.rate for row in rows], linestyle='', **points)
    axes.plot(sorted(best), [best[count] for count in sorted(best)], color=style['color'], linestyle=style['linestyle'])
    return Line2D([], [], **style)
