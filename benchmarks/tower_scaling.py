"""The start-up cost of many towers: seconds to the end of the first step, and peak memory, for 1 and 8 towers.

    python benchmarks/tower_scaling.py --model=resnet50 --global_batch_size=8 --rounds=3

Each turn is a process of its own on virtual CPU devices, which takes one step. The time starts after TensorFlow is
imported and ends with the first step; it contains building the graph, TensorFlow's graph passes and the initial values.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.program import PROGRAM, Results, add_output, exit_code, take_runs
from benchmarks.standings import Measure, format_report
from benchmarks.turns import add_flags
from reporting.record import Record

MEASURES = (
    Measure[Record]('s to the first step', lambda run: first_step_secs(run), is_cost=True),
    Measure[Record](
        'MB at most', lambda run: run.document['memory']['host_peak_bytes'] / 1e6, is_cost=True, decimals=0
    ),
)


def first_step_secs(run: Record) -> float:
    """From the end of the imports until the first step was done."""
    phases = run.document['phases']
    return float(phases['first_step'] - phases['import'])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--global_batch_size', type=int, default=8)
    parser.add_argument('--towers', type=int, default=8)
    parser.add_argument('--variable_update', default='parameter_server,replicated', help='comma-separated modes')
    add_flags(parser, rounds=3, max_repeats=2)
    add_output(parser, 'tower_scaling')
    args = parser.parse_args()
    results = Results(args.output)
    for mode in args.variable_update.split(','):
        contestants = {}
        for towers in (1, args.towers):
            name = f'{mode}, {towers} tower{"s" if towers > 1 else ""}'
            flags = [f'--model={args.model}', f'--variable_update={mode}', f'--num_gpus={towers}', '--device=cpu']
            flags += [f'--batch_size={args.global_batch_size // towers}', '--num_warmup_batches=0', '--num_batches=1']
            contestants[name] = results.contestant(name, [*PROGRAM, *flags])
        one, many = contestants
        print(format_report(take_runs(contestants, args), MEASURES, [(many, one)]), end='\n\n', flush=True)


if __name__ == '__main__':
    sys.exit(exit_code(main))
