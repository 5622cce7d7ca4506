"""Estimates the duration of a sweep, so that nobody starts one of days by mistake.

Does not import TensorFlow.
"""

from models.costs import list_costs
from tf_cnn.cluster.shape import Shape
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.machine.processors import usable_cores
from tf_cnn.plan.config import NUM_BATCHES
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.sweep.configurations import SweepPlan
from tf_cnn.system.errors import plural

# The rate of a fast processor, so the estimate is a lower bound: AVX-512 computes fp32
# convolutions at 50 to 150 GFLOP/s on a core.
_FLOPS_PER_CORE = 1.5e11
# From the start of a process to its first step: most of it is the import of TensorFlow.
_START_SECS = 4.0


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
