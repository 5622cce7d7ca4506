"""In which order the configurations of a sweep run: interleaved, so that drift hits all of them alike. Pure."""

import random


def order_of_round(count: int, round_number: int, seed: int) -> list[int]:
    """The indices of all configurations, in the order in which they run in one round.

    A machine that warms up, or slows down with other load, changes over minutes. If each configuration made all its
    runs in a row, that would look like a difference between configurations. Here each round runs all of them once, and
    every second round runs backwards, so that a steady drift over two rounds cancels (ABBA; Box, Hunter & Hunter,
    Statistics for Experimenters, on counterbalancing). The first round is in the order of the plan; each later pair of
    rounds is shuffled, so that no configuration always follows the same one.

    Args:
      count: of configurations. round_number: from 1. seed: of the shuffled rounds.
    """
    order = list(range(count))
    pair, is_second = divmod(round_number - 1, 2)
    if pair:
        random.Random(f'{seed} {pair}').shuffle(order)
    return order[::-1] if is_second else order
