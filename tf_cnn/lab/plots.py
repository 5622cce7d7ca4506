"""Draws the plots of a page: rates, scaling, step times. Needs the extra `report`."""

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_cnn.lab.rows import Row, format_label, settings_with_references
from tf_cnn.lab.runs import equality_key, group
from tf_cnn.results.advice import doubtful_codes
from tf_cnn.results.tables import escape_unprintable, format_number

_INK, _SOFT = '#191c20', '#555d66'
_SERIES = ('#1f5fa8', '#c2570c', '#0b7a6f', '#8a3f9e', '#8c6d0a', '#4d5b8c', '#b02a63', '#5d6b2f')
_STYLE: dict[Any, Any] = {
    'axes.axisbelow': True,
    **{f'axes.spines.{side}': False for side in ('left', 'right', 'top')},
    'figure.dpi': 72,
    'font.size': 12,
    'grid.color': '#dfe3e8',
    'legend.frameon': False,
    'savefig.dpi': 216,
    # Text stays text, and names in the file do not change from run to run.
    'svg.fonttype': 'none',
    'svg.hashsalt': 'report',
    'text.color': _INK,
    # Names of hosts and values of flags may contain dollar signs.
    'text.parse_math': False,
}
# More do not fit on a readable page; the table has all.
_MAX_ROWS, _MAX_LINES = 12, 8
_WIDTH_INCHES, _ROW_INCHES = 5.6, 0.4


@dataclass(frozen=True)
class Plot:
    """A plot of the page; help says how to read it."""

    name: str
    title: str
    help: str
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
        with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}), warnings.catch_warnings():
            # A letter that the font lacks is a box.
            warnings.simplefilter('ignore', UserWarning)
            self.figure.savefig(buffer, format=kind, metadata=metadata, transparent=transparent)
        return buffer.getvalue()


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """Returns the plots of each work; one without enough data is omitted."""
    works = group(
        settings_with_references(rows), lambda row: equality_key([row.first.workload, row.unit])
    )
    plots = []
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        names = Counter[str]()
        for settings in works:
            model = str(settings[0].facts.get('model', 'commands'))
            names[model] += 1
            number = f'-{names[model]}' if names[model] > 1 else ''
            suffix = re.sub(r'[^\w.-]', '_', f'-{model}{number}')
            for make_plot in (_rates_plot, _scaling_plot, _steps_plot):
                if plot := make_plot(settings):
                    title = escape_unprintable(f'{plot.title} of {model}')
                    plots.append(replace(plot, name=f'{plot.name}{suffix}', title=title))
    return plots


def _rates_plot(rows: Sequence[Row]) -> Plot | None:
    """A bar for each row, a dot for each run, and the interval."""
    if len(rows) < 2:
        return None
    rows = sorted(rows, key=lambda row: -row.rate)[:_MAX_ROWS]
    figure, axes = _rows_figure(rows, [row.format_rate(row.rate) for row in rows])
    for position, row in enumerate(rows):
        axes.barh(position, row.in_unit(row.rate), 0.42, color=_SERIES[0])
        if row.interval:
            axes.plot(row.interval, (position, position), color=_INK)
        doubtful = {id(run) for run in row.documents if doubtful_codes(run)}
        for run in row.runs:
            fill = 'white' if id(run) in doubtful else _INK
            rate = row.in_unit(run.images_per_second)
            axes.plot(rate, position, 'o', color=_INK, markerfacecolor=fill)
    axes.set_xlabel(rows[0].unit.removeprefix('rates in '))
    better = 'Shorter' if rows[0].is_time else 'Longer'
    text = (
        f'{better} is faster. A line is the 95 % interval of three or more runs, a dot a run, '
        'hollow if it was disturbed or too short.'
    )
    return Plot('rates', 'Rates', text, figure)


def _scaling_plot(rows: Sequence[Row]) -> Plot | None:
    """The rate over the number of devices: a line for each setting, and an ideal line."""
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        if not row.results:
            continue
        setting = {n: v for n, v in row.setting.items() if n not in ('shape', 'num_gpus', 'host')}
        line = lines.setdefault(f'{row.who} {format_label(setting)}'.strip() or 'all', {})
        devices = row.results[0].cluster.num_devices
        line[devices] = max(row.rate, line.get(devices, 0.0))
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    figure = Figure(figsize=(_WIDTH_INCHES, 4.5), layout='constrained')
    axes = figure.subplots()
    for (name, line), color in zip([*lines.items()][:_MAX_LINES], _SERIES, strict=False):
        counts = sorted(line)
        rates, label = [line[count] for count in counts], escape_unprintable(name)
        axes.plot(counts, rates, 'o-', color=color, label=label)
        ideal = [line[counts[0]] / counts[0] * count for count in counts]
        axes.plot(counts, ideal, '--', color=_SOFT, linewidth=1)
    axes.set_xscale('log', base=2)
    axes.set_yscale('log', base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter('{x:,g}')
    axes.grid()
    axes.set_xlabel('devices (W*G)')
    axes.set_ylabel('images/sec')
    figure.legend(loc='outside lower left')
    text = 'On a dashed line, each device is as fast as with the fewest devices of that setting.'
    return Plot('scaling', 'Scaling with devices', text, figure)


def _steps_plot(rows: Sequence[Row]) -> Plot | None:
    """A box of the step times of each row."""
    steps = [
        (row, seconds)
        for row in rows
        if row.results
        and (seconds := np.concatenate([run.step_seconds() for run in row.results])).size
        > len(row.results)
    ][:_MAX_ROWS]
    if not steps:
        return None
    medians = [float(np.median(seconds)) for _, seconds in steps]
    ends = [f'{format_number(1e3 * median)} ms' for median in medians]
    figure, axes = _rows_figure([row for row, _ in steps], ends)
    axes.boxplot(
        [100 * seconds / median for (_, seconds), median in zip(steps, medians, strict=True)],
        positions=range(len(steps)),
        orientation='horizontal',
        whis=(5, 95),
        widths=0.42,
        showfliers=False,
        manage_ticks=False,
    )
    axes.set_xlabel('step time in % of the median')
    text = 'A narrow box is a steady setting: half of all timed steps lie in it, 90 % on the line.'
    return Plot('steps', 'Step times', text, figure)


def _rows_figure(rows: Sequence[Row], ends: Sequence[str]) -> tuple[Figure, Axes]:
    """Makes a figure with a row for each setting, the first on top; `ends` are at the right."""
    size = (_WIDTH_INCHES, 0.8 + _ROW_INCHES * len(rows))
    figure = Figure(figsize=size, layout='constrained')
    axes = figure.subplots()
    axes.set_ylim(len(rows) - 0.5, -0.5)
    names = [row.name or str(row.facts.get('shape', '')) for row in rows]
    axes.set_yticks(range(len(rows)), [*map(escape_unprintable, names)])
    axes.xaxis.set_major_formatter('{x:,g}')
    for position, end in enumerate(ends):
        axes.text(1.01, position, end, transform=axes.get_yaxis_transform(), va='center')
    return figure, axes
