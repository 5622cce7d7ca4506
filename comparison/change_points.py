"""Finds where the level of a series of runs changed. Does not import TensorFlow."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A level lasts for at least so many runs: one odd run is an outlier.
MIN_LEVEL = 3

# The chance that a series without a change appears to have one.
_FALSE_ALARMS = 0.01
_PERMUTATIONS = 999
# So that one history always gives one answer.
_SEED = 20260101


def change_points(rates: Sequence[float]) -> list[int]:
    """The indices at which a new level begins, in increasing order; empty if the level never changed.

    Binary segmentation (Vostrikova 1981, Detecting disorder in multidimensional random processes): the series is split
    where the ranks before and after differ most, each part again, until no split is significant. Ranks, as in Pettitt
    1979, A Non-Parametric Approach to the Change-Point Problem, because single runs may be far off. Whether a split is
    significant is tested against shuffled series (Antoch and Hušková 2001, Permutation tests in change point analysis),
    which holds for few runs, too: 5 runs before and 5 after a change are the fewest that can show it.

    Args:
      rates: finite numbers, such as images/sec, one for each run, in the order of the runs.
    """
    values = np.asarray(rates, dtype=np.float64)
    found: list[int] = []
    waiting = [(0, values.size)]
    while waiting:
        start, end = waiting.pop()
        split = _split(values[start:end])
        if split is not None:
            found.append(start + split)
            waiting += [(start, start + split), (start + split, end)]
    return sorted(found)


def _split(values: NDArray[np.float64]) -> int | None:
    """Where the level of [n] values changes most, if that is significant."""
    if values.size < 2 * MIN_LEVEL:
        return None
    ranks = _ranks(values)
    if not np.ptp(ranks):
        return None
    differences = _differences(ranks[np.newaxis])[0]
    largest = float(differences.max())
    draw = np.random.default_rng(_SEED)
    shuffled = draw.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
    # The tolerance counts equal arrangements as equal.
    num_as_large = int(np.sum(_differences(shuffled).max(axis=1) >= largest * (1 - 1e-9)))
    if (num_as_large + 1) / (_PERMUTATIONS + 1) > _FALSE_ALARMS:
        return None
    return _location(values)


def _location(values: NDArray[np.float64]) -> int:
    """The split of [n] values after which they deviate least from the medians of the two parts.

    Bai 1995, Least absolute deviation estimation of a shift: more exact than the largest difference of ranks.
    """
    splits = range(MIN_LEVEL, values.size - MIN_LEVEL + 1)
    return min(splits, key=lambda split: _deviation(values[:split]) + _deviation(values[split:]))


def _deviation(values: NDArray[np.float64]) -> float:
    return float(np.sum(np.abs(values - np.median(values))))


def _differences(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each of [m, n] rows and each split, by how much the ranks before and after it differ: [m, n - 5].

    |sum of the centred ranks before the split| / √(k (n - k) / n), which has the same variance at each split k.
    """
    size = ranks.shape[1]
    sums = np.cumsum(ranks - ranks.mean(axis=1, keepdims=True), axis=1)[:, MIN_LEVEL - 1 : size - MIN_LEVEL]
    splits = np.arange(MIN_LEVEL, size - MIN_LEVEL + 1)
    return np.asarray(np.abs(sums) / np.sqrt(splits * (size - splits) / size))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ranks of [n] values, equal values with their mean rank."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[which], dtype=np.float64)
