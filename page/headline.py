"""The figures at the top of the report: what its reader wants to know first. Does not import TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from errors import counted
from page.rows import ReportRow, Summary, number

_MOST_WORKS = 6


@dataclass(frozen=True)
class Stat:
    """A figure: what it is, its value and unit, and a line that explains it."""

    name: str
    value: str
    unit: str
    note: str


def headline_stats(summary: Summary) -> list[Stat]:
    """For one work: the fastest setting, its speed-up and scaling. For several: the fastest setting of each."""
    works = list(dict.fromkeys(row.work for row in summary.shown))
    if len(works) == 1 and len(summary.shown) > 1:
        stats = _of_settings(summary)
    elif len(works) == 1:
        stats = _of_one(summary.shown[0])
    else:
        best = [max((row for row in summary.shown if row.work == work), key=lambda row: row.rate) for work in works]
        stats = [
            Stat(summary.name_of(row.work), number(row.rate), 'images/sec', row.label) for row in best[:_MOST_WORKS]
        ]
    return stats if len(summary.rows) == 1 and stats else [*stats, _of_counts(summary)]


def _of_settings(summary: Summary) -> list[Stat]:
    best = max(summary.shown, key=lambda row: row.rate)
    base = summary.base_of(best) or best
    of_folder = ' of its folder' if summary.has_folders else ''
    stats = [Stat('Fastest', number(best.rate), 'images/sec', best.label)]
    if best is base:
        return stats
    stats.append(
        Stat('Speed-up', f'{best.rate / base.rate:.2f}', 'times', f'against {base.label}, the first row{of_folder}')
    )
    devices = best.runs[0].num_devices / base.runs[0].num_devices
    if devices > 1:
        counts = f'{best.runs[0].num_devices} devices instead of {base.runs[0].num_devices}'
        stats.append(Stat('Of ideal scaling', f'{100 * best.rate / base.rate / devices:.0f}', '%', counts))
    return stats


def _of_one(row: ReportRow) -> list[Stat]:
    stats = [Stat('Throughput', number(row.rate), 'images/sec', row.label)]
    timed = np.concatenate([run.timed for run in row.runs])
    if timed.size:
        median, slowest = 1000 * float(np.median(timed)), 1000 * float(np.percentile(timed, 99))
        stats.append(Stat('Step', number(median, 3), 'ms', f'median; 99 % take at most {number(slowest, 3)} ms'))
    first = _mean([run.first_step for run in row.runs if run.first_step is not None])
    if first:
        timed_after = _mean([sum(run.phases.values()) for run in row.runs if run.phases])
        note = 'from the start of the program until the first step was done'
        if timed_after:
            note += f'; with all warm-up steps {number(timed_after, 3)} s'
        stats.append(Stat('First step after', number(first, 3), 's', note))
    if share := row.share_of_peak:
        stats.append(Stat('Share of the peak', number(100 * share, 3), '%', 'of the FLOP/s that this machine reached'))
    if joules := row.joules_per_image:
        stats.append(Stat('Energy', number(joules, 3), 'J per image', 'of the whole chips of this host'))
    if seconds := row.seconds_to_goal:
        reached = sum(goal.is_reached for goal in row.goals)
        note = f'top-1 {row.goals[0].wanted:g}, reached by {reached} of {counted(len(row.runs), "run")}'
        stats.append(Stat('Time to accuracy', number(seconds, 3), 's', note))
    return stats


def _of_counts(summary: Summary) -> Stat:
    complete = sum(row.status == 'complete' for row in summary.rows)
    num_runs = len(summary.runs)
    num_machines = len({run.machine for run in summary.runs})
    notes = [f'{counted(num_runs, "run")} on {counted(num_machines, "machine")}'] if num_runs else []
    for status in ('incomplete', 'failed'):
        count = sum(row.status == status for row in summary.rows)
        notes += [f'{count} {status}'] if count else []
    return Stat('Measured', str(complete), 'setting' if complete == 1 else 'settings', ', '.join(notes))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
