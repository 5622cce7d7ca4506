"""How plots look, and how a matplotlib figure becomes part of a page. Needs the extra `report`.

Matplotlib's SVG weighs 10 to 30 kB a plot, needs no script and prints; Vega-Lite would bring some 800 kB of scripts
into every page. Text stays text and colours become CSS variables, so that plots take the page's font and its light or
dark colours. The same figure, drawn once with the light colours, is also what is saved for papers.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hardware.atomic import write_whole
from page.inline_svg import inline_svg
from page.labels import shortened

# Each colour by its role, which is also the name of its CSS variable. Contrast with the paper: text at least 4.5,
# series at least 3. Neighbours differ in lightness too, and each series has a marker and a hatch of its own.
LIGHT: Mapping[str, str] = {
    'paper': '#ffffff',
    'ink': '#191c20',
    'soft': '#555d66',
    'rule': '#dfe3e8',
    'bad': '#b3261e',
    'series-1': '#1f5fa8',
    'series-2': '#c2570c',
    'series-3': '#0b7a6f',
    'series-4': '#8a3f9e',
    'series-5': '#8c6d0a',
    'series-6': '#4d5b8c',
    'series-7': '#b02a63',
    'series-8': '#5d6b2f',
}
DARK: Mapping[str, str] = {
    'paper': '#15181c',
    'ink': '#eceff3',
    'soft': '#a5adb8',
    'rule': '#333a43',
    'bad': '#ff8a80',
    'series-1': '#77b1f5',
    'series-2': '#f79a5b',
    'series-3': '#54c7b8',
    'series-4': '#cf9ae0',
    'series-5': '#dcbb56',
    'series-6': '#a3b0e6',
    'series-7': '#f58cb4',
    'series-8': '#b5c678',
}
NUM_SERIES = 8
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', 'p')
# Straight lines only: a pattern of dots weighs 100 kB.
HATCHES = ('', '///', '\\\\\\', '|||', 'xx', '---', '++', '//')
LINES = ('-', (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))

# What all bars share. Their edge has the colour of the paper, which is also that of their hatch.
BAR: Mapping[str, Any] = {'edgecolor': LIGHT['paper'], 'linewidth': 0.5}

# Widths in CSS pixels: beside another plot on a desk, and alone on a phone. A figure has 72 of them to an inch.
WIDE, NARROW = 560, 340
_DPI = 72
_LEGEND_CHARACTERS = 34
_PNG_DPI = 216
_STYLE: dict[Any, Any] = {
    'axes.axisbelow': True,
    'axes.edgecolor': LIGHT['soft'],
    'axes.labelcolor': LIGHT['soft'],
    'axes.spines.left': False,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'axes.titlecolor': LIGHT['ink'],
    'axes.titlelocation': 'left',
    'axes.titlesize': 12,
    'axes.facecolor': 'none',
    'figure.dpi': _DPI,
    'figure.facecolor': 'none',
    'font.family': 'DejaVu Sans',
    'font.size': 11.5,
    'grid.color': LIGHT['rule'],
    'grid.linewidth': 1,
    'hatch.linewidth': 0.8,
    'legend.frameon': False,
    'legend.fontsize': 11.5,
    'legend.labelcolor': LIGHT['ink'],
    'lines.linewidth': 1.8,
    'svg.fonttype': 'none',
    'text.color': LIGHT['ink'],
    # Names of hosts and values of flags may contain dollar signs.
    'text.parse_math': False,
    'xtick.color': LIGHT['soft'],
    'xtick.major.size': 0,
    'xtick.minor.size': 0,
    'ytick.color': LIGHT['soft'],
    'ytick.labelcolor': LIGHT['ink'],
    'ytick.major.size': 0,
    'ytick.minor.size': 0,
}
_NO_METADATA: dict[str, Any] = {'Date': None, 'Creator': None, 'Format': None, 'Type': None}


@dataclass(frozen=True)
class PlotData:
    """The numbers of a plot, for those who cannot see it: the names of its columns, and rows of cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """A plot of the page.

    Attributes:
      name: of its files and its anchor. title: its heading. caption: what to see, in plain English.
      alt: what it shows, with its most important numbers. data: what is drawn.
      draw: makes the figure for a width in CSS pixels.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: PlotData
    draw: Callable[[int], Figure]

    def svg(self, width: int) -> str:
        """The plot as part of an HTML page: <svg> without fixed size, in the page's colours and font."""
        colors = {color: role for role, color in LIGHT.items()}
        return inline_svg(_saved(self._drawn(width), 'svg').decode(), f'{self.name}-{width}', self.alt, colors)

    def save(self, folder: Path) -> None:
        """Writes NAME.svg and NAME.png into a folder, in light colours.

        Raises:
          OSError: a file cannot be written.
        """
        figure = self._drawn(WIDE)
        figure.set_facecolor(LIGHT['paper'])
        for kind in ('svg', 'png'):
            write_whole(_saved(figure, kind), str(folder / f'{self.name}.{kind}'))

    def _drawn(self, width: int) -> Figure:
        with mpl.rc_context(_STYLE):
            return self.draw(width)


def series_color(number: int) -> str:
    """The colour of a series, counted from 0."""
    return LIGHT[f'series-{number % NUM_SERIES + 1}']


def new_figure(width: int, height: float) -> Figure:
    """An empty figure of this size in CSS pixels, whose parts make room for each other."""
    figure = Figure(figsize=(width / _DPI, height / _DPI), layout='constrained')
    # Its layout engine is the constrained one, which mypy cannot see.
    figure.get_layout_engine().set(w_pad=2 / _DPI, h_pad=2 / _DPI, hspace=0.07)  # type: ignore[union-attr, call-arg]
    return figure


def row_axes(width: int, labels: Sequence[str], *, legend_rows: int = 0) -> tuple[Figure, Axes, float]:
    """Axes with a horizontal row for each label, the first on top; row i is at y = i.

    On a phone the labels stand above their rows, as there is no room beside them.

    Returns:
      The figure, the axes, and the height of a bar, of 1.
    """
    is_narrow = width < WIDE
    row_height = 36 if is_narrow else 23 if len(labels) > 3 else 32
    height = len(labels) * row_height + 44 + legend_rows * 22
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    axes.set_ylim(len(labels) - 0.45, -0.75 if is_narrow else -0.6)
    axes.grid(axis='x')
    axes.spines['bottom'].set_visible(False)
    if is_narrow:
        axes.set_yticks([])
        for row, label in enumerate(labels):
            axes.annotate(
                label,
                (0, row - 0.28),
                xycoords=('axes fraction', 'data'),
                fontsize=10.5,
                va='bottom',
                annotation_clip=False,
            )
        return figure, axes, 0.42
    axes.set_yticks(range(len(labels)), labels)
    return figure, axes, 0.66


def title_facet(axes: Axes, text: str, width: int, columns: int) -> None:
    """A title above axes which are one of several in a figure, as long as there is room for it."""
    # A title with text would take part in the layout, and push axes that are narrower than it together.
    axes.set_title(' ', fontsize=10.5, pad=6)
    shown = axes.annotate(
        shortened(text, width // columns // 7), (0, 1), (0, 7), xycoords='axes fraction', textcoords='offset points',
        fontsize=10.5,
    )  # fmt: skip
    shown.set_in_layout(False)


def legend_columns(width: int, names: Sequence[str]) -> int:
    """How many of these entries of a legend stand in a line."""
    return 2 if width >= WIDE and max(map(len, names)) <= _LEGEND_CHARACTERS else 1


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], columns: int) -> None:
    """A legend under all axes."""
    if handles:
        figure.legend(
            handles, labels, loc='outside lower left', ncols=columns, handlelength=2, columnspacing=1.4, borderaxespad=0
        )


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        if kind == 'svg':
            figure.savefig(buffer, format='svg', metadata=_NO_METADATA)
        else:
            figure.savefig(buffer, format=kind, dpi=_PNG_DPI)
    return buffer.getvalue()
