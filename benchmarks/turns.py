"""What the scripts of this folder share: contestants in rounds, and tables of their numbers and ratios.

Contestants are commands that leave results, which the engine of `sweep` runs (sweeps/runner.py), or functions.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cluster.signals import Interrupts
from comparison.intervals import FEWEST_RUNS, interval_around
from comparison.tables import Table, TableColumn
from errors import BenchmarkError
from hardware.surroundings import machine_facts
from results.document import Record
from sweeps.folder import Folder
from sweeps.runner import PROGRAM, Contestant, Rounds, Starter, describe, facts_of, order_of_round, succeeded

ROOT = Path(PROGRAM[-1]).parent
Outcome = TypeVar('Outcome')
Name = TypeVar('Name')


@dataclass(frozen=True)
class Measure(Generic[Outcome]):
    """A number of an outcome.

    Attributes:
      title: its name with the unit.
      value: returns it.
      decimals: how many of its decimals are printed.
      published: ratios of pairs (ours, theirs) that others published.
      has_ratios: whether pairs are compared by it.
    """

    title: str
    value: Callable[[Outcome], float]
    decimals: int = 2
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)
    has_ratios: bool = True


def rate(**more: Any) -> Measure[Record]:
    """The images/sec of runs."""
    return Measure('images/sec', lambda run: run.images_per_second, **more)


def share_of_others(run: Record) -> float:
    """Returns the percentage of the cores that other processes and machines used; nan if unknown."""
    shares = [run.document['disturbance'].get(name) for name in ('other_cpu_share', 'steal_share')]
    return 100 * sum(share for share in shares if share is not None) if any(s is not None for s in shares) else np.nan


OTHERS = Measure[Record]('others, % of cores', share_of_others, decimals=0, has_ratios=False)


def make_parser(doc: str | None, output: str | None = None, rounds: int = 3) -> argparse.ArgumentParser:
    """Returns the parser of a script with --rounds, and --output if it has results."""
    parser = argparse.ArgumentParser(description=(doc or '').split('\n')[0])
    parser.add_argument('--rounds', type=at_least(2), default=rounds, help='turns of each contestant, at least 2')
    if output:
        text = 'folder for results and logs; that of the same commands goes on; default: %(default)s'
        parser.add_argument('--output', type=Path, default=Path('data/benchmarks', output), help=text)
    return parser


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the argparse type of a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        for name in text.split(','):
            if name not in known:
                raise argparse.ArgumentTypeError(f'{name!r} is not one of {", ".join(known)}')
        return text.split(',')

    return parse


def at_least(least: int) -> Callable[[str], int]:
    """Returns the argparse type of a whole number."""

    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f'{text!r} is not a whole number of at least {least}')
        return int(text)

    return parse


def run_script(main: Callable[[], None]) -> None:
    """Ends the process as a script: errors are one line, without a traceback."""
    try:
        main()
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def take_runs(commands: Mapping[str, Sequence[str]], rounds: int, path: Path) -> dict[str, list[Record | None]]:
    """Runs commands by name, each in every round, and returns their results; None where a run failed.

    Raises:
      UsageError: the folder has other content.
      RunError: the disk is full, or fails.
    """
    contestants = []
    for name, words in commands.items():
        file = ''.join(char if char.isalnum() or char in '.-=' else '_' for char in name)
        contestants.append(Contestant(f'{file}/{file}', name, words, facts_of(words, {}, '1*1')))
    folder = Folder(path)
    folder.begin({one.name: one.words for one in contestants})
    runs = Rounds(contestants, rounds, folder, Starter((), {'TF_CPP_MIN_LOG_LEVEL': '2', **os.environ}))
    with folder.locked(), Interrupts().listening():
        for turn in runs.run():
            show(turn.number, turn.contestant.caption, describe(turn.outcome))
    found: dict[str, list[Record | None]] = {}
    for one in contestants:
        outcomes = runs.outcomes[one.name]
        found[one.caption] = [run if isinstance(run, Record) and succeeded(run) else None for run in outcomes]
    return found


def take_turns(
    contestants: Mapping[Name, Callable[[], Outcome]], rounds: int, text: Callable[[Outcome], str] | None = None
) -> dict[Name, list[Outcome]]:
    """Calls functions by name, each in every round, and returns what they return; text formats it for people."""
    names = [*contestants]
    taken: dict[Name, list[Outcome]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in (names[index] for index in order_of_round(len(names), number, seed=1)):
            taken[name].append(contestants[name]())
            if text:
                show(number, str(name), text(taken[name][-1]))
    return taken


def show(number: int, name: str, text: str) -> None:
    print(f'round {number}: {name}: {text}', file=sys.stderr, flush=True)


def ratio_of(ours: ArrayLike, theirs: ArrayLike) -> tuple[float, tuple[float, float] | None]:
    """Returns the mean ratio of numbers of the same rounds, and its 95 % interval if there are three or more.

    What disturbs both turns of a round cancels, so each round counts as one ratio, on a logarithmic scale.
    """
    logs = np.log(ours) - np.log(theirs)
    value, size = float(np.exp(logs.mean())), logs.size
    return value, interval_around(value, float(logs.var(ddof=1)) / size, size - 1) if size >= FEWEST_RUNS else None


def ratio_cells(ours: ArrayLike, theirs: ArrayLike) -> list[str]:
    """Formats the ratio of numbers of the same rounds, and its interval."""
    value, ends = ratio_of(ours, theirs)
    return [f'{value:.3f}', f'{ends[0]:.3f} to {ends[1]:.3f}' if ends else '']


def format_report(
    outcomes: Mapping[str, Sequence[Outcome | None]],
    measures: Sequence[Measure[Outcome]],
    pairs: Sequence[tuple[str, str]],
) -> str:
    """Formats the machine, the mean numbers of each contestant, and the ratios of pairs (ours, theirs)."""
    rows = []
    for name, found in outcomes.items():
        good = [one for one in found if one is not None]
        means = [statistics.fmean(map(measure.value, good)) if good else np.nan for measure in measures]
        cells = [f'{mean:.{one.decimals}f}' if mean == mean else '' for mean, one in zip(means, measures, strict=True)]
        rows.append([name, *cells, f'{len(good)} of {len(found)}'])
    ratios = []
    for measure in (one for one in measures if one.has_ratios):
        for names in pairs:
            both = [(o, t) for o, t in zip(*(outcomes[name] for name in names), strict=False) if o is not None is not t]
            if both:
                cells = ratio_cells(*([measure.value(one) for one in side] for side in zip(*both, strict=True)))
                published = f'{measure.published[names]:.2f}' if names in measure.published else ''
                ratios.append([' / '.join(names), measure.title, *cells, published])
    titles = ['', *(measure.title for measure in measures), 'turns']
    return '\n\n'.join(
        [
            machine_line(),
            as_table(titles, rows),
            as_table(['ours / theirs', 'of', 'ratio', '95 %', 'published'], ratios),
        ]
    )


def as_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table; all but the first column are numbers."""
    return Table([TableColumn(title, is_number=bool(i)) for i, title in enumerate(titles)], rows).as_markdown()


def machine_line() -> str:
    """Formats the machine, the versions and the load, which belong to every table."""
    machine: Mapping[str, Any] = machine_facts()
    versions = ', '.join(f'{name} {version}' for name, version in machine['versions'].items() if version)
    load = ' '.join(f'{average:.1f}' for average in os.getloadavg())
    return f'{machine["cpu_model"]}, {versions}; {os.cpu_count()} cores, load {load}'
