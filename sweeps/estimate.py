"""How long a sweep will take, before it runs."""

import os
from collections.abc import Iterable, Mapping, Sequence

from errors import UsageError, counted
from models.costs import read_table
from models.registry import MODELS
from params import parse_argv
from sweeps.configurations import Configuration
from sweeps.durations import seconds_left

# Rough figures, which the first results of a machine replace: seconds until a process takes steps, and what networks
# reach of a core (three times that with AVX-512) and of a GPU.
_START_SECS = 7.0
_FLOPS_PER_CORE = 50e9
_FLOPS_PER_GPU = 10e12
_NUM_BATCHES = 100


def estimate(
    runs: Iterable[Configuration], known: Mapping[str, Sequence[float]], *, has_gpu: bool
) -> tuple[float, str]:
    """The seconds that runs will take, and what that is based on.

    Args:
      known: the seconds of earlier runs by configuration.
    """
    runs = list(runs)
    num_known = sum(map(len, known.values()))
    measured = seconds_left([one.id for one in runs], known)
    if measured is not None:
        return measured, f'from the {counted(num_known, "run")} that {"is" if num_known == 1 else "are"} done'
    cores = len(os.sched_getaffinity(0))
    what = 'GPU' if has_gpu else counted(cores, 'core')
    return (
        sum(_guess(one, cores, has_gpu) for one in runs),
        f'a guess from start-up, the multiply-adds of the networks and {what}, easily wrong by a factor of 3',
    )


def _guess(one: Configuration, cores: int, has_gpu: bool) -> float:
    params = parse_argv(one.argv).params
    processes = one.shape.workers + one.shape.num_ps if one.in_cluster else 1
    start = _START_SECS * max(1.0, processes / cores)
    if params.target_seconds is not None:
        return start + params.target_seconds
    try:
        facts = MODELS.find_model(params.model, params.data_name)
    except UsageError:
        # A user's file defines it.
        return start
    _, multiply_adds = read_table().get((facts.name, facts.data_set, facts.image_size), (0, 0))
    images = (params.batch_size or facts.batch_size) * one.shape.workers * one.shape.devices
    steps = (params.num_batches or _NUM_BATCHES) + params.num_warmup_batches
    # Two operations for each multiply-add; the backward pass is twice the forward one.
    operations = 2 * multiply_adds * (1 if params.forward_only else 3) * images * steps
    on_gpus = has_gpu and params.device != 'cpu'
    speed = _FLOPS_PER_GPU * one.shape.workers * one.shape.devices if on_gpus else _FLOPS_PER_CORE * cores
    return start + operations / speed
