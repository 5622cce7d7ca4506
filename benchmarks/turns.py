"""Runs variants of one command in turns, each in a process of its own, so that a noisy machine disturbs all alike."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.launched import load, run_alone


def compare_in_turns(
    variants: Mapping[str, Sequence[str]], flags: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Prints images/sec of each run, then of each variant the median and the ratio to the first variant.

    Args:
      variants: the flags of each variant by its name; the first one is the baseline.
      flags: those that all have. rounds: how often each variant runs.

    Returns:
      The images/sec of each round, by the name of the variant.

    Raises:
      benchmarks.launched.RunFailedError: a run failed.
    """
    names = list(variants)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        # Each variant comes first equally often.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rates[name].append(run_alone([*flags, *variants[name]]).images_per_second)
            print(f'round {number + 1}: {name}: {rates[name][-1]:.2f} images/sec ({load()})', flush=True)
    width = max(map(len, names))
    print(f'\n{"":{width}}  images/sec  ratio to {names[0]}, round by round')
    for name in names:
        ratios = [own / first for own, first in zip(rates[name], rates[names[0]], strict=True)]
        print(
            f'{name:{width}}  {statistics.median(rates[name]):10.2f}  '
            f'{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})'
        )
    return rates
