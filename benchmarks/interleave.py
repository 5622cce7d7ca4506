"""Compares two training loops by alternating their steps, so that a noisy machine disturbs both alike."""

import statistics
from collections.abc import Iterator


def compare(
    names: tuple[str, str],
    steps: tuple[Iterator[float], Iterator[float]],
    images_per_step: int,
    num_warmup: int,
    num: int,
) -> float:
    """Prints the throughput of each pair of steps and the ratio of first to second; returns the ratio over all steps.

    Args:
      steps: two iterators that take a step and yield its seconds.
      num_warmup, num: how many pairs of steps to ignore at the start, and how many to count after that.
    """
    pairs = []
    for number in range(num_warmup + num):
        # Alternate which one runs first.
        order = (0, 1) if number % 2 else (1, 0)
        seconds = dict.fromkeys(order, 0.0)
        for which in order:
            seconds[which] = next(steps[which])
        if number >= num_warmup:
            pairs.append((seconds[0], seconds[1]))
            rates = [f'{images_per_step / seconds[which]:8.2f} {names[which]}' for which in (0, 1)]
            print(*rates, 'images/sec', flush=True)
    ratios = [second / first for first, second in pairs]
    lower, _, upper = statistics.quantiles(ratios, n=4)
    whole = sum(second for _, second in pairs) / sum(first for first, _ in pairs)
    print(
        f'{names[0]} / {names[1]}: {whole:.3f} over all steps; step by step median {statistics.median(ratios):.3f}, '
        f'quartiles {lower:.3f} to {upper:.3f}, {num} pairs of steps'
    )
    return whole
