"""Plots of steps: how their times are spread and run, where they go, what comes before the first, and the loss.

Needs the extra `report`. Each function returns None if there is nothing to see.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from errors import counted
from page.figures import (
    BAR,
    HATCHES,
    LIGHT,
    LINES,
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
from page.measured import Run
from page.plots import fastest_first, left_out
from page.rows import ReportRow, Summary, number
from results.document import CAUSES
from results.statistics import MAD_TO_STANDARD_DEVIATION

# Beyond this many robust standard deviations from the median a step is marked. Normal ones are 3 in 10 million.
_OUTLIER_DEVIATIONS = 5
# Where less of the wall time is lost beside the steps, there is nothing to see; in %.
_LEAST_LOST = 0.01
_MOST_FACETS = 6
_MOST_LOSSES = 6
_MOST_POINTS = 300
_MOST_DOTS = 20
# How far the axis of relative step times goes, of the distance of the furthest of 90 % of the steps.
_MARGIN = 1.6
# Steps above this many times the median are drawn at the edge, or nothing could be seen of the others.
_HIGHEST = 4.0
_PHASES = ('import', 'join', 'build', 'initialise', 'warm_up')
_STAGES = ('step', 'input wait', *CAUSES)
_QUANTILES = (5, 25, 50, 75, 95)


def plot_distribution(summary: Summary) -> Plot | None:
    """The times of the timed steps of each setting as boxes."""
    every = [row for row in summary.shown if any(run.num_steps > 1 for run in row.runs)]
    rows = fastest_first(every)
    if not rows:
        return None
    times = [1000 * np.concatenate([run.timed for run in row.runs]) for row in rows]
    quantiles = [np.percentile(values, _QUANTILES) for values in times]
    medians = [float(found[2]) for found in quantiles]
    steadiest = min(range(len(rows)), key=lambda index: (quantiles[index][4] - quantiles[index][0]) / medians[index])
    widest = max(range(len(rows)), key=lambda index: (quantiles[index][4] - quantiles[index][0]) / medians[index])

    relative = [values / median for values, median in zip(times, medians, strict=True)]
    low = min(float(found[0]) / median for found, median in zip(quantiles, medians, strict=True))
    high = max(float(found[4]) / median for found, median in zip(quantiles, medians, strict=True))
    edges = 1 - _MARGIN * (1 - low) - 0.005, 1 + _MARGIN * (high - 1) + 0.005

    def draw(width: int) -> Figure:
        figure, axes, height = row_axes(width, [row.label for row in rows])
        for position, (row, values) in enumerate(zip(rows, relative, strict=True)):
            color = series_color(summary.modes.index(row.mode))
            low, first, median, third, high = np.percentile(values, _QUANTILES)
            axes.plot([low, high], [position, position], color=color, linewidth=1.4)
            axes.barh(position, third - first, height * 0.8, left=first, color=color, alpha=0.4, linewidth=0)
            axes.plot([median, median], [position - height * 0.45, position + height * 0.45], color=LIGHT['ink'])
            beyond = _thinned(np.sort(values[(values > high) | (values < low)]), _MOST_DOTS)
            for shown, marker in (
                (beyond[(beyond >= edges[0]) & (beyond <= edges[1])], '.'),
                (beyond[beyond > edges[1]][:1] * 0 + edges[1], '>'),
                (beyond[beyond < edges[0]][:1] * 0 + edges[0], '<'),
            ):
                axes.plot(shown, np.full(len(shown), position), marker, color=color, markersize=5, linestyle='')
            text = f'{number(medians[position], 3)} ms'
            axes.annotate(
                text, (edges[1], position), (8, 0), textcoords='offset points', va='center', annotation_clip=False
            )
        axes.set_xlim(edges)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f'{100 * share:.4g} %'))
        axes.set_xlabel('step time in % of the median, which is at the right')
        return figure

    finding = (
        f'{_spread(quantiles[steadiest])} of the median for {rows[steadiest].label}'
        if len(rows) == 1
        else f'{_spread(quantiles[steadiest])} of the median for {rows[steadiest].label} up to '
        f'{_spread(quantiles[widest])} for {rows[widest].label}'
    )
    return Plot(
        'distribution',
        'Spread of step times',
        'A narrow box is a steady setting. The stroke is the median; half of all timed steps lie in the box, 90 % on '
        'the line, the rest are dots, and triangles where some are further away. '
        f'The 90 % span {finding}.{left_out(rows, every)}',
        f'Boxes of {counted(len(rows), "setting")}. 90 % of steps span {finding}.',
        PlotData(
            ('setting', 'steps', *(f'{name} ms' for name in ('5 %', 'median', '95 %', '99 %', 'slowest'))),
            [
                (row.label, str(values.size), *(number(float(x)) for x in np.percentile(values, (5, 50, 95, 99, 100))))
                for row, values in zip(rows, times, strict=True)
            ],
        ),
        draw,
    )


def plot_timeline(summary: Summary) -> Plot | None:
    """The time of each step, warm-ups included, of the runs whose steps differ most."""
    runs = [(row, run) for row in summary.rows for run in row.runs if run.num_steps > 1]
    if not runs:
        return None
    chosen = sorted(runs, key=lambda pair: -_unsteadiness(pair[1]))[:_MOST_FACETS]
    num_outliers = [int(_outliers(run.timed).sum()) for _, run in chosen]

    def draw(width: int) -> Figure:
        columns = 2 if width >= WIDE and len(chosen) > 1 else 1
        lines = math.ceil(len(chosen) / columns)
        figure = new_figure(width, (140 if len(chosen) > 1 else 250) * lines + 40)
        for position, (row, run) in enumerate(chosen):
            axes = figure.add_subplot(lines, columns, position + 1)
            title_facet(axes, row.label, width, columns)
            _draw_steps(axes, run)
            if position >= len(chosen) - columns:
                axes.set_xlabel('step')
            if position % columns == 0:
                axes.set_ylabel('ms')
        handles = [
            Line2D([], [], linestyle='', marker='o', color=LIGHT['soft'], markerfacecolor='none', markersize=4),
            Line2D([], [], linestyle='', marker='X', color=LIGHT['bad'], markersize=6),
        ]
        legend_below(figure, handles, ['warm-up', 'outlier'], 2)
        return figure

    which = (
        f'The {len(chosen)} runs of {len(runs)} whose slowest steps stand out most. ' if len(chosen) < len(runs) else ''
    )
    total = sum(num_outliers)
    marked = f'{total or "No"} step{"" if total == 1 else "s"} {"is" if total == 1 else "are"}'
    finding = f'{marked} marked as {"an outlier" if total == 1 else "outliers"}'
    return Plot(
        'timeline',
        'Step times in order',
        f'{which}A level line is good; a slope is a machine that heats up or a cache that fills. Grey rings at the '
        f'left are warm-ups, which do not count; crosses are steps more than {_OUTLIER_DEVIATIONS} robust standard '
        f'deviations from the median, at the upper edge if they are beyond it. {finding} here.',
        f'Step times in order, for {counted(len(chosen), "run")}. {finding}.',
        PlotData(
            ('run', 'warm-ups', 'steps', 'median ms', 'slowest ms', 'outliers'),
            [
                (
                    row.label,
                    str(int(run.steps.is_warmup.sum())),
                    str(run.num_steps),
                    number(1000 * float(np.median(run.timed))),
                    number(1000 * float(run.timed.max())),
                    str(count),
                )
                for (row, run), count in zip(chosen, num_outliers, strict=True)
            ],
        ),
        draw,
    )


def plot_stages(summary: Summary) -> Plot | None:
    """What of the wall time goes elsewhere than into the timed steps, by cause, as shares."""
    every = [row for row in summary.shown if any(run.stages for run in row.runs)]
    rows = fastest_first(every)
    if not rows:
        return None
    sums = [_mean_parts([run.stages for run in row.runs]) for row in rows]
    shares = [{name: 100 * value / sum(parts.values()) for name, value in parts.items()} for parts in sums]
    lost = [{name: share for name, share in found.items() if name != 'step'} for found in shares]
    others = [sum(found.values()) for found in lost]
    if max(others) < _LEAST_LOST:
        return None
    worst = max(range(len(rows)), key=lambda index: others[index])
    finding = f'{number(others[worst], 2)} % for {rows[worst].label}'
    return Plot(
        'stages',
        'What is lost beside the steps',
        'The share of the wall time, from the first timed step to the last, that is spent on waiting for input, or '
        'between steps on printing, summaries and checkpoints. The rest is the steps themselves. At most it is '
        f'{finding}.{left_out(rows, every)}',
        f'Stacked bars of {counted(len(rows), "setting")}. What is not the step itself takes at most {finding}.',
        _parts_data(rows, shares, _STAGES, '%'),
        _stacked(rows, lost, _STAGES, '% of wall time', [f'{number(other, 2)} %' for other in others]),
    )


def plot_phases(summary: Summary) -> Plot | None:
    """What the time until the first timed step is needed for."""
    every = [row for row in summary.shown if any(run.phases for run in row.runs)]
    rows = fastest_first(every)
    if not rows:
        return None
    parts = [_mean_parts([run.phases for run in row.runs]) for row in rows]
    totals = [sum(found.values()) for found in parts]
    longest = max(range(len(rows)), key=lambda index: totals[index])
    largest = max(parts[longest], key=lambda name: parts[longest][name])
    finding = f'{number(totals[longest], 3)} s for {rows[longest].label}, most of it for {largest.replace("_", "-")}'
    firsts = sorted(run.first_step for row in rows for run in row.runs if run.first_step is not None)
    first = ''
    if firsts:
        low, high = (number(seconds, 3) for seconds in (firsts[0], firsts[-1]))
        first = f' The very first step was done after {low if low == high else f"{low} to {high}"} s.'
    return Plot(
        'phases',
        'Time to the first timed step',
        'From the start of the program until the first timed step begins: importing TensorFlow, joining the cluster, '
        f'building the graph, initialising, all warm-up steps. The longest is {finding}.{first}{left_out(rows, every)}',
        f'Stacked bars of {counted(len(rows), "setting")}. The longest is {finding}.',
        _parts_data(rows, parts, _PHASES, 's'),
        _stacked(rows, parts, _PHASES, 'seconds', [f'{number(total, 3)} s' for total in totals]),
    )


def plot_losses(summary: Summary) -> Plot | None:
    """The loss of runs that train on data which are not made up."""
    rows = [row for row in fastest_first(summary.shown) if any(run.evaluates_loss for run in row.runs)][:_MOST_LOSSES]
    if not rows:
        return None
    runs = [next(run for run in row.runs if run.evaluates_loss) for row in rows]

    labels = [row.label for row in rows]

    def draw(width: int) -> Figure:
        columns = legend_columns(width, labels)
        figure = new_figure(width, 280 + 22 * math.ceil(len(rows) / columns))
        axes = figure.add_subplot()
        handles = []
        for position, run in enumerate(runs):
            steps = _thinned(np.arange(1, run.steps.losses.size + 1), _MOST_POINTS)
            style: dict[str, Any] = {'color': series_color(position), 'linestyle': LINES[position % len(LINES)]}
            handles += axes.plot(steps, run.steps.losses[steps - 1], **style)
        axes.grid(axis='y')
        axes.set_xlabel('step, warm-ups included')
        axes.set_ylabel('loss')
        legend_below(figure, handles, labels, columns)
        return figure

    last = [float(run.steps.losses[np.isfinite(run.steps.losses)][-1]) for run in runs]
    return Plot(
        'losses',
        'Loss while training',
        'Settings that take the same mathematical step fall alike; one that does not fall does not learn. Shown are '
        f'the {len(rows)} fastest settings.',
        f'Lines of the loss over steps for {counted(len(rows), "setting")}.',
        PlotData(('setting', 'last loss'), [(row.label, number(loss)) for row, loss in zip(rows, last, strict=True)]),
        draw,
    )


def _stacked(
    rows: Sequence[ReportRow],
    parts: Sequence[Mapping[str, float]],
    order: Sequence[str],
    unit: str,
    ends: Sequence[str],
) -> Callable[[int], Figure]:
    """What draws a row of stacked bars for each setting, with a text at the end of each."""
    names = _names(parts, order)

    def draw(width: int) -> Figure:
        columns = 5 if width >= WIDE else 3
        figure, axes, height = row_axes(width, [row.label for row in rows], legend_rows=math.ceil(len(names) / columns))
        top = max(sum(found.values()) for found in parts)
        for position, (found, end) in enumerate(zip(parts, ends, strict=True)):
            left = 0.0
            for series, name in enumerate(names):
                value = found.get(name, 0.0)
                if value:
                    look: dict[str, Any] = {'color': series_color(series), 'hatch': HATCHES[series % len(HATCHES)]}
                    axes.barh(position, value, height, left=left, **look, **BAR)
                left += value
            axes.annotate(end, (left, position), (6, 0), textcoords='offset points', va='center')
        axes.set_xlim(0, top * (1.14 if width >= WIDE else 1.22))
        axes.set_xlabel(unit)
        handles = [
            Patch(facecolor=series_color(series), hatch=HATCHES[series % len(HATCHES)], **BAR)
            for series in range(len(names))
        ]
        legend_below(figure, handles, [name.replace('_', '-') for name in names], columns)
        return figure

    return draw


def _parts_data(
    rows: Sequence[ReportRow], parts: Sequence[Mapping[str, float]], order: Sequence[str], unit: str
) -> PlotData:
    names = _names(parts, order)
    return PlotData(
        ('setting', *(f'{name.replace("_", "-")} {unit}' for name in names)),
        [
            (row.label, *(number(found.get(name, 0.0), 3) for name in names))
            for row, found in zip(rows, parts, strict=True)
        ],
    )


def _names(parts: Sequence[Mapping[str, float]], order: Sequence[str]) -> list[str]:
    """The names of all parts: the known ones in their order, then others."""
    found = dict.fromkeys(name for part in parts for name in part)
    return [name for name in order if name in found] + [name for name in found if name not in order]


def _mean_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names}


def _spread(quantiles: NDArray[np.float64]) -> str:
    return f'{number(100 * float(quantiles[4] - quantiles[0]) / float(quantiles[2]), 2)} %'


def _outliers(seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which steps lie far from the median, by the median absolute deviation."""
    distance = np.abs(seconds - np.median(seconds))
    deviation = MAD_TO_STANDARD_DEVIATION * np.median(distance)
    return distance > max(_OUTLIER_DEVIATIONS * float(deviation), 1e-9)


def _unsteadiness(run: Run) -> float:
    return float(run.timed.max() / np.median(run.timed))


def _draw_steps(axes: Axes, run: Run) -> None:
    """The steps of a run in ms: a line, rings for warm-ups, crosses for outliers."""
    is_warmup = run.steps.is_warmup
    num_warmups = int(is_warmup.sum())
    milliseconds = 1000 * np.concatenate([run.steps.seconds[is_warmup], run.timed])
    positions = np.arange(len(milliseconds)) - num_warmups + 1
    timed = milliseconds[num_warmups:]
    median = float(np.median(timed))
    highest = max(float(timed.max()), min(float(milliseconds.max()), 2 * median))
    top = min(highest * 1.15, median * _HIGHEST)
    drawn = np.minimum(milliseconds, top)
    axes.axvspan(0.5 - num_warmups, 0.5, color=LIGHT['rule'], alpha=0.5, linewidth=0)
    axes.axhline(median, color=LIGHT['rule'], linewidth=1)
    line = _thinned(np.arange(num_warmups, len(drawn)), _MOST_POINTS)
    axes.plot(positions[line], drawn[line], color=series_color(0), linewidth=1.2)
    marked = num_warmups + np.flatnonzero(_outliers(run.timed))
    ring: dict[str, Any] = {'marker': 'o', 'color': LIGHT['soft'], 'markerfacecolor': 'none', 'markersize': 4}
    cross: dict[str, Any] = {'marker': 'X', 'color': LIGHT['bad'], 'markersize': 6}
    for chosen, style in ((np.arange(num_warmups), ring), (marked, cross)):
        # An empty line that is not clipped would count as a point in the corner, and confuse the layout.
        if chosen.size:
            axes.add_line(Line2D(positions[chosen], drawn[chosen], linestyle='', clip_on=False, **style))
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda milliseconds, _: f'{milliseconds:,g}'))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(axis='y')


def _thinned(values: NDArray, most: int) -> NDArray:
    """At most so many of the values, at equal distances, with the first and the last."""
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).round().astype(np.int64)]
