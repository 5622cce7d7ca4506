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
from tf_cnn.machine.run_environment import describe_machine
from tf_cnn.results.document import Result
from tf_cnn.results.summary import format_machine
from tf_cnn.results.tables import Table, TableColumn
from tf_cnn.sweep.folder import Folder
from tf_cnn.sweep.runner import (
    PROGRAM,
    InterleavedRuns,
    RepeatedCommand,
    Runner,
    describe_outcome,
    make_failure,
    order_of_round,
)
from tf_cnn.system.errors import BenchmarkError, format_error
from tf_cnn.system.signals import SIGNALS

ROOT = Path(PROGRAM[-1]).parent
# What a turn found, by title. The first number is the one whose ratios are formed.
Numbers = Mapping[str, float]


def numbers_of(run: Result) -> Numbers:
    noise = run.noise
    # 0 also where it is unknown, as for runs under a second.
    other_share = (noise.get('other_cpu_share') or 0.0) + (noise.get('steal_share') or 0.0)
    return {'images/sec': run.images_per_second, 'others, % of cores': 100 * other_share}


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


def comma_separated(choices: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(',') if name not in choices]:
            raise argparse.ArgumentTypeError(f'{unknown[0]!r} is not one of {", ".join(choices)}')
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


def run_commands(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    path: Path,
    numbers: Callable[[Result], Numbers] = numbers_of,
) -> dict[str, list[Numbers | None]]:
    """Runs commands by name, each in every round, and returns the numbers of their results; None
    where a run failed.
    """
    repeated_commands = []
    for name, argv in commands.items():
        file = re.sub(r'[^\w.=-]', '_', name)
        repeated_commands.append(
            RepeatedCommand(f'{file}/{file}', name, argv, make_failure(argv, {}, '1*1'))
        )
    folder = Folder(path)
    folder.create_or_resume({command.name: command.argv for command in repeated_commands})
    runs = InterleavedRuns(
        repeated_commands, rounds, folder, Runner((), {'TF_CPP_MIN_LOG_LEVEL': '2', **os.environ})
    )
    with folder.locked(), SIGNALS.storing():
        for finished_run in runs.run():
            _print_round(
                finished_run.round_number,
                finished_run.command.caption,
                describe_outcome(finished_run.outcome),
            )
    numbers_by_caption: dict[str, list[Numbers | None]] = {
        one.caption: [] for one in repeated_commands
    }
    for one in repeated_commands:
        for run in runs.outcomes[one.name]:
            if isinstance(run, Result) and run.is_complete:
                numbers_by_caption[one.caption].append(numbers(run))
            else:
                numbers_by_caption[one.caption].append(None)
                print(
                    f'{one.caption}: {describe_outcome(run)}; to try it again, delete {run.source}',
                    file=sys.stderr,
                )
    return numbers_by_caption


def run_in_turns(
    cases: Mapping[str, Callable[[], Numbers]], rounds: int, *, is_shown: bool = True
) -> dict[str, list[Numbers]]:
    names = [*cases]
    numbers_by_name: dict[str, list[Numbers]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in (names[index] for index in order_of_round(len(names), number)):
            numbers_by_name[name].append(cases[name]())
            if is_shown:
                latest = numbers_by_name[name][-1].items()
                _print_round(
                    number, name, ', '.join(f'{value:.4g} {title}' for title, value in latest)
                )
    return numbers_by_name


def _print_round(number: int, name: str, text: str) -> None:
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
        successful = [one for one in found if one]
        cells = [
            f'{statistics.fmean(one[title] for one in successful):.4g}' if successful else ''
            for title in titles
        ]
        rows.append([name, *cells, f'{len(successful)} of {len(found)}'])
    ratios = []
    for names in pairs:
        complete_rounds = [
            (o, t) for o, t in zip(*(outcomes[name] for name in names), strict=False) if o and t
        ]
        if complete_rounds:
            ratio = estimate_runs(
                [ours[titles[0]] / theirs[titles[0]] for ours, theirs in complete_rounds]
            )
            ends = ratio.interval
            interval = f'{ends[0]:.3f} to {ends[1]:.3f}' if ends else ''
            ratios.append([' / '.join(names), f'{ratio.images_per_second:.3f}', interval])
    tables = (
        as_table(['', *titles, 'turns'], rows),
        as_table([f'ours / theirs, {titles[0]}', 'ratio', '95 %'], ratios),
    )
    print('; '.join(format_machine(describe_machine())), *tables, sep='\n\n')
    return int(any(one is None for found in outcomes.values() for one in found))


def as_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(
        [TableColumn(title, is_number=bool(i)) for i, title in enumerate(titles)], rows
    ).as_markdown()
