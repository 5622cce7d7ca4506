"""`tf_cnn_benchmarks.py sweep`: measures many configurations. Does not import TensorFlow."""

import os
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.cluster.environments import environment_for_runs
from tf_cnn.lab.folder import Folder
from tf_cnn.lab.sweep_file import list_shipped_sweeps
from tf_cnn.sweep.configurations import SweepPlan
from tf_cnn.sweep.plan_sweep import format_excluded, format_plan, plan_sweep
from tf_cnn.sweep.request import SweepOptions
from tf_cnn.sweep.run_plan import make_runs, run_plan
from tf_cnn.sweep.runner import PROGRAM, Runner
from tf_cnn.system.errors import UsageError, warn

DECLARATION = Declaration(
    'sweep',
    SweepOptions,
    usage='[FILE] [--flag=value ...] [-- FLAGS]',
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
    if options.resume:
        plan, folder = _resume_sweep(arguments)
    else:
        file = next(iter(arguments.positional), None)
        plan, folder = plan_sweep(file, options, arguments.given_flags, arguments.run_argv)
    if options.dry_run:
        num_remaining = make_runs(plan, folder, Runner()).num_remaining
        print(format_plan(plan, num_remaining))
        return 0
    if not options.resume:
        folder.create_for_plan(plan)
        warn(*format_excluded(plan.left_out))
    return run_plan(
        plan,
        folder,
        Runner(
            PROGRAM, environment_for_runs(os.environ, 'sweep', warn), plan.settings.timeout_secs
        ),
    )


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
