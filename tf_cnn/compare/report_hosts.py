"""Draws the hosts that ran one setting, for the report. Needs the extra `report`."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from tf_cnn.compare.hosts import HostRow, make_host_rows, summarize_hosts
from tf_cnn.compare.report_plots import SERIES, SOFT, WIDTH, Plot, plot_style
from tf_cnn.compare.report_rows import Summary
from tf_cnn.compare.run_sets import make_run_set
from tf_cnn.lab.host_ratios import HostRatio

# A plot of two hosts would say less than their row of the table.
_MIN_HOSTS = 3
# Of more hosts, only those that differ or are unsteady are named.
_MAX_NAMES = 12
_POINTS_PER_INCH = 72


def describe_hosts(summary: Summary) -> tuple[list[str], list[Plot]]:
    """Returns a sentence about hosts that ran the same settings, and a plot for each setting;
    nothing for fewer than three machines.
    """
    # Folders of a single machine are not hosts.
    if len({run.machine['fingerprint'] for run in summary.runs}) < _MIN_HOSTS:
        return [], []
    rows = make_host_rows([make_run_set(row.source_file.folder, row.runs) for row in summary.rows])
    settings: dict[str, list[tuple[HostRow, HostRatio]]] = {}
    for row in rows:
        if row.ratio:
            settings.setdefault(row.setting, []).append((row, row.ratio))
    plotted = {name: pairs for name, pairs in settings.items() if len(pairs) >= _MIN_HOSTS}
    plots = [
        Plot(
            'hosts' if number == 1 else f'hosts-{number}',
            f'Each host against the others{setting and f": {setting}"}',
            'A dot is the rate of a host over the median of the other hosts, its line the 95 % '
            'interval, at a level that all hosts share. Hosts that differ are coloured and named.',
            f'{summarize_hosts([row for row, _ in pairs])}.',
            _draw(sorted(pairs, key=lambda pair: pair[1].value)),
        )
        for number, (setting, pairs) in enumerate(plotted.items(), start=1)
    ]
    return [f'{summarize_hosts(rows)}.'] * bool(plots), plots


def _draw(pairs: Sequence[tuple[HostRow, HostRatio]]) -> Figure:
    """Draws a line for each host, the slowest on top."""
    with plot_style():
        size = (WIDTH / _POINTS_PER_INCH, (70 + 16 * len(pairs)) / _POINTS_PER_INCH)
        figure = Figure(figsize=size, layout='constrained')
        axes = figure.subplots()
        for position, (_, ratio) in enumerate(pairs):
            color = SERIES[1] if ratio.is_significant else SOFT
            axes.plot(ratio.interval or (), (position, position), color=color)
            axes.plot(ratio.value, position, marker='o', color=color)
        # An unsteady host has a line that is cut at the edges.
        ends = [end for _, ratio in pairs if not ratio.is_unsteady for end in ratio.interval or ()]
        values = [*ends, *(ratio.value for _, ratio in pairs)]
        axes.set_xlim(0.99 * min(values), 1.01 * max(values))
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        names = [row.host * (len(pairs) <= _MAX_NAMES or row.is_notable) for row, _ in pairs]
        axes.set_yticks(range(len(pairs)), names)
        axes.grid(axis='x')
        axes.set_xlabel('rate over the median of the others')
    return figure
