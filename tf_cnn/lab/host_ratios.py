"""Compares each of several hosts with the median of the others; docs/acceptance.md says how well.

Hosts are equals, so each is held against the others and none against the first. Few runs of a host
do not show its spread, so hosts share one spread. A host that another program disturbed must not
decide for the others: medians stand for them, and a host with a much larger spread keeps it alone.
"""

import functools
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from tf_cnn.lab.ratios import CONFIDENCE, Estimate, Ratio, interval_around

# One host in 1000 exceeds this normal quantile if all hosts have one spread.
_UNSTEADY = NormalDist().inv_cdf(0.999)


def compare_with_others(
    estimates: Sequence[Estimate], medians: Sequence[float]
) -> list[tuple[Ratio, float]]:
    """Returns the ratio of each of three or more hosts, and the median rate of the others.

    Each host has MIN_RUNS runs or more of one setting. The variance of a run is pooled, as in
    Dunnett 1955, A Multiple Comparison Procedure for Comparing Several Treatments with a Control;
    the larger variance of a single host counts for this host. The level is shared among the hosts
    (Sidak 1967, Rectangular Confidence Regions). Of three hosts, one differs only if it differs
    from both others, so each pair has the whole level (Berger 1982, Multiparameter Hypothesis
    Testing and Acceptance Sampling).

    Args:
      estimates: the throughputs.
      medians: the median images/sec of each host's runs, which stands for an unsteady host.
    """
    num_hosts = len(estimates)
    num_runs = np.array([host.num_runs for host in estimates])
    degrees = np.array([host.degrees_of_freedom for host in estimates])
    # The variance of the relative error of a run.
    variances = np.array([host.variance for host in estimates]) * num_runs
    # The cube root of a variance is nearly normal: Wilson and Hilferty 1931, The Distribution of
    # Chi-Square.
    shift = 2 / (9 * degrees)
    typical = np.median(variances / (1 - shift) ** 3)
    is_unsteady = variances > typical * (1 - shift + _UNSTEADY * np.sqrt(shift)) ** 3
    steady_degrees = degrees[~is_unsteady]
    pooled = np.average(variances[~is_unsteady], weights=steady_degrees)
    variance_of_others = pooled * variance_of_median(num_hosts - 1 - num_hosts % 2)
    error_variances = np.maximum(variances, pooled) / num_runs + variance_of_others * np.mean(
        1 / num_runs
    )
    rates = np.where(is_unsteady, medians, [host.images_per_second for host in estimates])
    ordered = sorted(rates.tolist())
    confidence = CONFIDENCE ** (1 / num_hosts) if num_hosts > 3 else CONFIDENCE
    ratios = []
    for rate, variance, unsteady in zip(
        rates.tolist(), error_variances.tolist(), is_unsteady.tolist(), strict=True
    ):
        other_rates = [*ordered]
        other_rates.remove(rate)
        # Of an even number, the nearer of the two in the middle; it is a median, too, if the
        # farthest host on the other side is left out.
        median = min(
            max(rate, other_rates[(num_hosts - 2) // 2]), other_rates[(num_hosts - 1) // 2]
        )
        interval = interval_around(rate / median, variance, float(steady_degrees.sum()), confidence)
        ratios.append((Ratio(rate / median, interval, is_unsteady=unsteady), median))
    return ratios


@functools.cache
def variance_of_median(size: int) -> float:
    """Returns the variance of the median of an odd number of standard normal values.

    Integrates the density of an order statistic (David and Nagaraja 2003, Order Statistics,
    section 2.1); the sum over equal steps is exact to ten digits.
    """
    values = np.linspace(-9, 9, 721)
    below = np.array([NormalDist().cdf(value) for value in values])
    density = (below * (1 - below)) ** (size // 2) * np.exp(-np.square(values) / 2)
    return float(density @ np.square(values) / density.sum())
