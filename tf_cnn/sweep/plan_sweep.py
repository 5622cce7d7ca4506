"""Makes the plan of a sweep from the arguments of the subcommand."""

import time
from collections.abc import Sequence
from pathlib import Path

from tf_cnn.flags.spec import specs_of
from tf_cnn.machine.cgroups import memory_limit
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.plan.parsing import read_modes_of
from tf_cnn.plan.plan import check_launch
from tf_cnn.sweep.config import SweepOptions
from tf_cnn.sweep.configurations import SweepPlan, make_sweep_plan
from tf_cnn.sweep.duration import format_seconds, least_seconds
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.hosts import place_on_hosts, split_host_flags
from tf_cnn.sweep.request import SweepSettings, add_device_cpu, override, read_grid
from tf_cnn.sweep.search import check_search
from tf_cnn.sweep.sweep_file import find_sweep_file, read_sweep_file
from tf_cnn.system.errors import UsageError, warn

# A sweep that takes longer gets a warning, in seconds.
_LONG_SECS = 3600.0


def _warn_if_long(plan: SweepPlan) -> None:
    seconds = least_seconds(plan)
    if seconds > _LONG_SECS:
        shorter = (
            '--num_batches=20' if 'model' in plan.columns else '--model=lenet --num_batches=300'
        )
        warn(
            f'this sweep takes at least {format_seconds(seconds)} on this machine; to make it '
            f'shorter, add: -- {shorter}'
        )


def plan_sweep(
    file: str | None, options: SweepOptions, given_flags: frozenset[str], run_argv: Sequence[str]
) -> tuple[SweepPlan, Folder]:
    """Returns the plan of a sweep, and the folder for its results, which is not yet there.

    Args:
      file: the sweep file or the name of a sweep; None with --grid.
      run_argv: the flags of all runs, and those about hosts.
    """
    if bool(file) == bool(options.grid):
        problem = f'{file} and --grid' if file else 'neither a FILE nor --grid'
        raise UsageError(f'sweep: {problem}: use one of them, see sweep --help')
    flags, host_flags = split_host_flags(run_argv)
    read_modes_of(flags)
    request = read_sweep_file(find_sweep_file(file)) if file else read_grid(options.grid)
    names = given_flags & specs_of(SweepSettings).keys()
    request = override(request, flags, {name: getattr(options, name) for name in names})
    # Other hosts look for their own GPUs.
    has_gpu = bool(host_flags) or has_nvidia_gpu()
    if not has_gpu and (with_device := add_device_cpu(request)) is not request:
        warn('this machine has no GPU: all runs get --device=cpu')
        request = with_device
    plan = place_on_hosts(
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
        _warn_if_long(plan)
    return plan, Folder(Path(options.output or time.strftime(f'sweep-{plan.name}-%Y%m%d-%H%M%S')))
