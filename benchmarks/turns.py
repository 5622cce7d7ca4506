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
from machine.surroundings import machine_facts
from results.document import Record
from sweeps.folder import Folder
from sweeps.runner import PROGRAM, Contestant, Rounds, Starter, describe, facts_of, order_of_round, succeeded

ROOT = Path(PROGRAM[-1]).parent
Outcome = TypeVar('Outcome')
Name = TypeVar('Name')


@dataclass(frozen=True)
class Measure(Generic[Outcome]):
    """A number of an outcome, with the ratios of pairs (ours, theirs) that others published."""

    title: str
    value: Callable[[Outcome], float]
    decimals: int = 2
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)
    has_ratios: bool = True


def rate(**more: Any) -> Measure[Record]:
    """The images/sec of runs."""
    return Measure('images/sec', lambda run: run.images_per_second, **more)


def _share_of_others(run: Record) -> float:
    found = run.document['disturbance']
    return 100 * ((found.get('other_cpu_share') or 0.0) + (found.get('steal_share') or 0.0))


# What other processes and machines used; 0 also where it is unknown, as for runs under a second.
OTHERS = Measure[Record]('others, % of cores', _share_of_others, decimals=0, has_ratios=False)


def make_parser(doc: str | None, output: str | None = None, rounds: int = 3) -> argparse.ArgumentParser:
    """Returns the parser of a script with --rounds, and --output if it has results."""
    parser = argparse.ArgumentParser(description=(doc or '').split('\n')[0])
    parser.add_argument('--rounds', type=two_or_more, default=rounds, help='turns of each contestant, at least 2')
    if output:
        text = 'folder for results and logs; that of the same commands goes on; default: %(default)s'
        parser.add_argument('--output', type=Path, default=Path('data/benchmarks', output), help=text)
    return parser


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the argparse type of a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(',') if name not in known]:
            raise argparse.ArgumentTypeError(f'{unknown[0]!r} is not one of {", ".join(known)}')
        return text.split(',')

    return parse


def two_or_more(text: str) -> int:
    """The argparse type of a number of rounds."""
    if not text.isdigit() or int(text) < 2:
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number of at least 2')
    return int(text)


def run_script(main: Callable[[], int]) -> None:
    """Ends the process with the exit code of a script; errors are one line, without a traceback."""
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print('stopped; commands go on where they were if this one is given again', file=sys.stderr)
        sys.exit(130)


def take_runs(commands: Mapping[str, Sequence[str]], rounds: int, path: Path) -> dict[str, list[Record | None]]:
    """Runs commands by name, each in every round, and returns their results; None where a run failed."""
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
    for one in contestants:
        for failed in (run for run in runs.outcomes[one.name] if not succeeded(run)):
            print(f'{one.caption}: {describe(failed)}; to try it again, delete {failed.source}', file=sys.stderr)
    return {
        one.caption: [run if isinstance(run, Record) and run.is_complete else None for run in runs.outcomes[one.name]]
        for one in contestants
    }


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


def print_report(
    outcomes: Mapping[str, Sequence[Outcome | None]],
    measures: Sequence[Measure[Outcome]],
    pairs: Sequence[tuple[str, str]],
) -> int:
    """Prints the report; returns the exit code, 1 if a turn failed."""
    print(format_report(outcomes, measures, pairs))
    return int(any(one is None for found in outcomes.values() for one in found))


def as_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table; all but the first column are numbers."""
    return Table([TableColumn(title, is_number=bool(i)) for i, title in enumerate(titles)], rows).as_markdown()


def machine_line() -> str:
    """Formats the machine, the versions and the load, which belong to every table."""
    machine: Mapping[str, Any] = machine_facts()
    versions = ', '.join(f'{name} {version}' for name, version in machine['versions'].items() if version)
    load = ' '.join(f'{average:.1f}' for average in os.getloadavg())
    return f'{machine["cpu_model"]}, {versions}; {os.cpu_count()} cores, load {load}'
