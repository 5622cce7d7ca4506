"""How often `compare` calls two runs of one setting different: it should be at most 5 % of pairs.

    python benchmarks/equal_runs.py --pairs=40

Each run is a process of its own: lenet with batches of 8. With --repeat=3 three runs are compared with three. The
results stay in --output, and results that are there already are not measured again. Exits with code 1 if more than 5 %
of pairs are called different.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.program import PROGRAM, Results, add_output, exit_code
from benchmarks.turns import load
from reporting.comparison import Ratio, compare, estimate
from reporting.record import Record

_FLAGS = ('--model=lenet', '--batch_size=8', '--num_warmup_batches=20', '--device=cpu')
MOST_DIFFERENT = 0.05


def compare_pairs(records: Sequence[Record], repeats: int) -> list[Ratio]:
    """The ratios of the first `repeats` records and the next ones, and so on."""
    sides = [estimate(records[i : i + repeats]) for i in range(0, len(records), repeats)]
    return [compare(before, after) for before, after in zip(sides[::2], sides[1::2], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--pairs', type=int, default=40)
    parser.add_argument('--repeat', type=int, default=1, help='runs on each side of a pair')
    parser.add_argument('--num_batches', type=int, default=200)
    add_output(parser, 'equal_runs')
    args = parser.parse_args()
    run = Results(args.output, keep=True).contestant('run', [*PROGRAM, *_FLAGS, f'--num_batches={args.num_batches}'])
    num_different = 0
    for pair in range(args.pairs):
        first = 2 * args.repeat * pair
        (ratio,) = compare_pairs([run(number) for number in range(first, first + 2 * args.repeat)], args.repeat)
        low, high = ratio.interval or (float('nan'), float('nan'))
        num_different += ratio.is_significant
        print(f'{pair + 1:3} {ratio.value:6.3f} ({low:.3f} to {high:.3f}) {ratio.verdict.value}; {load()}', flush=True)
    share = num_different / args.pairs
    print(f'{num_different} of {args.pairs} pairs of equal runs were called different: {share:.1%}')
    if share > MOST_DIFFERENT:
        sys.exit(1)


if __name__ == '__main__':
    sys.exit(exit_code(main))
