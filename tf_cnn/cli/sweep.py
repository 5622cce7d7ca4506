"""`tf_cnn_benchmarks.py sweep`: measures many configurations, prints plan and table. Never imports
TensorFlow.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from tf_cnn.cli.options import Arguments, Declaration, warn
from tf_cnn.cluster.environments import environment_of_runs
from tf_cnn.flags.spec import flag, specs_of
from tf_cnn.launch.roster import lay_out, read_hosts_flag
from tf_cnn.machine.cgroups import memory_limit
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.machine.processors import usable_cores
from tf_cnn.managers.modes import MODES
from tf_cnn.params.parsing import read_modes_of
from tf_cnn.planning.make_plan import check_launch
from tf_cnn.results.advice import doubts
from tf_cnn.results.document import Result
from tf_cnn.results.live import can_redraw
from tf_cnn.sweep.configurations import Configuration, LeftOut, SweepPlan, make_sweep_plan
from tf_cnn.sweep.duration import guess_seconds
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.request import Settings, override, read_grid, with_device_cpu
from tf_cnn.sweep.runner import PROGRAM, Rounds, Starter, contestant_of, describe, succeeded
from tf_cnn.sweep.search import Search, check_search
from tf_cnn.sweep.sweep_file import find_file, read_sweep_file, shipped
from tf_cnn.sweep.texts import format_left_out, format_plan, result_table
from tf_cnn.system.errors import UsageError, format_flag, plural
from tf_cnn.system.signals import SIGNALS

# The flags of `cluster` about other hosts, which may stand among those after --.
_HOST_FLAGS = ('hosts', 'ssh', 'remote_python', 'remote_dir')


@dataclass(frozen=True)
class SweepOptions(Settings):
    """The flags of the subcommand. Those of Settings may also stand in a sweep file."""

    grid: tuple[str, ...] = flag(
        (),
        'FLAG=VALUE,VALUE...: a flag of a run, or shape, and the values to compare, instead of a '
        'FILE. Give it once for each flag; all combinations are measured.',
    )
    output: str | None = flag(
        None,
        'New folder for the plan, results, logs and table; by default sweep-NAME-TIME in the '
        'current one.',
        is_path=True,
    )
    resume: bool = flag(False, 'Continue a sweep that was interrupted: FILE is its folder.')
    dry_run: bool = flag(False, 'List the configurations and their commands; run nothing.')


DECLARATION = Declaration(
    'sweep',
    SweepOptions,
    examples=(
        'batch_sizes -- --model=resnet50',
        "--grid='--batch_size=32,64' --grid='--shape=1*1,1*2' --repeats=3 -- --model=lenet "
        '--device=cpu',
        'exchange -- --hosts=node1,node2',
        '--resume sweep-batch_sizes-20261122-080000',
    ),
    details=f'Sweeps that come with the program: {", ".join(shipped())}. docs/sweeps.md '
    'explains how to write a file.\n\n'
    'A shape is W*G+P: workers * devices of each + parameter servers. 1*2 is one process with two '
    'devices, 2*1+1 two workers with one device each and a parameter server, which `cluster` '
    'starts on this machine, or on other hosts if --hosts=a,b is among FLAGS. Combinations that '
    'cannot run are left out and named.\n\n'
    'Repeats are interleaved, so that a drift of the machine hits all configurations alike. A run '
    'that fails is a row of the table, and the sweep goes on; then the exit code is 1.',
    positional='A TOML file, or the name of a sweep that comes with the program.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[SweepOptions]) -> int:
    """Returns the exit code: 1 if a run failed, else 0. After a UsageError, nothing has been
    started.
    """
    options = arguments.options
    plan, folder = _resumed(arguments) if options.resume else _planned(arguments)
    if options.dry_run:
        print(format_plan(plan, runs_of(plan, folder, Starter()).num_left))
        return 0
    if not options.resume:
        folder.create(plan)
        warn(*format_left_out(plan.left_out))
    return run_plan(
        plan,
        folder,
        Starter(PROGRAM, environment_of_runs(os.environ, 'sweep'), plan.settings.timeout_secs),
    )


def _warn_of_hours(plan: SweepPlan, *, has_gpu: bool) -> None:
    cores = usable_cores() or [0]
    hours = guess_seconds(plan, len(cores), has_gpu=has_gpu) / 3600
    if hours > 1:
        shorter = (
            '--num_batches=20' if 'model' in plan.columns else '--model=lenet --num_batches=300'
        )
        warn(
            f'this sweep takes at least {plural(round(hours), "hour")} on '
            f'{plural(len(cores), "core")}; a shorter one ends with: -- {shorter}'
        )


def run_plan(plan: SweepPlan, folder: Folder, starter: Starter) -> int:
    """Makes the runs that are left, prints the table, and returns the exit code: 1 if a run failed,
    else 0.
    """
    with folder.locked():
        sweep = runs_of(plan, folder, starter)
        try:
            with SIGNALS.storing():
                show_progress(sweep, sys.stderr)
        except KeyboardInterrupt:
            done = f'{sweep.num_done} of {sweep.num_done + sweep.num_left}'
            print(f'{done} done; continue with: {folder.resume_command}', file=sys.stderr)
            raise
        runs = [
            run for found in sweep.outcomes.values() for run in found if isinstance(run, Result)
        ]
        lines = doubts(runs)
        table = '\n'.join(
            [result_table(plan, sweep.outcomes).as_markdown(), *([''] if lines else []), *lines]
        )
        try:
            # Print it before it is written, since the disk may be full.
            print(table, flush=True)
        finally:
            folder.write(folder.path / 'table.md', table)
    print(f'The table, results and logs are in {folder.path}', file=sys.stderr)
    return int(not all(found and all(map(succeeded, found)) for found in sweep.outcomes.values()))


def runs_of(plan: SweepPlan, folder: Folder, starter: Starter) -> Rounds | Search:
    if plan.settings.find_batch_size:
        return Search(plan, folder, starter)
    return Rounds(
        [*map(contestant_of, plan.configurations)], plan.settings.repeats, folder, starter
    )


def show_progress(runs: Rounds | Search, stream: TextIO) -> None:
    """Makes the runs that are left; prints a line for each, and on a terminal a bar below them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=stream, markup=False, highlight=False)
    # It is drawn rarely, since that takes time from the cores under measurement.
    bar = Progress(
        *columns,
        console=console,
        refresh_per_second=1,
        transient=True,
        disable=not can_redraw(stream),
    )
    with bar:
        task = bar.add_task('', total=runs.num_done + runs.num_left, completed=runs.num_done)
        for turn in runs.run():
            repeat = f' (repeat {turn.number})' if turn.number > 1 else ''
            line = (
                f'{turn.contestant.caption}{repeat}: {describe(turn.outcome)}, in '
                f'{turn.seconds:.0f} s'
            )
            console.print(line, soft_wrap=True)
            bar.update(task, completed=runs.num_done, total=runs.num_done + runs.num_left)


def _resumed(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    others = [f'--{name}' for name in sorted(arguments.given - {'resume', 'dry_run'})] + [
        *arguments.rest
    ]
    if others:
        raise UsageError(
            f'{others[0]}: a sweep that continues keeps its plan; leave it out, or start a new '
            'sweep'
        )
    folder = Folder(Path(*arguments.positional))
    return folder.read_plan(), folder


def _planned(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    options = arguments.options
    if bool(arguments.positional) == bool(options.grid):
        what = (
            f'{arguments.positional[0]} and --grid'
            if arguments.positional
            else 'neither a FILE nor --grid'
        )
        raise UsageError(f'sweep: {what}: write one of them, see sweep --help')
    flags, of_hosts = split_hosts(arguments.rest)
    read_modes_of(flags)
    request = (
        read_sweep_file(find_file(arguments.positional[0]))
        if arguments.positional
        else read_grid(options.grid)
    )
    names = arguments.given & specs_of(Settings).keys()
    request = override(request, flags, {name: getattr(options, name) for name in names})
    # Other hosts look for their own GPUs.
    has_gpu = bool(of_hosts) or has_nvidia_gpu()
    if not has_gpu and (with_device := with_device_cpu(request)) is not request:
        warn('this machine has no GPU: all runs get --device=cpu')
        request = with_device
    plan = _on_hosts(
        make_sweep_plan(request, lambda params, alone: check_launch(params, alone=alone)), of_hosts
    )
    if plan.settings.find_batch_size:
        check_search(plan, has_gpu=has_gpu, has_limit=memory_limit(Path('/')) is not None)
    if not of_hosts:
        _warn_of_hours(plan, has_gpu=has_gpu)
    return plan, Folder(Path(options.output or time.strftime(f'sweep-{plan.name}-%Y%m%d-%H%M%S')))


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
            launch = tuple(
                format_flag(name, value) for name, value in {**of_hosts, 'hosts': hosts}.items()
            )
            kept.append(replace(one, launch=launch))
        except UsageError as error:
            left_out.append(LeftOut(one.varied, str(error)))
    if not kept:
        raise UsageError(left_out[-1].reason)
    return replace(plan, configurations=tuple(kept), left_out=tuple(left_out))


def _hosts_of(one: Configuration, hosts: str) -> str:
    """Returns the hosts of a cluster: the first ones that hold its workers, and those without
    workers.
    """
    slots = read_hosts_flag(hosts)
    if not one.in_cluster:
        raise UsageError(
            f'{format_flag("hosts", hosts)}: it runs in one process, which a sweep starts here; '
            'leave --hosts out'
        )
    left, chosen = one.shape.workers, []
    for entry, count in zip(hosts.split(','), slots.values(), strict=True):
        if left > 0 or count == 0:
            chosen.append(entry)
        left -= 1 if count is None else count
    fitting = ','.join(chosen)
    controllers = int(MODES[one.variable_update].has_controller)
    lay_out(
        read_hosts_flag(fitting),
        format_flag('hosts', hosts),
        one.shape.workers,
        one.shape.num_ps,
        controllers,
    )
    return fitting
