"""`tf_cnn_benchmarks.py sweep`: measures many configurations. Does not import TensorFlow."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from tf_cnn.cli.options import Arguments, Declaration, warn
from tf_cnn.cluster.environments import environment_for_runs
from tf_cnn.flags.spec import flag, specs_of
from tf_cnn.launch.host_layout import lay_out_tasks, read_hosts_flag
from tf_cnn.machine.cgroups import memory_limit
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.machine.processors import usable_cores
from tf_cnn.managers.modes import MODES
from tf_cnn.results.advice import noise_warnings
from tf_cnn.results.document import Result
from tf_cnn.results.live import can_redraw
from tf_cnn.run.parsing import read_modes_of
from tf_cnn.run.plan import check_launch
from tf_cnn.sweep.configurations import (
    Configuration,
    ExcludedCombination,
    SweepPlan,
    make_sweep_plan,
)
from tf_cnn.sweep.duration import guess_seconds
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.request import SweepSettings, add_device_cpu, override, read_grid
from tf_cnn.sweep.runner import (
    PROGRAM,
    InterleavedRuns,
    Runner,
    command_of_configuration,
    describe_outcome,
    succeeded,
)
from tf_cnn.sweep.search import BatchSizeSearch, check_search
from tf_cnn.sweep.sweep_file import find_sweep_file, list_shipped_sweeps, read_sweep_file
from tf_cnn.sweep.texts import format_excluded, format_plan, result_table
from tf_cnn.system.errors import UsageError, format_flag, plural
from tf_cnn.system.signals import SIGNALS

# The flags of `cluster` about other hosts; they may appear after --.
_HOST_FLAGS = ('hosts', 'ssh', 'remote_python', 'remote_dir')


@dataclass(frozen=True)
class SweepOptions(SweepSettings):
    """The flags of the subcommand. A sweep file may have the flags of SweepSettings, too."""

    grid: tuple[str, ...] = flag(
        (),
        'FLAG=VALUE,VALUE...: a flag of a run, or shape, and the values to compare, instead of a '
        'FILE. Use it once for each flag; sweep measures all combinations.',
    )
    output: str | None = flag(
        None,
        'New folder for the plan, results, logs and table; by default sweep-NAME-TIME in the '
        'current folder.',
        is_path=True,
    )
    resume: bool = flag(False, 'Continue an interrupted sweep: FILE is its folder.')
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
    details=f'Sweeps that come with the program: {", ".join(list_shipped_sweeps())}. '
    'docs/sweeps.md explains how to write a file.\n\n'
    'A shape is W*G+P: workers * devices of each + parameter servers. 1*2 is one process with two '
    'devices. 2*1+1 is a cluster: two workers with one device each, and a parameter server. It '
    'runs on this machine, or on other hosts if --hosts=a,b is among FLAGS. Combinations that '
    'cannot run are left out and named.\n\n'
    'Repeats are interleaved, so a drift of the machine affects all configurations alike. If a '
    'run fails, its row of the table says why, and the sweep goes on; then the exit code is 1.',
    positional='A TOML file, or the name of a sweep that comes with the program.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[SweepOptions]) -> int:
    """Returns the exit code: 1 if a run failed, else 0. No run has started if it raises
    UsageError.
    """
    options = arguments.options
    plan, folder = _resume_sweep(arguments) if options.resume else _plan_sweep(arguments)
    if options.dry_run:
        print(format_plan(plan, make_runs(plan, folder, Runner()).num_remaining))
        return 0
    if not options.resume:
        folder.create_for_plan(plan)
        warn(*format_excluded(plan.left_out))
    return run_plan(
        plan,
        folder,
        Runner(PROGRAM, environment_for_runs(os.environ, 'sweep'), plan.settings.timeout_secs),
    )


def _warn_if_long(plan: SweepPlan, *, has_gpu: bool) -> None:
    cores = usable_cores() or [0]
    hours = guess_seconds(plan, len(cores), has_gpu=has_gpu) / 3600
    if hours > 1:
        shorter = (
            '--num_batches=20' if 'model' in plan.columns else '--model=lenet --num_batches=300'
        )
        warn(
            f'this sweep takes at least {plural(round(hours), "hour")} on '
            f'{plural(len(cores), "core")}; to make it shorter, add: -- {shorter}'
        )


def run_plan(plan: SweepPlan, folder: Folder, runner: Runner) -> int:
    """Makes the remaining runs, prints the table, and returns the exit code: 1 if a run failed."""
    with folder.locked():
        sweep = make_runs(plan, folder, runner)
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
    """Makes the remaining runs; prints a line for each, and on a terminal a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
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
        task = bar.add_task('', total=runs.num_done + runs.num_remaining, completed=runs.num_done)
        for finished_run in runs.run():
            repeat = (
                f' (repeat {finished_run.round_number})' if finished_run.round_number > 1 else ''
            )
            line = (
                f'{finished_run.command.caption}{repeat}: '
                f'{describe_outcome(finished_run.outcome)}, in {finished_run.seconds:.0f} s'
            )
            console.print(line, soft_wrap=True)
            bar.update(task, completed=runs.num_done, total=runs.num_done + runs.num_remaining)


def _resume_sweep(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    extra_arguments = [
        f'--{name}' for name in sorted(arguments.given_flags - {'resume', 'dry_run'})
    ] + [*arguments.run_argv]
    if extra_arguments:
        raise UsageError(
            f'{extra_arguments[0]}: --resume keeps the plan of the sweep; remove it, or start a '
            'new sweep'
        )
    folder = Folder(Path(*arguments.positional))
    return folder.read_plan(), folder


def _plan_sweep(arguments: Arguments[SweepOptions]) -> tuple[SweepPlan, Folder]:
    options = arguments.options
    if bool(arguments.positional) == bool(options.grid):
        problem = (
            f'{arguments.positional[0]} and --grid'
            if arguments.positional
            else 'neither a FILE nor --grid'
        )
        raise UsageError(f'sweep: {problem}: use one of them, see sweep --help')
    flags, host_flags = split_host_flags(arguments.run_argv)
    read_modes_of(flags)
    request = (
        read_sweep_file(find_sweep_file(arguments.positional[0]))
        if arguments.positional
        else read_grid(options.grid)
    )
    names = arguments.given_flags & specs_of(SweepSettings).keys()
    request = override(request, flags, {name: getattr(options, name) for name in names})
    # Other hosts look for their own GPUs.
    has_gpu = bool(host_flags) or has_nvidia_gpu()
    if not has_gpu and (with_device := add_device_cpu(request)) is not request:
        warn('this machine has no GPU: all runs get --device=cpu')
        request = with_device
    plan = _place_on_hosts(
        make_sweep_plan(
            request,
            lambda params, is_single_process: check_launch(
                params, is_single_process=is_single_process
            ),
        ),
        host_flags,
    )
    if plan.settings.find_batch_size:
        check_search(plan, has_gpu=has_gpu, has_limit=memory_limit(Path('/')) is not None)
    if not host_flags:
        _warn_if_long(plan, has_gpu=has_gpu)
    return plan, Folder(Path(options.output or time.strftime(f'sweep-{plan.name}-%Y%m%d-%H%M%S')))


def split_host_flags(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Splits the words after -- into flags of runs, and {name: value} of the flags about hosts."""
    flags, host_flags = [], {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix('-').removeprefix('-').partition('=')
        if word.startswith('-') and name in _HOST_FLAGS:
            host_flags[name] = value if equals else next(words, '')
        else:
            flags.append(word)
    return flags, host_flags


def _place_on_hosts(plan: SweepPlan, host_flags: Mapping[str, str]) -> SweepPlan:
    """Returns the plan with every cluster on other hosts; leaves out what does not fit there."""
    if not host_flags:
        return plan
    if 'hosts' not in host_flags:
        name, value = next(iter(host_flags.items()))
        raise UsageError(f'{format_flag(name, value)}: it needs other hosts; add --hosts')
    configurations, left_out = [], [*plan.left_out]
    for configuration in plan.configurations:
        try:
            hosts = _select_hosts(configuration, host_flags['hosts'])
            launch = tuple(
                format_flag(name, value) for name, value in {**host_flags, 'hosts': hosts}.items()
            )
            configurations.append(replace(configuration, launch=launch))
        except UsageError as error:
            left_out.append(ExcludedCombination(configuration.varied, str(error)))
    if not configurations:
        raise UsageError(left_out[-1].reason)
    return replace(plan, configurations=tuple(configurations), left_out=tuple(left_out))


def _select_hosts(configuration: Configuration, hosts: str) -> str:
    """Returns the first hosts with slots for all workers, and the hosts without slots."""
    slots = read_hosts_flag(hosts)
    if not configuration.in_cluster:
        raise UsageError(
            f'{format_flag("hosts", hosts)}: it runs in one process, which a sweep starts here; '
            'remove --hosts'
        )
    num_unplaced, entries = configuration.shape.workers, []
    for entry, count in zip(hosts.split(','), slots.values(), strict=True):
        if num_unplaced > 0 or count == 0:
            entries.append(entry)
        num_unplaced -= 1 if count is None else count
    selected_hosts = ','.join(entries)
    controllers = int(MODES[configuration.variable_update].has_controller)
    lay_out_tasks(
        read_hosts_flag(selected_hosts),
        format_flag('hosts', hosts),
        configuration.shape.workers,
        configuration.shape.num_ps,
        controllers,
    )
    return selected_hosts
