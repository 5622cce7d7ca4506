"""What the scripts of this folder share: contestants in rounds, and tables of their numbers and
ratios.

Contestants are commands that leave results, which the engine of `sweep` runs
(tf_cnn/sweep/runner.py), or functions.
"""

import argparse
import os
import re
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from tf_cnn.compare.intervals import estimate_runs
from tf_cnn.machine.surroundings import machine_facts
from tf_cnn.results.document import Result
from tf_cnn.results.summary import format_machine
from tf_cnn.results.tables import Table, TableColumn
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.runner import (
    PROGRAM,
    Contestant,
    Rounds,
    Starter,
    describe,
    failure_of,
    order_of_round,
)
from tf_cnn.system.errors import BenchmarkError, format_error
from tf_cnn.system.signals import SIGNALS

ROOT = Path(PROGRAM[-1]).parent
# What a turn found, by title. The first number is the one whose ratios are formed.
Numbers = Mapping[str, float]


def numbers_of(run: Result) -> Numbers:
    found = run.disturbance
    # 0 also where it is unknown, as for runs under a second.
    others = (found.get('other_cpu_share') or 0.0) + (found.get('steal_share') or 0.0)
    return {'images/sec': run.images_per_second, 'others, % of cores': 100 * others}


def make_parser(
    doc: str | None, output: str | None = None, *, rounds: int = 3, **numbers: int
) -> argparse.ArgumentParser:
    """Returns the parser of a script with --rounds, --output if it has results, and a flag for each
    number.
    """
    parser = argparse.ArgumentParser(
        description=(doc or '').split('\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        '--rounds', type=int, default=rounds, help='turns of each contestant; intervals need 3'
    )
    if output:
        text = 'folder for results and logs; that of the same commands goes on'
        parser.add_argument(
            '--output', type=Path, default=Path('data/benchmarks', output), help=text
        )
    for name, default in numbers.items():
        parser.add_argument(f'--{name}', type=int, default=default, help=' ')
    return parser


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(',') if name not in known]:
            raise argparse.ArgumentTypeError(f'{unknown[0]!r} is not one of {", ".join(known)}')
        return text.split(',')

    return parse


def run_script(main: Callable[[], int]) -> None:
    """Ends the process with the exit code of a script; errors are one line, without a traceback."""
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(format_error(str(error)), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print('stopped; commands go on where they were if this one is given again', file=sys.stderr)
        sys.exit(130)


def take_runs(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    path: Path,
    numbers: Callable[[Result], Numbers] = numbers_of,
) -> dict[str, list[Numbers | None]]:
    """Runs commands by name, each in every round, and returns the numbers of their results; None
    where a run failed.
    """
    contestants = []
    for name, words in commands.items():
        file = re.sub(r'[^\w.=-]', '_', name)
        contestants.append(Contestant(f'{file}/{file}', name, words, failure_of(words, {}, '1*1')))
    folder = Folder(path)
    folder.begin({one.name: one.words for one in contestants})
    runs = Rounds(
        contestants, rounds, folder, Starter((), {'TF_CPP_MIN_LOG_LEVEL': '2', **os.environ})
    )
    with folder.locked(), SIGNALS.storing():
        for turn in runs.run():
            _show(turn.number, turn.contestant.caption, describe(turn.outcome))
    found: dict[str, list[Numbers | None]] = {one.caption: [] for one in contestants}
    for one in contestants:
        for run in runs.outcomes[one.name]:
            if isinstance(run, Result) and run.is_complete:
                found[one.caption].append(numbers(run))
            else:
                found[one.caption].append(None)
                print(
                    f'{one.caption}: {describe(run)}; to try it again, delete {run.source}',
                    file=sys.stderr,
                )
    return found


def take_turns(
    contestants: Mapping[str, Callable[[], Numbers]], rounds: int, *, is_shown: bool = True
) -> dict[str, list[Numbers]]:
    names = [*contestants]
    taken: dict[str, list[Numbers]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in (names[index] for index in order_of_round(len(names), number)):
            taken[name].append(contestants[name]())
            if is_shown:
                found = taken[name][-1].items()
                _show(number, name, ', '.join(f'{value:.4g} {title}' for title, value in found))
    return taken


def _show(number: int, name: str, text: str) -> None:
    print(f'round {number}: {name}: {text}', file=sys.stderr, flush=True)


def print_report(
    outcomes: Mapping[str, Sequence[Numbers | None]], pairs: Sequence[tuple[str, str]]
) -> int:
    """Prints the mean numbers of each contestant, and the ratios of the first one of pairs (ours,
    theirs).

    Each round counts as one ratio, since what disturbs both turns of a round cancels. Returns 1 if
    a turn failed.
    """
    titles = next((list(one) for found in outcomes.values() for one in found if one), [''])
    rows = []
    for name, found in outcomes.items():
        good = [one for one in found if one]
        cells = [
            f'{statistics.fmean(one[title] for one in good):.4g}' if good else ''
            for title in titles
        ]
        rows.append([name, *cells, f'{len(good)} of {len(found)}'])
    ratios = []
    for names in pairs:
        both = [
            (o, t) for o, t in zip(*(outcomes[name] for name in names), strict=False) if o and t
        ]
        if both:
            ratio = estimate_runs([ours[titles[0]] / theirs[titles[0]] for ours, theirs in both])
            ends = ratio.interval
            interval = f'{ends[0]:.3f} to {ends[1]:.3f}' if ends else ''
            ratios.append([' / '.join(names), f'{ratio.images_per_second:.3f}', interval])
    tables = (
        as_table(['', *titles, 'turns'], rows),
        as_table([f'ours / theirs, {titles[0]}', 'ratio', '95 %'], ratios),
    )
    print('; '.join(format_machine(machine_facts())), *tables, sep='\n\n')
    return int(any(one is None for found in outcomes.values() for one in found))


def as_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(
        [TableColumn(title, is_number=bool(i)) for i, title in enumerate(titles)], rows
    ).as_markdown()
