"""How often the 95 % interval of `compare` contains the true ratio, for simulated runs whose steps are not independent.

    python benchmarks/interval_coverage.py --pairs=1000

Each row is a kind of steps; the columns show the share of pairs whose interval contains the true ratio, for the
interval of `compare` and, for comparison, for the percentile bootstrap over moving blocks. Steps follow an AR(1)
process; with bursts, slow steps (twice as long, 5 on average) begin at 1 % of the steps. Repeats add a difference
between processes, which no step shows. Exits with code 1 if a share of `compare` is not from 93 % to 97 %.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from reporting.comparison import compare
from reporting.intervals import Estimate, estimate_runs
from reporting.long_run import mean_error

_STEP_SPREAD = 0.05
_RUN_SPREAD = 0.03
_BURST_STARTS, _BURST_STEPS, _BURST_SLOWER = 0.01, 5, 1.0
_TRUE_RATIO = 0.9
_RESAMPLES = 300
_UNUSED = 200
LOWEST, HIGHEST = 0.93, 0.97

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """Simulated runs: steps of each, correlation of neighbours, whether there are bursts, runs of each setting."""

    num_steps: int
    rho: float
    has_bursts: bool
    num_runs: int = 1

    def __str__(self) -> str:
        bursts = 'bursts' if self.has_bursts else '-'
        return f'{self.num_runs:>4} {self.num_steps:>6} {self.rho:>5.1f} {bursts:>7}'


KINDS = (
    *(Kind(steps, rho, bursts) for steps in (100, 200, 1000) for bursts in (False, True) for rho in (0, 0.3, 0.5, 0.8)),
    *(Kind(100, 0.5, bursts, runs) for runs in (3, 5) for bursts in (False, True)),
)


def steps_of_run(draw: np.random.Generator, kind: Kind, mean: float) -> Array:
    """The seconds of [num_steps] steps."""
    shocks = draw.normal(0, math.sqrt(1 - kind.rho**2), kind.num_steps + _UNUSED)
    values = np.convolve(shocks, kind.rho ** np.arange(_UNUSED, dtype=np.float64))[: shocks.size]
    seconds = mean * (1 + _STEP_SPREAD * values[_UNUSED:])
    if kind.has_bursts:
        begins = draw.random(kind.num_steps + _UNUSED) < _BURST_STARTS
        slow = np.zeros(kind.num_steps + _UNUSED, dtype=bool)
        for begin in np.flatnonzero(begins):
            slow[begin : begin + draw.geometric(1 / _BURST_STEPS)] = True
        seconds = seconds * (1 + _BURST_SLOWER * slow[_UNUSED:])
    if kind.num_runs > 1:
        seconds = seconds * math.exp(draw.normal(0, _RUN_SPREAD))
    return np.asarray(seconds)


def estimated(runs: list[Array]) -> Estimate:
    """As reporting.comparison.estimate, from the seconds of steps with one image each."""
    if len(runs) > 1:
        return estimate_runs([1 / run.mean() for run in runs])
    mean = float(runs[0].mean())
    error = mean_error(runs[0])
    assert error
    spread = float(runs[0].std(ddof=1)) / mean
    return Estimate(1 / mean, 1, runs[0].size, error.variance / mean**2, error.degrees_of_freedom, None, spread)


def bootstrapped_means(draw: np.random.Generator, runs: list[Array]) -> Array:
    """[_RESAMPLES] means: of runs drawn anew, or of blocks of steps drawn anew.

    The length of a block is that of Politis and White 2004 for a series in which each step depends on its predecessor:
    (2 g² n / d)^(1/3) with g²/d = 3/2 ρ²/(1-ρ²)² for moving blocks.
    """
    if len(runs) > 1:
        means = np.array([run.mean() for run in runs])
        return np.asarray(means[draw.integers(means.size, size=(_RESAMPLES, means.size))].mean(axis=1))
    (steps,) = runs
    centred = steps - steps.mean()
    rho = min(max(float(np.sum(centred[1:] * centred[:-1]) / np.sum(centred**2)), 0.0), 0.97)
    length = min(max(round((6 * steps.size * rho**2 / (1 - rho**2) ** 2) ** (1 / 3)), 1), steps.size // 2)
    num_blocks = math.ceil(steps.size / length)
    starts = draw.integers(steps.size - length + 1, size=(_RESAMPLES, num_blocks, 1))
    chosen = (starts + np.arange(length)).reshape(_RESAMPLES, -1)[:, : steps.size]
    return np.asarray(steps[chosen].mean(axis=1))


def coverage(kind: Kind, num_pairs: int, seed: int, *, with_bootstrap: bool = False) -> tuple[float, float, float]:
    """The share of intervals that contain the true ratio, their mean half width, and the share of the bootstrap (nan if
    not asked for)."""
    draw, redraw = np.random.default_rng(seed), np.random.default_rng(seed)
    hits = bootstrap_hits = 0
    half_widths = []
    for _ in range(num_pairs):
        before, after = ([steps_of_run(draw, kind, mean) for _ in range(kind.num_runs)] for mean in (_TRUE_RATIO, 1.0))
        interval = compare(estimated(before), estimated(after)).interval
        if not interval:
            # These runs are too disturbed, and compare says so.
            continue
        low, high = interval
        hits += low <= _TRUE_RATIO <= high
        half_widths.append(math.sqrt(high / low) - 1)
        if with_bootstrap:
            ratios = bootstrapped_means(redraw, before) / bootstrapped_means(redraw, after)
            low, high = np.percentile(ratios, (2.5, 97.5))
            bootstrap_hits += low <= _TRUE_RATIO <= high
    share = bootstrap_hits / len(half_widths) if with_bootstrap else math.nan
    return hits / len(half_widths), float(np.mean(half_widths)), share


def rows(num_pairs: int, seed: int) -> Iterator[tuple[Kind, float, float, float]]:
    for number, kind in enumerate(KINDS):
        yield (kind, *coverage(kind, num_pairs, seed + number, with_bootstrap=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--pairs', type=int, default=1000, help='simulated pairs of each kind')
    parser.add_argument('--seed', type=int, default=1)
    args = parser.parse_args()
    print('runs  steps   rho  bursts  contains it  half width  block bootstrap')
    num_missed = 0
    for kind, share, half_width, bootstrap in rows(args.pairs, args.seed):
        missed = not LOWEST <= share <= HIGHEST
        num_missed += missed
        remark = '  outside 93 % to 97 %' if missed else ''
        print(f'{kind} {share:>12.1%} {half_width:>10.1%} {bootstrap:>16.1%}{remark}', flush=True)
    return 1 if num_missed else 0


if __name__ == '__main__':
    sys.exit(main())
