"""Lets contestants take turns, so that a noisy machine disturbs all alike. All scripts of this folder use it.

A contestant is a function that takes one turn: it runs a command (benchmarks/command_runs.py), or works in this
process. A turn is repeated if other processes used the processors meanwhile, which hardware/meters.py detects.
"""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hardware.meters import Disturbances

Outcome = TypeVar('Outcome')

# The share of the cores that other processes and machines may use during a turn.
MAX_OTHERS = 0.06


@dataclass(frozen=True)
class Timed(Generic[Outcome]):
    """One turn of a contestant.

    Attributes:
      outcome: what the contestant returned.
      others: the share of the cores that other processes and machines used; None if unknown, as for turns under a
        second.
    """

    outcome: Outcome
    others: float | None

    @property
    def is_disturbed(self) -> bool:
        return self.others is not None and self.others > MAX_OTHERS


Turns = Mapping[str, Sequence[Timed[Outcome]]]


def take_turns(
    contestants: Mapping[str, Callable[[int], Outcome]],
    rounds: int,
    *,
    max_repeats: int,
    show: Callable[[Outcome], str] | None = None,
    watch: Callable[[], Any] = Disturbances,
) -> dict[str, list[Timed[Outcome]]]:
    """Lets each contestant take a turn in each round.

    Args:
      contestants: the contestants by name; each takes the number of the round, from 1, and returns the outcome.
      rounds: the number of rounds.
      max_repeats: how often a disturbed turn is repeated at most; the last attempt counts.
      show: formats an outcome, which is printed on standard error at once.
      watch: makes the meter of one turn, with start() and stop() as in hardware.meters.Disturbances.

    Returns:
      The turns of each contestant, in the order of the rounds.
    """
    names = list(contestants)
    taken: dict[str, list[Timed[Outcome]]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in order_of_round(names, number):
            for _ in range(1 + max_repeats):
                watching = watch()
                watching.start()
                outcome = contestants[name](number)
                turn = Timed(outcome, others_share(watching.stop()))
                if not turn.is_disturbed:
                    break
            taken[name].append(turn)
            if show:
                others = '' if turn.others is None else f' (others used {turn.others:.0%} of the cores)'
                print(f'round {number}: {name}: {show(turn.outcome)}{others}', file=sys.stderr, flush=True)
    return taken


def order_of_round(names: Sequence[str], number: int) -> list[str]:
    """Returns the names in the order of a round: each comes first equally often, and follows each of its neighbours."""
    size = len(names)
    first = (number - 1) // 2 % size
    rotated = [*names[first:], *names[:first]]
    return rotated if number % 2 else rotated[::-1]


def outcomes(turns: Sequence[Timed[Outcome]]) -> list[Outcome]:
    return [turn.outcome for turn in turns]


def add_flags(parser: argparse.ArgumentParser, rounds: int, max_repeats: int) -> None:
    """Adds the flags that all scripts with turns have: --rounds, --max_repeats."""
    parser.add_argument('--rounds', type=at_least(2), default=rounds, help='turns of each contestant, at least 2')
    parser.add_argument(
        '--max_repeats',
        type=at_least(0),
        default=max_repeats,
        help=f'how often a turn is repeated during which others used more than {100 * MAX_OTHERS:.0f} %% of the cores',
    )


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the argparse type of a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        chosen = text.split(',')
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f'{name!r} is not one of {", ".join(known)}')
        return chosen

    return parse


def load() -> str:
    """Formats the cores and the load of the machine, to print with the results."""
    return f'{os.cpu_count()} cores, load {" ".join(f"{average:.1f}" for average in os.getloadavg())}'


def others_share(disturbance: Mapping[str, Any]) -> float | None:
    """Returns the share of the cores that others used, from what Disturbances.stop() found; None if unknown."""
    shares = [disturbance['other_cpu_share'], disturbance['steal_share']]
    known = [share for share in shares if share is not None]
    return sum(known) if known else None


def at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.strip().isdigit() else least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f'{text!r} is not a whole number of at least {least}')
        return value

    return parse
