"""Durations of runs: of those that are done, and of those that are left."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from errors import UsageError, counted
from models.costs import read_table
from models.registry import MODELS
from params import parse_argv
from results.document import Failure, Record
from sweeps.configurations import Configuration

# Rough figures until the first results of a machine are known: seconds until a process takes steps, and the FLOP/s that
# networks reach on a core (three times as many with AVX-512) and on a GPU.
_START_SECS = 7.0
_FLOPS_PER_CORE = 50e9
_FLOPS_PER_GPU = 10e12
_NUM_BATCHES = 100


def format_seconds(seconds: float) -> str:
    """Formats a duration: '7 s', '2 min 10 s', '1 h 5 min'."""
    whole = round(seconds)
    if whole < 60:
        return f'{whole} s'
    if whole < 3600:
        return f'{whole // 60} min {whole % 60} s' if whole % 60 else f'{whole // 60} min'
    minutes = round(seconds / 60)
    return f'{minutes // 60} h {minutes % 60} min' if minutes % 60 else f'{minutes // 60} h'


def seconds_of(outcome: Record | Failure) -> float | None:
    """Returns the seconds from the start of a run to its end; None if its document does not contain them."""
    document = outcome.document
    if isinstance(outcome, Failure):
        seconds = document.get('seconds')
        return float(seconds) if isinstance(seconds, int | float) else None
    try:
        start, end = (
            datetime.fromisoformat(str(document[key]).replace('Z', '+00:00')) for key in ('started_at', 'ended_at')
        )
    except (KeyError, ValueError):
        return None
    return (end - start).total_seconds()


def seconds_left(ids: Iterable[str], known: Mapping[str, Sequence[float]]) -> float | None:
    """Predicts the seconds that runs of these configurations will take; None if no run is known.

    Args:
      ids: the configuration of each run that is left.
      known: the seconds of runs by configuration; one without known runs is assumed to take the average of the others.
    """
    every = [seconds for several in known.values() for seconds in several]
    if not every:
        return None
    overall = sum(every) / len(every)
    means = {id_: sum(several) / len(several) for id_, several in known.items() if several}
    return sum(means.get(id_, overall) for id_ in ids)


def estimate_seconds(
    runs: Iterable[Configuration], known: Mapping[str, Sequence[float]], *, has_gpu: bool
) -> tuple[float, str]:
    """Returns the seconds that runs will take, and the basis of this estimate in words.

    Args:
      runs: the configuration of each run.
      known: the seconds of earlier runs by configuration.
      has_gpu: whether runs use a GPU unless --device=cpu.
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
        # A user's file defines the model, so its cost is unknown.
        return start
    _, multiply_adds = read_table().get((facts.name, facts.data_set, facts.image_size), (0, 0))
    images = (params.batch_size or facts.batch_size) * one.shape.workers * one.shape.devices
    steps = (params.num_batches or _NUM_BATCHES) + params.num_warmup_batches
    # Two operations for each multiply-add; the backward pass is twice the forward one.
    operations = 2 * multiply_adds * (1 if params.forward_only else 3) * images * steps
    on_gpus = has_gpu and params.device != 'cpu'
    speed = _FLOPS_PER_GPU * one.shape.workers * one.shape.devices if on_gpus else _FLOPS_PER_CORE * cores
    return start + operations / speed
