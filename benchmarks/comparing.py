"""Compares commands in pairs with `compare --command`; the scripts of this folder share it."""

import argparse
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from tf_cnn.system.errors import format_flag
from tf_cnn.system.place import PROGRAM
from tf_cnn_benchmarks import main

ROOT = Path(PROGRAM[-1]).parent
# What this program and all peers print.
TOTAL = r'total images/sec: (\S+)'


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
    parser.add_argument('--rounds', type=int, default=rounds, help='how often each case runs')
    folder = output and Path('data/benchmarks', output)
    text = 'folder for results and logs; the same commands continue their folder'
    parser.add_argument('--output', type=Path, default=folder, help=text)
    for name, default in numbers.items():
        parser.add_argument(f'--{name}', type=int, default=default, help=' ')
    return parser


def comma_separated(choices: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(',') if name not in choices]:
            raise argparse.ArgumentTypeError(f'{unknown[0]!r} is not one of {", ".join(choices)}')
        return text.split(',')

    return parse


def compare_pairs(
    commands: Mapping[str, Sequence[object]],
    pairs: Sequence[tuple[str, str]],
    args: argparse.Namespace,
    rate: str | None = TOTAL,
) -> int:
    """Compares the first command of each pair with the second, the baseline.

    commands: the words of each command, by its name.
    rate: the value of --rate. Returns the highest exit code. Wrong use or a signal ends the
      comparisons.
    """
    exit_code = 0
    for name, baseline in pairs:
        print(f'\n{name} (B) / {baseline} (A)', flush=True)
        texts = [shlex.join(map(str, commands[side])) for side in (baseline, name)]
        words = [format_flag('command', text) for text in texts]
        words.append(format_flag('rounds', args.rounds))
        words += [format_flag('rate', rate)] if rate else []
        if args.output:
            folder = re.sub(r'[^\w.=-]+', '-', f'{name}-{baseline}')
            words.append(format_flag('output', args.output / folder))
        exit_code = max(exit_code, main(['compare', *words]))
        if exit_code > 1:
            break
    return exit_code
