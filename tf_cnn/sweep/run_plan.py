"""Makes the runs of a sweep, and prints their progress and the table."""

import sys
from typing import TextIO

from tf_cnn.results.advice import noise_warnings
from tf_cnn.results.document import Result
from tf_cnn.results.live import can_redraw
from tf_cnn.sweep.configurations import SweepPlan
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.runner import (
    InterleavedRuns,
    Runner,
    command_of_configuration,
    describe_outcome,
    succeeded,
)
from tf_cnn.sweep.search import BatchSizeSearch
from tf_cnn.sweep.texts import format_length, result_table
from tf_cnn.system.signals import SIGNALS


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
        lines = noise_warnings(runs)
        table = '\n'.join(
            [result_table(plan, sweep.outcomes).as_markdown(), *([''] if lines else []), *lines]
        )
        try:
            # Printed first, since the disk may be full.
            print(table, flush=True)
        finally:
            folder.write(folder.path / 'table.md', table)
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
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    caption = TextColumn(
        '{task.description}', markup=False, table_column=Column(no_wrap=True, ratio=1)
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
