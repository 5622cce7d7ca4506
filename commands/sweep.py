"""`tf_cnn_benchmarks.py sweep`: measures many configurations, and prints their plan and a table.

Starts without TensorFlow, and never imports it.
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.environments import environment_of_runs
from commands.options import NEXT, Arguments, Declaration, Positional, Rest, join_repeated
from comparison.intervals import Estimate
from comparison.ratios import estimate
from comparison.tables import Table, TableColumn
from errors import UsageError, counted, format_warning
from hardware.gpus import has_nvidia_gpu
from params import Params
from params.spec import flag
from planning.line import check_launch
from results.document import Record
from results.repeats import as_key
from sweeps.configurations import LeftOut, SweepPlan, caption, make_plan
from sweeps.durations import estimate_seconds, format_seconds
from sweeps.folder import Folder, Outcome
from sweeps.plan_runner import make_runs
from sweeps.request import on_cpu, override, read_grid, settings_given
from sweeps.runner import PROGRAM, Starter, Sweep, describe, limits_of, succeeded
from sweeps.search import Search, check_search
from sweeps.settings import Settings
from sweeps.sweep_file import find_file, read_file, shipped

# The most combinations to list that are left out for one reason.
_MOST_SHOWN = 3
_FOUND_SIZE = 'largest batch size'
# The titles of flags whose names say too little.
_TITLES = {'batch_size': 'batch size', 'shape': 'W*G+P'}


@dataclass(frozen=True)
class SweepOptions(Settings):
    """The flags of the subcommand. Those of Settings may also stand in a sweep file."""

    grid: str | None = flag(
        None,
        'FLAG=VALUE,VALUE...: a flag of a run, or shape, and the values to compare, instead of a FILE. Give it once '
        'for each flag; all combinations are measured.',
    )
    output: str | None = flag(
        None,
        'New folder for the plan, results, logs and table; by default sweep-NAME-TIME in the current one.',
        is_path=True,
    )
    resume: bool = flag(
        False, 'Continue a sweep that was interrupted: FILE is its folder, or --output names it and FILE is as before.'
    )
    dry_run: bool = flag(False, 'List the configurations, their commands and about how long they take; run nothing.')
    list: bool = flag(False, 'List the sweeps that come with the program.')


DECLARATION = Declaration(
    'sweep',
    SweepOptions,
    'Measures many configurations, each run in fresh processes, and prints one table.',
    examples=(
        'batch_sizes -- --model=resnet50',
        "--grid='--batch_size=32,64' --grid='--shape=1*1,1*2' --repeats=3 -- --model=lenet --device=cpu",
        '--resume sweep-batch_sizes-20261122-080000',
    ),
    details=f'Sweeps that come with the program: {", ".join(shipped())}. docs/sweeps.md explains how to write a file.'
    '\n\n'
    'A shape is W*G+P: workers * devices of each + parameter servers. 1*2 is one process with two devices, 2*1+1 two '
    'workers with one device each and a parameter server, which `cluster` starts on this machine. Combinations that '
    'cannot run are left out and named.'
    '\n\n'
    'Repeats are interleaved, so that a drift of the machine hits all configurations alike. A run that fails is a row '
    'of the table, and the sweep goes on; then the exit code is 1.',
    positional=Positional(
        'FILE', 'A TOML file, or the name of a sweep that comes with the program.', at_least=0, is_path=True
    ),
    rest=Rest('FLAGS', 'the flags of all runs'),
)


def main(argv: Sequence[str]) -> int:
    """Runs `sweep` with the arguments in argv; returns the exit code: 1 if a run failed, else 0.

    Raises:
      UsageError: an argument or the file is wrong, or the folder is taken; nothing has been started then.
      RunError: the disk is full, or fails.
    """
    return DECLARATION.run(join_repeated(argv, 'grid'), _sweep)


def _sweep(arguments: Arguments[SweepOptions]) -> int:
    options = arguments.options
    if options.list:
        _print_shipped()
        return 0
    plan, folder = _resumed(arguments) if _names_a_folder(arguments) else _planned(arguments)
    starter = Starter(PROGRAM, environment=environment_of_runs(os.environ, 'sweep'), limits=limits_of(plan.settings))
    if options.dry_run:
        _print_plan(plan, folder)
        return 0
    if not options.resume:
        folder.create(plan)
        for line in format_left_out(plan.left_out):
            print(format_warning(line), file=sys.stderr)
    return run_plan(plan, folder, starter)


def run_plan(plan: SweepPlan, folder: Folder, starter: Starter) -> int:
    """Makes the runs that are left, prints the table, and returns the exit code: 1 if a run failed, else 0.

    Raises:
      UsageError: another sweep is running in the folder.
      RunError: the disk is full, or fails.
    """

    def show(outcomes: Mapping[str, Sequence[Outcome]]) -> bool:
        columns, rows = rows_of(plan, outcomes)
        table = format_results(columns, rows)
        try:
            # Print it before it is written, since the disk may be full.
            print(table, flush=True)
        finally:
            folder.write(folder.path / 'table.md', table)
        return any(row.problem for row in rows)

    return make_runs(plan, folder, starter, show)


def _names_a_folder(arguments: Arguments[SweepOptions]) -> bool:
    return arguments.options.resume and bool(arguments.positional) and Path(arguments.positional[0]).is_dir()


def _resumed(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    """Returns the plan in the folder that was given instead of a file, and the folder."""
    folder = Folder(Path(arguments.positional[0]))
    others = sorted(arguments.given - {'resume', 'dry_run'}) or (['flags after --'] if arguments.rest else [])
    if others:
        what = ', '.join(name if ' ' in name else f'--{name}' for name in others)
        raise UsageError(f'{what}: a sweep that continues keeps its plan; leave it out, or start a new sweep')
    return folder.read_plan(), folder


def _planned(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    """Returns the plan that the file (or --grid) and the flags describe, and the folder for its results."""
    options = arguments.options
    if bool(arguments.positional) == bool(options.grid):
        what = f'{arguments.positional[0]} and --grid' if arguments.positional else 'neither a FILE nor --grid'
        raise UsageError(f'sweep: {what}: write one of them, see sweep --list and sweep --help')
    if options.resume and not options.output:
        raise UsageError('--resume: it needs the folder of the sweep; write sweep --resume DIR')
    if arguments.positional:
        name = arguments.positional[0]
        request = read_file(find_file(name), name)
    else:
        request = read_grid((options.grid or '').split(NEXT))
    request = override(request, arguments.rest, settings_given(options, arguments.given))
    gpu = has_nvidia_gpu()
    if not gpu and (with_device := on_cpu(request)) is not request:
        print(format_warning('this machine has no GPU: all runs get --device=cpu'), file=sys.stderr)
        request = with_device
    plan = make_plan(request, _check, has_gpu=gpu)
    if plan.settings.find_batch_size:
        check_search(plan, has_gpu=gpu)
    folder = Folder(Path(options.output or time.strftime(f'sweep-{plan.name}-%Y%m%d-%H%M%S')))
    if options.resume:
        folder.check_plan(plan)
    return plan, folder


def _check(params: Params, alone: bool) -> None:
    check_launch(params, alone=alone)


def _print_plan(plan: SweepPlan, folder: Folder) -> None:
    if plan.settings.find_batch_size:
        print(format_plan(plan, Search(plan, folder, Starter()).num_left, None, ''))
        return
    sweep = Sweep(plan, folder)
    seconds, basis = estimate_seconds(sweep.left(), sweep.seconds, has_gpu=has_nvidia_gpu())
    print(format_plan(plan, sweep.num_left, seconds, basis))


def _print_shipped() -> None:
    for name, path in shipped().items():
        print(f'{name:16}{read_file(path).title}')


@dataclass(frozen=True)
class SweepRow:
    """A configuration in the table of a sweep.

    Attributes:
      varied: the text of each flag that differs between rows, and of the shape.
      estimate: the rate of the complete runs, None if there are none.
      problem: why runs are missing, or None.
      work: a key of the work that its runs did; only rows with equal keys are compared.
    """

    varied: Mapping[str, str]
    estimate: Estimate | None = None
    problem: str | None = None
    work: str = ''


def format_plan(plan: SweepPlan, num_left: int, seconds: float | None, basis: str) -> str:
    """Formats the lines of a dry run.

    Args:
      plan: the plan.
      num_left: the most runs that are still to be made.
      seconds: how long these will take, None if unknown.
      basis: the basis of that estimate, in words.
    """
    count = len(plan.configurations)
    if plan.settings.find_batch_size:
        runs = f'the largest batch size of {counted(num_left, "configuration")} is to be found'
    else:
        repeats = plan.settings.num_repeats
        at_most = 'at most ' if plan.settings.until_interval else ''
        runs = f'{counted(count, "configuration")}, {at_most}{counted(repeats, "run")} of each; {num_left} to be made'
    lines = [f'{plan.title}: {runs}']
    width = len(str(count))
    for number, one in enumerate(plan.configurations, start=1):
        lines.append(f'  {number:{width}}. {one.caption}')
        lines.append(f'  {"":{width}}  {shlex.join(["tf_cnn_benchmarks", *one.command()])}')
    lines += format_left_out(plan.left_out)
    if seconds is not None:
        lines.append(f'about {format_seconds(seconds)} ({basis})')
    return '\n'.join(lines)


def format_left_out(left_out: Sequence[LeftOut]) -> list[str]:
    """Formats one line for each reason why combinations are not measured."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(caption(one.varied))
    lines = []
    for reason, captions in by_reason.items():
        shown = captions[:_MOST_SHOWN] + (
            [f'{len(captions) - _MOST_SHOWN} more'] if len(captions) > _MOST_SHOWN else []
        )
        lines.append(f'left out {counted(len(captions), "combination")}: {reason} ({"; ".join(shown)})')
    return lines


def rows_of(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> tuple[list[str], list[SweepRow]]:
    """Returns the columns and the rows of the table of results, in the order of the plan."""
    rows = []
    for one in plan.configurations:
        found = outcomes[one.id]
        records = [outcome for outcome in found if isinstance(outcome, Record) and outcome.is_complete]
        failed = next((outcome for outcome in found if not succeeded(outcome)), None)
        problem = describe(failed) if failed else (None if found else 'not run')
        varied = dict(one.varied)
        if plan.settings.find_batch_size and records and isinstance(found[-1], Record):
            varied[_FOUND_SIZE] = str(found[-1].run['batch_size'])
        work = as_key(records[0].work) if records else ''
        rows.append(SweepRow(varied, estimate(records) if records else None, problem, work))
    columns = [*plan.columns, *([_FOUND_SIZE] if plan.settings.find_batch_size else [])]
    return columns, rows


def format_results(columns: Sequence[str], rows: Sequence[SweepRow]) -> str:
    """Formats the table of configurations in Markdown with aligned columns.

    The columns are the values that differ between rows, images/sec, its 95 % interval if there are repeats, the
    speed-up over the first row of the same work that has a rate, and problems if there are any.
    """
    bases = {row.work: row.estimate.images_per_second for row in reversed(rows) if row.estimate}
    has_intervals = any(row.estimate and row.estimate.num_runs > 1 for row in rows)
    has_problems = any(row.problem for row in rows)
    numbers = ['images/sec', *(['95 % interval', 'runs'] if has_intervals else []), 'speed-up']
    titles = [
        *(TableColumn(_TITLES.get(name, name)) for name in columns),
        *(TableColumn(title, is_number=True) for title in numbers),
        *([TableColumn('status')] if has_problems else []),
    ]
    cells = []
    for row in rows:
        found = row.estimate
        rate = found.images_per_second if found else None
        cells.append(
            [
                *(row.varied.get(name, '') for name in columns),
                '' if rate is None else f'{rate:.2f}',
                *([_interval(found), str(found.num_runs if found else 0)] if has_intervals else []),
                '' if rate is None else f'{rate / bases[row.work]:.2f}',
                *([row.problem or 'ok'] if has_problems else []),
            ]
        )
    return Table(titles, cells).as_markdown()


def _interval(found: Estimate | None) -> str:
    return f'{found.interval[0]:.2f} to {found.interval[1]:.2f}' if found and found.interval else ''
