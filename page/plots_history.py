"""The plot of rates over months. Needs the extra `report`."""

import itertools
import math
from collections.abc import Callable, Sequence
from datetime import datetime

import matplotlib.dates as mdates
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from errors import counted
from page.figures import LIGHT, WIDE, Plot, PlotData, new_figure, series_color, title_facet
from page.rows import ReportRow, number, summarize_collection
from results.collection import Collection
from results.document import Record

_MOST_FACETS = 6
_FEWEST_RUNS = 3


def plot_history(records: Sequence[Record], change_points: Callable[[Sequence[float]], Sequence[int]]) -> Plot | None:
    """Images/sec of the settings that were measured most often, over the time of their runs.

    Args:
      records: in any order.
      change_points: the positions in a series of rates, [num_runs], at which a new level begins.
    """
    ordered = sorted(records, key=lambda record: record.started_at)
    # What a new version of TensorFlow changed is what one looks for.
    summary = summarize_collection(Collection(tuple(ordered), (), ()), across_versions=True)
    rows = [row for row in summary.shown if len(row.runs) >= _FEWEST_RUNS]
    rows = sorted(rows, key=lambda row: -len(row.runs))[:_MOST_FACETS]
    if not rows:
        return None
    changes = [
        [point for point in change_points([run.rate for run in row.runs]) if 0 < point < len(row.runs)] for row in rows
    ]
    found = [_sentence(row, point, points) for row, points in zip(rows, changes, strict=True) for point in points]
    listed = '; '.join(found[:3]) + (f'; and {len(found) - 3} more' if len(found) > 3 else '')
    finding = f'Changes: {listed}.' if found else 'No change stands out.'

    def draw(width: int) -> Figure:
        columns = 2 if width >= WIDE and len(rows) > 1 else 1
        lines = math.ceil(len(rows) / columns)
        figure = new_figure(width, (180 if len(rows) > 1 else 280) * lines)
        for position, (row, points) in enumerate(zip(rows, changes, strict=True)):
            axes = figure.add_subplot(lines, columns, position + 1)
            title_facet(axes, row.label, width, columns)
            dates, rates = [_date(run.record) for run in row.runs], [run.rate for run in row.runs]
            numbers = mdates.date2num(dates)
            axes.plot(numbers, rates, 'o', color=series_color(0), markersize=4)
            edges = [0, *points, len(rates)]
            for begin, end in itertools.pairwise(edges):
                level = sum(rates[begin:end]) / (end - begin)
                axes.plot([numbers[begin], numbers[end - 1]], [level, level], color=series_color(0))
            for point in points:
                axes.axvline(numbers[point], color=LIGHT['bad'], linewidth=1.2, linestyle='--')
                axes.annotate(
                    f'{_change(rates, point, points):+.1%}', (numbers[point], 1), (3, -2), color=LIGHT['bad'], va='top',
                    xycoords=('data', 'axes fraction'), textcoords='offset points',
                )  # fmt: skip
            axes.set_ylim(0, max(rates) * 1.2)
            axes.grid(axis='y')
            axes.yaxis.set_major_locator(MaxNLocator(4))
            locator = mdates.AutoDateLocator(maxticks=4 if columns == 2 or width < WIDE else 7)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator, show_offset=False))
            if position % columns == 0:
                axes.set_ylabel('images/sec')
        return figure

    return Plot(
        'history',
        'Over the months',
        'A dot is a run, a line the level of its stretch, and a dashed stroke a change which is more than noise. '
        f'{finding}',
        f'Images/sec over time for {counted(len(rows), "setting")}. {finding}',
        PlotData(
            ('setting', 'started', 'images/sec', 'change'),
            [
                (
                    row.label,
                    run.record.started_at,
                    number(run.rate),
                    f'{_change([run.rate for run in row.runs], position, points):+.1%}' if position in points else '',
                )
                for row, points in zip(rows, changes, strict=True)
                for position, run in enumerate(row.runs)
            ],
        ),
        draw,
    )


def _sentence(row: ReportRow, point: int, points: Sequence[int]) -> str:
    change = _change([run.rate for run in row.runs], point, points)
    return f'{row.label} by {change:+.1%} on {row.runs[point].record.started_at[:10]}'


def _change(rates: Sequence[float], point: int, points: Sequence[int]) -> float:
    """The level that begins at a point over the one that ends there, less 1."""
    edges = [0, *points, len(rates)]
    position = edges.index(point)
    before, after = rates[edges[position - 1] : point], rates[point : edges[position + 1]]
    return (sum(after) / len(after)) / (sum(before) / len(before)) - 1


def _date(record: Record) -> datetime:
    return datetime.fromisoformat(record.started_at.replace('Z', '+00:00'))
