"""The plot of rates over months. Needs the extra `report`."""

import math
from collections.abc import Sequence
from datetime import datetime

import matplotlib.dates as mdates
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comparison.regression import MOST_RUNS, Expectation, expectation
from errors import counted
from page.figures import LIGHT, WIDE, Plot, PlotData, new_figure, series_color, title_facet
from page.rows import ReportRow, number, summarize_collection
from results.collection import Collection
from results.document import Record

_MOST_FACETS = 6
_FEWEST_RUNS = 3


def plot_history(records: Sequence[Record]) -> Plot | None:
    """Images/sec of the settings that were measured most often, and what the runs before each run lead to expect.

    Args:
      records: in any order.
    """
    ordered = sorted(records, key=lambda record: record.started_at)
    # What a new version of TensorFlow changed is what one looks for.
    summary = summarize_collection(Collection(tuple(ordered), (), ()), across_versions=True)
    rows = [row for row in summary.shown if len(row.runs) >= _FEWEST_RUNS]
    rows = sorted(rows, key=lambda row: -len(row.runs))[:_MOST_FACETS]
    if not rows:
        return None
    expected = [_expectations(row) for row in rows]
    outside = [_outside(row, each) for row, each in zip(rows, expected, strict=True)]
    found = [
        (changes[position], f'{row.label} by {changes[position]:+.1%} on {row.runs[position].record.started_at[:10]}')
        for row, changes in zip(rows, outside, strict=True)
        for position in changes
        # A level that lasts is named where it begins.
        if position - 1 not in changes
    ]
    texts = [text for _, text in sorted(found, key=lambda change: -abs(change[0]))]
    listed = '; '.join(texts[:3]) + (f'; and {len(texts) - 3} more' if len(texts) > 3 else '')
    finding = f'Outside: {listed}.' if texts else 'No run is outside.'

    def draw(width: int) -> Figure:
        columns = 2 if width >= WIDE and len(rows) > 1 else 1
        lines = math.ceil(len(rows) / columns)
        figure = new_figure(width, (180 if len(rows) > 1 else 280) * lines)
        for position, (row, each, changes) in enumerate(zip(rows, expected, outside, strict=True)):
            axes = figure.add_subplot(lines, columns, position + 1)
            title_facet(axes, row.label, width, columns)
            rates = [run.rate for run in row.runs]
            numbers = mdates.date2num([_date(run.record) for run in row.runs])
            colors = [LIGHT['bad'] if i in changes else series_color(0) for i in range(len(rates))]
            axes.scatter(numbers, rates, s=16, c=colors, zorder=2)
            axes.plot(numbers, [one.median if one else math.nan for one in each], color=series_color(0))
            bands = [one.interval if one and one.interval else (math.nan, math.nan) for one in each]
            low, high = np.transpose(bands)
            axes.fill_between(numbers, low, high, color=series_color(0), alpha=0.15, linewidth=0)
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
        f'A dot is a run, the line the median of the up to {MOST_RUNS} runs before it, and the band what counts as '
        f'before. A run outside is red. {finding}',
        f'Images/sec over time for {counted(len(rows), "setting")}. {finding}',
        PlotData(
            ('setting', 'started', 'images/sec', 'change'),
            [
                (
                    row.label,
                    run.record.started_at,
                    number(run.rate),
                    f'{changes[position]:+.1%}' if position in changes else '',
                )
                for row, changes in zip(rows, outside, strict=True)
                for position, run in enumerate(row.runs)
            ],
        ),
        draw,
    )


def _expectations(row: ReportRow) -> list[Expectation | None]:
    """What the runs before each run of a row say about it."""
    return [expectation([run.rate for run in row.runs[:position] if run.rate > 0]) for position in range(len(row.runs))]


def _outside(row: ReportRow, expected: Sequence[Expectation | None]) -> dict[int, float]:
    """The runs outside of what was expected: position -> the rate over the median before, less 1."""
    return {
        position: run.rate / found.median - 1
        for position, (run, found) in enumerate(zip(row.runs, expected, strict=True))
        if found and found.interval and (run.rate < found.interval[0] or run.rate > found.interval[1])
    }


def _date(record: Record) -> datetime:
    return datetime.fromisoformat(record.started_at.replace('Z', '+00:00'))
