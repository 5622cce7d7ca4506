"""`tf_cnn_benchmarks.py sweep`: measures many configurations, prints plan and table. Never imports TensorFlow."""

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from cluster.environments import environment_of_runs
from cluster.roster import lay_out, read_hosts_flag
from cluster.signals import Interrupts
from commands.options import Arguments, Declaration, Positional, Rest
from comparison.intervals import Estimate
from comparison.ratios import estimate
from comparison.tables import Table, TableColumn
from errors import UsageError, format_flag, format_warning, plural
from machine.gpus import has_nvidia_gpu
from params import Params
from params.modes import MODES
from params.spec import flag
from planning.make_plan import check_launch
from results.document import Record
from results.live import can_redraw
from results.repeats import as_key
from sweeps.configurations import Configuration, LeftOut, SweepPlan, caption, make_sweep_plan
from sweeps.folder import Folder, Outcome
from sweeps.limited_process import Limits
from sweeps.request import override, read_grid, settings_given, with_device_cpu
from sweeps.runner import PROGRAM, Rounds, Starter, contestant_of, describe, succeeded
from sweeps.search import Search, check_search
from sweeps.settings import Settings
from sweeps.sweep_file import find_file, read_sweep_file, shipped

# The most combinations to list that are left out for one reason.
_MOST_SHOWN = 3
_FOUND_SIZE = 'largest batch size'
# The titles of flags whose names say too little.
_TITLES = {'batch_size': 'batch size', 'exchange_bytes': 'bytes', 'shape': 'W*G+P'}
# What docs/sweeps.md says about exchanges alone.
_EXCHANGE_TITLES = ('ms', 'algbw GB/s', 'busbw GB/s')
# The flags of `cluster` about other hosts, which may stand among those after --.
_HOST_FLAGS = ('hosts', 'ssh', 'remote_python', 'remote_dir', 'interface')


@dataclass(frozen=True)
class SweepOptions(Settings):
    """The flags of the subcommand. Those of Settings may also stand in a sweep file."""

    grid: tuple[str, ...] = flag(
        (),
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
    dry_run: bool = flag(False, 'List the configurations and their commands; run nothing.')
    list: bool = flag(False, 'List the sweeps that come with the program.')


DECLARATION = Declaration(
    'sweep',
    SweepOptions,
    'Measures many configurations, each run in fresh processes, and prints one table.',
    examples=(
        'batch_sizes -- --model=resnet50',
        "--grid='--batch_size=32,64' --grid='--shape=1*1,1*2' --repeats=3 -- --model=lenet --device=cpu",
        'exchange -- --hosts=node1,node2',
        '--resume sweep-batch_sizes-20261122-080000',
    ),
    details=f'Sweeps that come with the program: {", ".join(shipped())}. docs/sweeps.md explains how to write a file.'
    '\n\n'
    'A shape is W*G+P: workers * devices of each + parameter servers. 1*2 is one process with two devices, 2*1+1 two '
    'workers with one device each and a parameter server, which `cluster` starts on this machine, or on other hosts if '
    '--hosts=a,b is among FLAGS. Combinations that cannot run are left out and named.'
    '\n\n'
    'Repeats are interleaved, so that a drift of the machine hits all configurations alike. A run that fails is a row '
    'of the table, and the sweep goes on; then the exit code is 1.',
    positional=Positional(
        'FILE', 'A TOML file, or the name of a sweep that comes with the program.', at_least=0, is_path=True
    ),
    rest=Rest('FLAGS', 'the flags of all runs'),
)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 1 if a run failed, else 0. After a UsageError, nothing has been started."""
    return DECLARATION.run(argv, _sweep)


def _sweep(arguments: Arguments[SweepOptions]) -> int:
    options = arguments.options
    if options.list:
        _print_shipped()
        return 0
    plan, folder = _resumed(arguments) if _names_a_folder(arguments) else _planned(arguments)
    if options.dry_run:
        print(format_plan(plan, runs_of(plan, folder, Starter()).num_left))
        return 0
    if not options.resume:
        folder.create(plan)
        for line in format_left_out(plan.left_out):
            print(format_warning(line), file=sys.stderr)
    limits = Limits(plan.settings.timeout_secs, plan.settings.memory_bytes, plan.settings.memory_limit)
    return run_plan(plan, folder, Starter(PROGRAM, environment_of_runs(os.environ, 'sweep'), limits))


def run_plan(plan: SweepPlan, folder: Folder, starter: Starter) -> int:
    """Makes the runs that are left, prints the table, and returns the exit code: 1 if a run failed, else 0."""
    with folder.locked():
        sweep = runs_of(plan, folder, starter)
        try:
            with Interrupts().listening():
                show_progress(sweep, sys.stderr)
        except KeyboardInterrupt:
            done = f'{sweep.num_done} of {sweep.num_done + sweep.num_left}'
            print(f'{done} done; continue with: {folder.resume_command}', file=sys.stderr)
            raise
        columns, rows = table_rows(plan, sweep.outcomes)
        table = format_results(columns, rows)
        try:
            # Print it before it is written, since the disk may be full.
            print(table, flush=True)
        finally:
            folder.write(folder.path / 'table.md', table)
    print(f'The table, results and logs are in {folder.path}', file=sys.stderr)
    return int(any(row.problem for row in rows))


def runs_of(plan: SweepPlan, folder: Folder, starter: Starter) -> Rounds | Search:
    settings = plan.settings
    if settings.find_batch_size:
        return Search(plan, folder, starter)
    return Rounds([*map(contestant_of, plan.configurations)], settings.repeats, folder, starter, settings.seed)


def show_progress(runs: Rounds | Search, stream: TextIO) -> None:
    """Makes the runs that are left; prints a line for each, and on a terminal a bar below them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=stream, markup=False, highlight=False)
    # It is drawn rarely, since that takes time from the cores under measurement.
    bar = Progress(*columns, console=console, refresh_per_second=1, transient=True, disable=not can_redraw(stream))
    with bar:
        task = bar.add_task('', total=runs.num_done + runs.num_left, completed=runs.num_done)
        for turn in runs.run():
            repeat = f' (repeat {turn.number})' if isinstance(runs, Rounds) and turn.number > 1 else ''
            line = f'{turn.contestant.caption}{repeat}: {describe(turn.outcome)}, in {turn.seconds:.0f} s'
            console.print(line, soft_wrap=True)
            bar.update(task, completed=runs.num_done, total=runs.num_done + runs.num_left)


def _names_a_folder(arguments: Arguments[SweepOptions]) -> bool:
    return arguments.options.resume and bool(arguments.positional) and Path(arguments.positional[0]).is_dir()


def _resumed(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    folder = Folder(Path(arguments.positional[0]))
    others = sorted(arguments.given - {'resume', 'dry_run'}) or (['flags after --'] if arguments.rest else [])
    if others:
        what = ', '.join(name if ' ' in name else f'--{name}' for name in others)
        raise UsageError(f'{what}: a sweep that continues keeps its plan; leave it out, or start a new sweep')
    return folder.read_plan(), folder


def _planned(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    options = arguments.options
    if bool(arguments.positional) == bool(options.grid):
        what = f'{arguments.positional[0]} and --grid' if arguments.positional else 'neither a FILE nor --grid'
        raise UsageError(f'sweep: {what}: write one of them, see sweep --list and sweep --help')
    if options.resume and not options.output:
        raise UsageError('--resume: it needs the folder of the sweep; write sweep --resume DIR')
    if arguments.positional:
        name = arguments.positional[0]
        request = read_sweep_file(find_file(name), name)
    else:
        request = read_grid(options.grid)
    flags, of_hosts = split_hosts(arguments.rest)
    request = override(request, flags, settings_given(options, arguments.given))
    # Other hosts look for their own GPUs.
    gpu = bool(of_hosts) or has_nvidia_gpu()
    if not gpu and (with_device := with_device_cpu(request)) is not request:
        print(format_warning('this machine has no GPU: all runs get --device=cpu'), file=sys.stderr)
        request = with_device
    plan = _on_hosts(make_sweep_plan(request, _check), of_hosts)
    if plan.settings.find_batch_size:
        check_search(plan, has_gpu=gpu)
    folder = Folder(Path(options.output or time.strftime(f'sweep-{plan.name}-%Y%m%d-%H%M%S')))
    if options.resume:
        folder.check_plan(plan)
    return plan, folder


def split_hosts(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Splits the flags after -- into those of runs, and those of `cluster` about hosts by name."""
    flags, of_hosts = [], {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix('-').removeprefix('-').partition('=')
        if word.startswith('-') and name in _HOST_FLAGS:
            of_hosts[name] = value if equals else next(words, '')
        else:
            flags.append(word)
    return flags, of_hosts


def _on_hosts(plan: SweepPlan, of_hosts: Mapping[str, str]) -> SweepPlan:
    """Returns the plan with every cluster on other hosts; what does not fit there is left out."""
    if not of_hosts:
        return plan
    if 'hosts' not in of_hosts:
        name, value = next(iter(of_hosts.items()))
        raise UsageError(f'{format_flag(name, value)}: it is about other hosts; write --hosts, too')
    kept, left_out = [], [*plan.left_out]
    for one in plan.configurations:
        try:
            hosts = _hosts_of(one, of_hosts['hosts'])
            launch = tuple(format_flag(name, value) for name, value in {**of_hosts, 'hosts': hosts}.items())
            kept.append(replace(one, launch=launch))
        except UsageError as error:
            left_out.append(LeftOut(one.varied, str(error)))
    if not kept:
        raise UsageError(left_out[-1].reason)
    return replace(plan, configurations=tuple(kept), left_out=tuple(left_out))


def _hosts_of(one: Configuration, hosts: str) -> str:
    """Returns the hosts of a cluster: the first ones that hold its workers, and those without workers."""
    slots = read_hosts_flag(hosts)
    if not one.in_cluster:
        raise UsageError(
            f'{format_flag("hosts", hosts)}: it runs in one process, which a sweep starts here; leave --hosts out'
        )
    left, chosen = one.shape.workers, []
    for entry, count in zip(hosts.split(','), slots.values(), strict=True):
        if left > 0 or count == 0:
            chosen.append(entry)
        left -= 1 if count is None else count
    fitting = ','.join(chosen)
    controllers = int(MODES[one.variable_update].has_controller)
    lay_out(read_hosts_flag(fitting), format_flag('hosts', hosts), one.shape.workers, one.shape.num_ps, controllers)
    return fitting


def _check(params: Params, alone: bool) -> None:
    check_launch(params, alone=alone)


def _print_shipped() -> None:
    for name, path in shipped().items():
        print(f'{name:16}{read_sweep_file(path).title}')


@dataclass(frozen=True)
class SweepRow:
    """A configuration in the table of a sweep.

    Attributes:
      varied: the text of each flag that differs between rows, and of the shape.
      estimate: the rate of the complete runs, None if there are none.
      problem: why runs are missing, or None.
      work: a key of the work that its runs did; only rows with equal keys are compared.
      exchange: the cells of an exchange alone; None of other runs.
    """

    varied: Mapping[str, str]
    estimate: Estimate | None = None
    problem: str | None = None
    work: str = ''
    exchange: Sequence[str] | None = None


def format_plan(plan: SweepPlan, num_left: int) -> str:
    count = len(plan.configurations)
    if plan.settings.find_batch_size:
        runs = f'the largest batch size of {plural(num_left, "configuration")} is to be found'
    else:
        repeats = plan.settings.repeats
        runs = f'{plural(count, "configuration")}, {plural(repeats, "run")} of each; {num_left} to be made'
    lines = [f'{plan.title}: {runs}']
    width = len(str(count))
    for number, one in enumerate(plan.configurations, start=1):
        lines.append(f'  {number:{width}}. {one.caption}')
        lines.append(f'  {"":{width}}  {shlex.join(["tf_cnn_benchmarks", *one.command()])}')
    lines += format_left_out(plan.left_out)
    return '\n'.join(lines)


def format_left_out(left_out: Sequence[LeftOut]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(caption(one.varied))
    lines = []
    for reason, captions in by_reason.items():
        shown = captions[:_MOST_SHOWN] + (
            [f'{len(captions) - _MOST_SHOWN} more'] if len(captions) > _MOST_SHOWN else []
        )
        lines.append(f'left out {plural(len(captions), "combination")}: {reason} ({"; ".join(shown)})')
    return lines


def table_rows(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> tuple[list[str], list[SweepRow]]:
    rows = []
    for one in plan.configurations:
        found = outcomes[one.id]
        records = [outcome for outcome in found if isinstance(outcome, Record) and outcome.is_complete]
        failed = next((outcome for outcome in found if not succeeded(outcome)), None)
        problem = describe(failed) if failed else (None if found else 'not run')
        varied = dict(one.varied)
        if plan.settings.find_batch_size and records and isinstance(found[-1], Record):
            varied[_FOUND_SIZE] = str(found[-1].run.batch_size)
        work = as_key(records[0].work) if records else ''
        rows.append(
            SweepRow(varied, estimate(records) if records else None, problem, work, _exchange_cells(records) or None)
        )
    columns = [*plan.columns, *([_FOUND_SIZE] if plan.settings.find_batch_size else [])]
    return columns, rows


def _exchange_cells(records: Sequence[Record]) -> list[str]:
    """Returns the mean milliseconds of an exchange alone and its bandwidths; empty for other runs.

    algbw and busbw are defined in PERFORMANCE.md of github.com/NVIDIA/nccl-tests: the bytes of one device over the
    seconds, and this times 2 (n - 1) / n for n devices, which is what each link of a ring carries.
    """
    if not records or records[0].run.role != 'exchange-only' or not (size := records[0].gradient_bytes):
        return []
    cluster = records[0].cluster
    devices = cluster.num_workers * cluster.devices_per_worker
    steps = [seconds for record in records for seconds in record.step_seconds()]
    seconds = sum(steps) / len(steps)
    algbw = size / seconds / 1e9
    return [f'{1e3 * seconds:.3f}', f'{algbw:.4g}', f'{algbw * 2 * (devices - 1) / devices:.4g}']


def format_results(columns: Sequence[str], rows: Sequence[SweepRow]) -> str:
    """Formats the table of configurations in Markdown with aligned columns.

    The columns are the values that differ between rows, images/sec, its 95 % interval if there are repeats, the
    speed-up over the first row of the same work that has a rate, and problems if there are any. Exchanges alone have
    their seconds and bandwidths instead of images/sec.
    """
    bases = {row.work: row.estimate.images_per_second for row in reversed(rows) if row.estimate}
    has_intervals = any(row.estimate and row.estimate.num_runs > 1 for row in rows)
    has_problems = any(row.problem for row in rows)
    is_exchange = any(row.exchange for row in rows)
    numbers = ['images/sec', *(['95 % interval', 'runs'] if has_intervals else []), 'speed-up']
    numbers = [*_EXCHANGE_TITLES] if is_exchange else numbers
    titles = [
        *(TableColumn(_TITLES.get(name, name)) for name in columns),
        *(TableColumn(title, is_number=True) for title in numbers),
        *([TableColumn('status')] if has_problems else []),
    ]
    cells = []
    for row in rows:
        found = row.estimate
        rate = found.images_per_second if found else None
        measured = [
            '' if rate is None else f'{rate:.2f}',
            *([_interval(found), str(found.num_runs if found else 0)] if has_intervals else []),
            '' if rate is None else f'{rate / bases[row.work]:.2f}',
        ]
        cells.append(
            [
                *(row.varied.get(name, '') for name in columns),
                *(row.exchange or [''] * len(_EXCHANGE_TITLES) if is_exchange else measured),
                *([row.problem or 'ok'] if has_problems else []),
            ]
        )
    return Table(titles, cells).as_markdown()


def _interval(found: Estimate | None) -> str:
    return f'{found.interval[0]:.2f} to {found.interval[1]:.2f}' if found and found.interval else ''
