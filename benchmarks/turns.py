"""Measures commands or functions in rounds, and prints tables of their numbers and ratios.

The scripts of this folder share it. Commands write result files; tf_cnn/sweep/runner.py runs them.
"""

import argparse
import os
import re
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from tf_cnn.compare.intervals import estimate_runs
from tf_cnn.machine.meters import NoiseMeter
from tf_cnn.machine.run_environment import describe_machine
from tf_cnn.results.advice import DOUBT_MARK, LOADED_SHARE
from tf_cnn.results.document import Result
from tf_cnn.results.summary import format_machine
from tf_cnn.results.tables import Column, Table
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
from tf_cnn.system.errors import BenchmarkError, format_error, plural
from tf_cnn.system.signals import SIGNALS

ROOT = Path(PROGRAM[-1]).parent
# The numbers of one run by title. Ratios are of the first number.
Numbers = Mapping[str, float]
# The number that decides whether a run is doubtful.
_OTHERS = 'others, % of cores'


def numbers_of(run: Result) -> Numbers:
    return {'images/sec': run.images_per_second, **_noise_numbers(run.noise)}


def _noise_numbers(noise: Mapping[str, Any]) -> Numbers:
    # Unknown shares count as 0; runs under a second have none.
    other_share = (noise.get('other_cpu_share') or 0.0) + (noise.get('steal_share') or 0.0)
    return {_OTHERS: 100 * other_share}


def make_parser(
    doc: str | None, output: str | None = None, *, rounds: int = 3, **numbers: int
) -> argparse.ArgumentParser:
    """Returns a parser with --rounds and a flag for each number; with --output if `output` is set.

    The description is the first line of `doc`; `output` is a folder in data/benchmarks.
    """
    parser = argparse.ArgumentParser(
        description=(doc or '').split('\n')[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        '--rounds', type=int, default=rounds, help='how often each case runs; intervals need 3'
    )
    if output:
        text = 'folder for results and logs; the same commands continue their folder'
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
    """Runs a script and exits with its exit code; prints errors as one line without a traceback."""
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(format_error(str(error)), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print('stopped; the same command continues its folder', file=sys.stderr)
        sys.exit(130)


def run_commands(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    path: Path,
    numbers: Callable[[Result], Numbers] = numbers_of,
) -> dict[str, list[Numbers | None]]:
    """Runs each command once in every round.

    Returns name -> numbers of each run; None for a run that failed.
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
        command.caption: [] for command in repeated_commands
    }
    for command in repeated_commands:
        for run in runs.outcomes[command.name]:
            if isinstance(run, Result) and run.is_complete:
                numbers_by_caption[command.caption].append(numbers(run))
            else:
                numbers_by_caption[command.caption].append(None)
                print(
                    f'{command.caption}: {describe_outcome(run)}; to try it again, delete '
                    f'{run.source}',
                    file=sys.stderr,
                )
    return numbers_by_caption


def run_in_turns(
    cases: Mapping[str, Callable[[], Numbers]], rounds: int, *, is_shown: bool = True
) -> dict[str, list[Numbers]]:
    """Calls each function once in every round.

    is_shown: whether to print each number, and to measure what others used of the cores meanwhile.
    Returns name -> numbers of each call.
    """
    names = [*cases]
    numbers_by_name: dict[str, list[Numbers]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in (names[index] for index in order_of_round(len(names), number)):
            meter = NoiseMeter()
            meter.start()
            numbers = cases[name]()
            noise = _noise_numbers(meter.stop()) if is_shown else {}
            numbers_by_name[name].append({**numbers, **noise})
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
    """Prints the mean numbers of each case, and the ratios of the pairs, the first over the second.

    Ratios are formed in each round, so noise that lasts a whole round cancels. Doubtful numbers
    have the mark of the program's own tables. Returns 1 if a run failed.
    """
    all_runs = [numbers for runs in outcomes.values() for numbers in runs]
    titles = next((list(numbers) for numbers in all_runs if numbers), [''])
    rows = []
    for name, runs in outcomes.items():
        successful = [numbers for numbers in runs if numbers]
        mark = f'{DOUBT_MARK} ' if any(map(_is_doubtful, successful)) else ''
        cells = [
            f'{mark if title == titles[0] else ""}'
            f'{statistics.fmean(numbers[title] for numbers in successful):.4g}'
            if successful
            else ''
            for title in titles
        ]
        rows.append([name, *cells, f'{len(successful)} of {len(runs)}'])
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
            mark = f'{DOUBT_MARK} ' if any(map(_is_doubtful, sum(complete_rounds, ()))) else ''
            ratios.append([' / '.join(names), f'{mark}{ratio.images_per_second:.3f}', interval])
    parts = ['; '.join(format_machine(describe_machine())), as_table(['', *titles, 'turns'], rows)]
    if ratios:
        parts.append(as_table([f'ratio of {titles[0]}', 'ratio', '95 %'], ratios))
    if doubtful := [numbers for numbers in all_runs if numbers and _is_doubtful(numbers)]:
        largest = max(numbers[_OTHERS] for numbers in doubtful)
        parts.append(
            f'{DOUBT_MARK} in {len(doubtful)} of {plural(len(all_runs), "run")} other processes or '
            f'virtual machines used more than {100 * LOADED_SHARE:.0f} % of the cores, up to '
            f'{largest:.0f} %; measure on an idle machine'
        )
    print(*parts, sep='\n\n')
    return int(any(numbers is None for numbers in all_runs))


def _is_doubtful(numbers: Numbers) -> bool:
    return numbers.get(_OTHERS, 0.0) > 100 * LOADED_SHARE


def as_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = [Column(title, itemgetter(i), is_number=bool(i)) for i, title in enumerate(titles)]
    return Table(columns, rows).as_markdown()
