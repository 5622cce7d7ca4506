"""Makes the plan of a sweep from the arguments of the subcommand, and describes it."""

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from models.costs import list_costs
from tf_cnn.cluster.topology import Shape
from tf_cnn.flags.spec import specs_of
from tf_cnn.lab.folder import Folder
from tf_cnn.lab.sweep_file import find_sweep_file, read_sweep_file
from tf_cnn.machine.cgroups import memory_limit
from tf_cnn.machine.gpus import count_visible_gpus, has_nvidia_gpu
from tf_cnn.machine.processors import usable_cores
from tf_cnn.plan.config import NUM_BATCHES
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import parse_argv, read_modes_of
from tf_cnn.plan.plan import check_launch
from tf_cnn.sweep.configurations import ExcludedCombination, SweepPlan, caption, make_sweep_plan
from tf_cnn.sweep.hosts import place_on_hosts, split_host_flags
from tf_cnn.sweep.request import SweepOptions, SweepSettings, add_device_cpu, override, read_grid
from tf_cnn.sweep.search import check_search
from tf_cnn.system.errors import UsageError, plural, warn

# How many of the combinations that are left out for the same reason are listed.
_MAX_LISTED = 3
# A sweep that takes longer gets a warning, in seconds.
_LONG_SECS = 3600.0
# The rate of a fast processor, so the estimate is a lower bound: AVX-512 computes fp32
# convolutions at 50 to 150 GFLOP/s on a core.
_FLOPS_PER_CORE = 1.5e11
# From the start of a process to its first step: most of it is the import of TensorFlow.
_START_SECS = 4.0


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
    num_gpus = count_visible_gpus(os.environ) if has_gpu and not host_flags else None

    def check(params: Params, is_single_process: bool) -> None:
        devices = params.devices
        if num_gpus and devices.device != 'cpu' and devices.num_gpus > num_gpus:
            raise UsageError(f'{params.flag_text("num_gpus")}: {plural(num_gpus, "GPU")} here')
        check_launch(params, is_single_process=is_single_process)

    plan = place_on_hosts(make_sweep_plan(request, check), host_flags)
    if plan.settings.find_batch_size:
        check_search(plan, has_gpu=has_gpu, has_limit=memory_limit(Path('/')) is not None)
    if not host_flags and (seconds := least_seconds(plan)) > _LONG_SECS:
        shorter = (
            '--num_batches=20' if 'model' in plan.columns else '--model=lenet --num_batches=300'
        )
        warn(
            f'this sweep takes at least {format_seconds(seconds)} on this machine; to make it '
            f'shorter, add: -- {shorter}'
        )
    return plan, Folder(Path(options.output or time.strftime(f'sweep-{plan.name}-%Y%m%d-%H%M%S')))


def format_length(plan: SweepPlan, num_remaining: int) -> str:
    """Formats how many runs a sweep makes, and how long the remaining ones take at least."""
    count = len(plan.configurations)
    if plan.settings.find_batch_size:
        return (
            f'{plan.title}: the largest batch size of {plural(num_remaining, "configuration")} is '
            'to be found'
        )
    share = num_remaining / (count * plan.settings.repeats)
    return (
        f'{plan.title}: {plural(count, "configuration")}, '
        f'{plural(plan.settings.repeats, "run")} of each; {num_remaining} to be made, in at least '
        f'{format_seconds(share * least_seconds(plan))}'
    )


def format_plan(plan: SweepPlan, num_remaining: int) -> str:
    lines = [format_length(plan, num_remaining)]
    width = len(str(len(plan.configurations)))
    for number, configuration in enumerate(plan.configurations, start=1):
        lines.append(f'  {number:{width}}. {configuration.caption}')
        lines.append(f'  {"":{width}}  {shlex.join(["tf_cnn_benchmarks", *configuration.command])}')
    return '\n'.join([*lines, *format_excluded(plan.left_out)])


def format_excluded(left_out: Sequence[ExcludedCombination]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for combination in left_out:
        by_reason.setdefault(combination.reason, []).append(caption(combination.varied))
    lines = []
    for reason, captions in by_reason.items():
        listed = captions[:_MAX_LISTED]
        if (num_more := len(captions) - _MAX_LISTED) > 0:
            listed.append(f'{num_more} more')
        lines.append(
            f'left out {plural(len(captions), "combination")}: {reason} ({"; ".join(listed)})'
        )
    return lines


def guess_seconds(plan: SweepPlan, num_cores: int, *, has_gpu: bool) -> float:
    """Returns a lower bound of the seconds that all runs take together.

    Steps on GPUs, on other hosts, and of models that a user registered, count as 0.
    """
    seconds = 0.0
    for configuration in plan.configurations:
        params = parse_argv(configuration.argv).params
        seconds += _START_SECS + (params.results.target_seconds or 0.0)
        if not configuration.launch:
            seconds += _flops(params, configuration.shape, has_gpu=has_gpu) / (
                _FLOPS_PER_CORE * num_cores
            )
    return plan.settings.repeats * seconds


def least_seconds(plan: SweepPlan) -> float:
    """Returns guess_seconds for this machine."""
    return guess_seconds(plan, len(usable_cores() or [0]), has_gpu=has_nvidia_gpu())


def format_seconds(seconds: float) -> str:
    """Formats a lower bound in one unit, such as '40 seconds' or '3 hours'."""
    for size, unit in ((3600, 'hour'), (60, 'minute')):
        if seconds >= size:
            return plural(int(seconds / size), unit)
    return plural(int(seconds), 'second')


def _flops(params: Params, shape: Shape, *, has_gpu: bool) -> float:
    costs = list_costs(params.run.model)
    # A model may have a network for each of several data sets.
    cost = next(
        (model_cost for model_cost in costs if model_cost.model.data_set == params.data.data_name),
        costs[0] if costs else None,
    )
    on_gpu = params.devices.device == 'gpu' or (has_gpu and params.devices.device is None)
    if on_gpu or not cost or params.results.target_seconds or params.run.num_epochs:
        return 0.0
    images = (params.run.batch_size or cost.model.batch_size) * shape.workers * shape.devices
    passes = 1 if params.run.forward_only else 3
    return (
        images
        * ((params.run.num_batches or NUM_BATCHES) + params.run.num_warmup_batches)
        * 2
        * passes
        * cost.gmacs
        * 1e9
    )
