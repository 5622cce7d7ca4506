"""Makes the runs of a sweep, and prints their progress and the table."""

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from tf_cnn.compare.measured import Measured, find_baselines
from tf_cnn.lab.differences import format_differences, machine_differences
from tf_cnn.lab.folder import Folder, Outcome
from tf_cnn.lab.repeats import group_repeats
from tf_cnn.results.advice import DOUBTFUL, doubt_mark, noise_warnings
from tf_cnn.results.document import Result
from tf_cnn.results.live import can_redraw
from tf_cnn.results.tables import Column, Table, format_interval, format_known
from tf_cnn.sweep.configurations import Configuration, SweepPlan
from tf_cnn.sweep.plan_sweep import format_length
from tf_cnn.sweep.runner import (
    InterleavedRuns,
    Runner,
    command_of_configuration,
    describe_outcome,
    succeeded,
)
from tf_cnn.sweep.search import BatchSizeSearch
from tf_cnn.system.errors import plural
from tf_cnn.system.signals import SIGNALS

# Column titles of flags; other flags have their names.
_TITLES = {'batch_size': 'batch size', 'exchange_bytes': 'bytes', 'shape': 'W*G+P'}


def run_plan(plan: SweepPlan, folder: Folder, runner: Runner) -> int:
    """Makes the remaining runs, prints the table, and returns the exit code: 1 if a run failed."""
    with folder.locked():
        sweep = make_runs(plan, folder, runner)
        if sweep.num_remaining:
            print(format_length(plan, sweep.num_remaining), file=sys.stderr)
        try:
            with SIGNALS.storing():
                run_with_progress(sweep, sys.stderr)
        except KeyboardInterrupt:
            progress = f'{sweep.num_done} of {sweep.num_done + sweep.num_remaining}'
            print(f'{progress} done; continue with: {folder.resume_command}', file=sys.stderr)
            raise
        runs = [
            run
            for outcomes in sweep.outcomes.values()
            for run in outcomes
            if isinstance(run, Result)
        ]
        warnings = noise_warnings(runs)
        table = result_table(plan, sweep.outcomes)
        notes = ''.join(f'\n{line}' for line in ['', *warnings]) if warnings else ''
        in_markdown = f'{table.as_markdown()}{notes}'
        try:
            # Printed first, since the disk may be full. Programs read Markdown; a terminal may be
            # too narrow for it.
            is_terminal = sys.stdout.isatty()
            print(f'{table.as_text(sys.stdout)}{notes}' if is_terminal else in_markdown, flush=True)
        finally:
            folder.write(folder.path / 'table.md', in_markdown)
    print(f'The table, results and logs are in {folder.path}', file=sys.stderr)
    return int(
        not all(outcomes and all(map(succeeded, outcomes)) for outcomes in sweep.outcomes.values())
    )


def make_runs(plan: SweepPlan, folder: Folder, runner: Runner) -> InterleavedRuns | BatchSizeSearch:
    if plan.settings.find_batch_size:
        return BatchSizeSearch(plan, folder, runner)
    return InterleavedRuns(
        [*map(command_of_configuration, plan.configurations)], plan.settings.repeats, folder, runner
    )


def run_with_progress(runs: InterleavedRuns | BatchSizeSearch, stream: TextIO) -> None:
    """Makes the remaining runs; prints a line for each, and on a terminal a progress bar with the
    configuration that is running.
    """
    import rich.table
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    caption = TextColumn(
        '{task.description}', markup=False, table_column=rich.table.Column(no_wrap=True, ratio=1)
    )
    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), caption)
    console = Console(file=stream, markup=False, highlight=False)
    # Drawn rarely, since drawing takes time from the cores under measurement.
    bar = Progress(
        *columns,
        console=console,
        refresh_per_second=1,
        transient=True,
        disable=not can_redraw(stream),
    )
    with bar:
        task = bar.add_task(
            runs.next_caption,
            total=runs.num_done + runs.num_remaining,
            completed=runs.num_done,
        )
        for finished_run in runs.run():
            repeat = (
                f' (repeat {finished_run.round_number})' if finished_run.round_number > 1 else ''
            )
            line = (
                f'{finished_run.command.caption}{repeat}: '
                f'{describe_outcome(finished_run.outcome)}, in {finished_run.seconds:.0f} s'
            )
            console.print(line, soft_wrap=True)
            bar.update(
                task,
                description=runs.next_caption,
                completed=runs.num_done,
                total=runs.num_done + runs.num_remaining,
            )


@dataclass(frozen=True)
class _Row(Measured):
    """A configuration and its complete results.

    Attributes:
      status: 'ok', or why runs are missing.
      on_hosts: whether the runs were on other hosts, where each worker has its own cores.
    """

    varied: Mapping[str, str]
    status: str
    on_hosts: bool = False

    @property
    def efficiency(self) -> float | None:
        """The speed-up for each time as many devices as the baseline has."""
        if not self.on_hosts or not self.speed_up or not self.baseline:
            return None
        clusters = [row.results[0].cluster for row in (self.baseline, self)]
        before, after = (cluster.num_workers * cluster.devices_per_worker for cluster in clusters)
        return self.speed_up * before / after

    @functools.cached_property
    def exchange(self) -> tuple[float, float, float] | None:
        """The milliseconds, algbw and busbw of --exchange_only; None for other runs.

        PERFORMANCE.md of github.com/NVIDIA/nccl-tests defines both: algbw is the bytes of one
        device over the seconds; busbw is algbw times 2 (n - 1) / n for n devices, the traffic on
        each link of a ring.
        """
        first = self.results[0] if self.results else None
        if not first or first.run.role != 'exchange-only' or not first.gradient_bytes:
            return None
        devices = first.cluster.num_workers * first.cluster.devices_per_worker
        steps = [seconds for result in self.results for seconds in result.step_seconds()]
        seconds = sum(steps) / len(steps)
        algbw = first.gradient_bytes / seconds / 1e9
        return 1e3 * seconds, algbw, algbw * 2 * (devices - 1) / devices


def _flag_column(name: str) -> Column[_Row]:
    return Column(_TITLES.get(name, name), lambda row: row.varied.get(name))


_REPEAT_COLUMNS: tuple[Column[_Row], ...] = (
    Column('95 % interval', lambda row: format_interval(row.interval), is_number=True),
    Column('runs', lambda row: len(row.results), is_number=True),
)
_RATE_COLUMNS: tuple[Column[_Row], ...] = (
    Column('images/sec', lambda row: row.rate_text, is_number=True),
    *_REPEAT_COLUMNS,
    Column(
        'speed-up',
        lambda row: format_known('{:.2f}', row.speed_up),
        is_number=True,
        is_optional=True,
    ),
    Column(
        'efficiency',
        lambda row: format_known('{:.2f}', row.efficiency),
        is_number=True,
        is_optional=True,
    ),
    Column('verdict', lambda row: row.verdict, wraps=True, is_optional=True),
)
# The columns of --exchange_only, see docs/sweeps.md.
_EXCHANGE_COLUMNS: tuple[Column[_Row], ...] = (
    Column(
        'ms',
        lambda row: row.exchange and f'{doubt_mark(row.results)}{row.exchange[0]:.3f}',
        is_number=True,
    ),
    Column('algbw GB/s', lambda row: row.exchange and f'{row.exchange[1]:.4g}', is_number=True),
    Column('busbw GB/s', lambda row: row.exchange and f'{row.exchange[2]:.4g}', is_number=True),
)


def result_table(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """Makes the table of configurations.

    The columns: the values that differ between rows; images/sec; with repeats, its 95 % interval
    and the number of runs; the speed-up over the row's baseline (see find_baselines), on hosts
    also for each time as many devices; the verdict
    of `compare` on both; and the status if a row lacks runs. With --exchange_only, milliseconds and
    bandwidths replace images/sec.
    """
    rows = [
        _make_row(configuration, outcomes[configuration.id])
        for configuration in plan.configurations
    ]
    baselines = find_baselines([row for row in rows if row.runs])
    rows = [replace(row, baseline=baselines.get(id(row))) for row in rows]
    is_exchange = any(row.exchange for row in rows)
    columns = [*map(_flag_column, plan.columns)]
    if plan.settings.find_batch_size:
        columns.append(
            Column(
                'largest batch size',
                lambda row: row.results[-1].run.batch_size if row.results else None,
            )
        )
    columns += _EXCHANGE_COLUMNS if is_exchange else _RATE_COLUMNS
    if all(len(row.results) <= 1 for row in rows):
        columns = [column for column in columns if column not in _REPEAT_COLUMNS]
    columns.append(DOUBTFUL)
    if any(row.status != 'ok' for row in rows):
        columns.append(Column('status', lambda row: row.status, wraps=True))
    return Table(columns, rows)


def _make_row(configuration: Configuration, outcomes: Sequence[Outcome]) -> _Row:
    results = [
        outcome for outcome in outcomes if isinstance(outcome, Result) and outcome.is_complete
    ]
    failed = next((outcome for outcome in outcomes if not succeeded(outcome)), None)
    status = describe_outcome(failed) if failed else 'ok' if outcomes else 'not run'
    if len(groups := group_repeats(results)) > 1:
        # The sweep was resumed on another machine or under another limit: only the newest runs
        # describe the machine as it is now.
        changes = machine_differences([groups[-2][-1], groups[-1][0]])
        change_text = format_differences(changes)
        status = (
            f'{len(results) - len(groups[-1])} of {plural(len(results), "run")} left out, no '
            f'repeats: {change_text}'
        )
        results = groups[-1]
    return _Row(
        tuple(results),
        configuration.varied,
        status,
        bool(configuration.launch),
        published_speed_up=configuration.published_speed_up,
    )
