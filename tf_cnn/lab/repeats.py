"""Finds runs that are repeats of each other. Does not import TensorFlow."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_cnn.lab.original_logs import AnyRun, Run
from tf_cnn.lab.settings import non_default_settings
from tf_cnn.results.document import WALL_TIME
from tf_cnn.results.statistics import MAD_TO_STANDARD_DEVIATION, mad

# A run is an outlier beyond this modified z-score: Iglewicz and Hoaglin 1993, How to Detect and
# Handle Outliers, 3.3.
_OUTLIER_SCORE = 3.5
# The median and the MAD of fewer runs are too uncertain to call one an outlier.
_MIN_RUNS_FOR_OUTLIERS = 5


def workload_differences(first: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Returns the workload properties that differ, by name, with both values.

    Only runs without a difference have comparable throughputs. An unknown property, as in a log, is
    not a difference.
    """
    pairs = {name: (value, other.workload[name]) for name, value in first.workload.items()}
    if WALL_TIME in (units := (first.unit, other.unit)):
        pairs['unit'] = units
    return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


def group_by_workload(results: Sequence[Run]) -> list[list[int]]:
    """Returns the indices of the results of each workload: they have comparable throughputs."""
    groups: list[list[int]] = []
    for index, result in enumerate(results):
        same_work = (
            indices for indices in groups if not workload_differences(results[indices[0]], result)
        )
        if indices := next(same_work, None):
            indices.append(index)
        else:
            groups.append([index])
    return groups


def baseline_indices(
    results: Sequence[Run],
    *,
    across_workloads: bool = False,
    published_speed_ups: Sequence[float | None] = (),
) -> list[int]:
    """Returns, for each result, the index of its baseline; each result has another setting.

    The baseline is the first result of the same workload, and of the same batch size if at least
    two results have that size. A workload with published speed-ups has the baseline of the
    published table: the result with the published speed-up 1, of the same batch size if several
    results have a 1. If it is missing, no result is compared: each has its own index.

    Args:
      across_workloads: whether all results count as one workload.
      published_speed_ups: the speed-up of each result in a published table; empty without a table.
    """
    everything = [[*range(len(results))]]
    firsts: dict[int, int] = {}
    speed_ups = dict(enumerate(published_speed_ups))
    for indices in everything if across_workloads else group_by_workload(results):
        if any(speed_ups.get(index) for index in indices):
            references = [index for index in indices if speed_ups[index] == 1]
            of_size = {results[index].batch_size: index for index in reversed(references)}
            for index in indices:
                reference = references[0] if references else index
                firsts[index] = of_size.get(results[index].batch_size, reference)
            continue
        by_size: dict[int | None, list[int]] = {}
        for index in indices:
            by_size.setdefault(results[index].batch_size, []).append(index)
        for same_size in by_size.values():
            firsts |= dict.fromkeys(same_size, same_size[0] if len(same_size) > 1 else indices[0])
    return [firsts[index] for index in range(len(results))]


def repeat_key(result: Run, *, across_versions: bool = False) -> str:
    """Returns a text that is equal for repeats: runs with throughputs that may be pooled.

    Repeats have the same workload, non-default settings, machine, limits, library versions and
    environment variables.

    Args:
      across_versions: whether the versions of libraries may differ, to follow a setting over
        months.
    """
    versions = None if across_versions else result.machine.get('versions')
    return equality_key([setting_key(result), result.limits, versions, result.environment or {}])


def setting_key(result: Run) -> str:
    """Returns a text that is equal for runs of one setting on one machine, under any limits."""
    return equality_key(
        [result.machine.get('fingerprint'), result.workload, non_default_settings(result)]
    )


def group_repeats(results: Iterable[AnyRun]) -> list[list[AnyRun]]:
    """Groups results that are repeats, in the order of the results."""
    groups: dict[str, list[AnyRun]] = {}
    for result in results:
        groups.setdefault(repeat_key(result), []).append(result)
    return list(groups.values())


def differing_limits(results: Iterable[Run]) -> set[str]:
    """Returns the names of the limits that differ between runs on the same machine."""
    by_machine: dict[str | None, list[Run]] = {}
    for result in results:
        by_machine.setdefault(result.machine.get('fingerprint'), []).append(result)
    names: set[str] = set()
    for first, *later_results in by_machine.values():
        for other in later_results:
            all_names = first.limits.keys() | other.limits.keys()
            names |= {
                name for name in all_names if first.limits.get(name) != other.limits.get(name)
            }
    return names


def outlier_rates(rates: Mapping[str, float]) -> dict[str, float]:
    """Returns the outliers among the images/sec of repeats, by name; empty if there are too few
    repeats.
    """
    if len(rates) < _MIN_RUNS_FOR_OUTLIERS:
        return {}
    middle, deviation = (
        statistics.median(rates.values()),
        MAD_TO_STANDARD_DEVIATION * mad([*rates.values()]),
    )
    return {
        name: rate
        for name, rate in rates.items()
        if abs(rate - middle) > _OUTLIER_SCORE * deviation
    }


def equality_key(value: object) -> str:
    """Returns a text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
