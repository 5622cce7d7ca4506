"""`tf_cnn_benchmarks.py cluster`: starts a cluster. Does not import TensorFlow."""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.environments import check_alone, remove_cluster_variables
from tf_cnn.flags.spec import specs_of
from tf_cnn.lab.config import FleetOptions
from tf_cnn.launch.commands import (
    check_cluster_flags,
    choose_layout,
    format_commands,
    is_single_process,
    make_commands,
    prepare_tasks,
    warnings_of_single_writers,
)
from tf_cnn.launch.config import ClusterOptions
from tf_cnn.launch.launcher import launch
from tf_cnn.managers.modes import format_modes
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import check_launch
from tf_cnn.system.errors import UsageError, warn

# The flags of one cluster.
_FLAGS_OF_CLUSTERS = ('ps', 'workers', 'restart', 'private_network', 'dry_run', 'verbose')
# With these flags no process is started on this machine.
_FLAGS_WITHOUT_LOCAL_TASKS = ('dry_run', 'hosts', 'hostfile')
# How long a parameter server may take to exit after the workers have exited.
_PS_EXIT_SECS = 30.0


@dataclass(frozen=True)
class ClusterCommandOptions(FleetOptions, ClusterOptions):
    """The flags of one cluster, and those that measure many hosts."""


DECLARATION = Declaration(
    'cluster',
    ClusterCommandOptions,
    usage='[--flag=value ...] [-- FLAGS]',
    examples=(
        '--ps=1 --workers=2 -- --model=resnet50',
        f'--workers=4 -- --model=resnet50 {format_modes(lambda mode: mode.is_for_peers)}',
        '--hosts=node1,node2 --ps=1 -- --model=resnet50',
        '--hosts=node1,node2,node3 --each --fail_below=0.95 -- --model=resnet50',
        '--hosts=node1,node2,node3 --pairs -- --model=resnet50',
    ),
    details='FLAGS are the flags of a run; each process also gets its role and the '
    'addresses of all processes. On a machine with GPUs each worker gets --num_gpus of them; '
    'CUDA_VISIBLE_DEVICES restricts which. The standard output of worker 0 (or of the controller, '
    'if the mode has one) is the result. Warnings and errors of all processes go to standard '
    'error, after the name of the process; with --verbose all other lines, too. If a process '
    'fails, the others are stopped, and the command ends with its exit code (128 + n if signal n '
    'ended it).\n\n'
    'One worker without parameter servers is a run in one process, in any mode. With --each or '
    '--pairs such runs, or clusters of two, measure many hosts: the results come back to this '
    'machine, a host that fails is a row that says so, and then the exit code is 1.',
)


@DECLARATION.main
def main(arguments: Arguments[ClusterCommandOptions]) -> int:
    """Returns the exit code of launch(). Nothing has been started if it raises UsageError."""
    options = arguments.options
    run_flags = (*arguments.run_argv, *(['--verbose=true'] if options.verbose else []))
    if sys.platform != 'linux':
        raise UsageError(
            f'cluster: it needs Linux, and this is {sys.platform}; start each process yourself'
        )
    has_hosts = bool(options.hosts or options.hostfile)
    params = parse_argv(run_flags).params
    if role := next((name for name in params.given_flags if name in ROLE_FLAGS), None):
        raise UsageError(
            f'{params.given_flags[role]}: cluster gives each process its role and the '
            f'addresses; remove --{role}'
        )
    is_fleet = options.each or options.pairs
    for name in _FLAGS_OF_CLUSTERS if is_fleet else specs_of(FleetOptions):
        if name in arguments.given_flags:
            use = 'remove it, or --each and --pairs' if is_fleet else 'add --each or --pairs'
            raise UsageError(f'--{name}: it has no effect here; {use}')
    if options.each and options.pairs:
        raise UsageError('--pairs: it conflicts with --each; use one of them')
    if is_fleet:
        return _measure_hosts(options, run_flags)
    layout = choose_layout(options, params.variables.mode)
    # Other hosts may have other folders. Their processes check them.
    check_launch(params, is_single_process=is_single_process(layout), is_local=not has_hosts)
    if options.private_network and (
        other := next(filter(arguments.given_flags.__contains__, _FLAGS_WITHOUT_LOCAL_TASKS), None)
    ):
        raise UsageError(
            '--private_network=true: only processes on this machine can have a private network; '
            f'remove it, or --{other}'
        )
    if options.dry_run:
        print(format_commands(options, layout, run_flags), end='')
        return 0
    check_alone(os.environ, 'cluster', warn)
    environment = remove_cluster_variables(os.environ)
    with contextlib.ExitStack() as stack:
        tasks = prepare_tasks(options, layout, params, stack)
        commands = make_commands(run_flags, tasks, environment)
        check_cluster_flags(commands)
        warn(*warnings_of_single_writers(commands, params))
        return launch(
            commands,
            quiet=not params.run.verbose,
            num_restarts=options.restart,
            servers_end_secs=_PS_EXIT_SECS + params.cluster.ps_linger_secs,
        )


def _measure_hosts(options: ClusterCommandOptions, run_flags: Sequence[str]) -> int:
    """Returns the exit code of --each or --pairs: 1 if a run failed, else the comparison's."""
    # Imported here, since every process of --each and --pairs starts from this module.
    from tf_cnn.lab.against import median_of_others
    from tf_cnn.lab.conclude import conclude
    from tf_cnn.lab.links import links
    from tf_cnn.lab.losses import same_losses
    from tf_cnn.lab.rows import importance, make_rows
    from tf_cnn.lab.sides import by_host
    from tf_cnn.lab.sources import measure_hosts

    side, failed = measure_hosts(options, options, run_flags)
    hold = links(options.fail_below) if options.pairs else median_of_others
    rows = make_rows(by_host([side]), same_losses(hold))
    return conclude(sorted(rows, key=importance), options, failed)
