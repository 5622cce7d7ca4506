"""Runs the command with several sets of flags in turns, and prints their rates and ratios.

    python benchmarks/settings.py towers
    python benchmarks/settings.py records --data_dir=data/records
    python benchmarks/settings.py mine --flags=--model=lenet --vary=default= --vary=one=--num_intra_threads=1

Each contestant is the command itself, in a process of its own, with no flags but those shown.

    towers   ResNet-50 with a global batch of 32 on 1, 2, 4 and 8 virtual devices, which share the cores
    records  `trivial` on JPEG records by each pipeline, and in plain loops with the usual pipelines of tf.data
             (peers/plain_records.py); and ResNet-50 on records and on synthetic images, whose steps take turns in one
             process, since few percent are at stake
    mine     what --flags and --vary say; the first variant is the baseline
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.program import PROGRAM, ROOT, Results, add_output, exit_code, take_runs
from benchmarks.standings import Measure, Throughput, format_report
from benchmarks.turns import add_flags, take_turns

_ON_CPU = (*PROGRAM, '--device=cpu', '--display_every=1000')
_PLAIN = (sys.executable, str(ROOT / 'benchmarks' / 'peers' / 'plain_records.py'))
_BATCH_SIZE, _STEPS_OF_ROUND = 32, 4


def towers() -> dict[str, Sequence[str]]:
    """ResNet-50 on 1, 2, 4 and 8 devices, with variables on the host and on each device."""
    common = [*_ON_CPU, '--model=resnet50', '--num_warmup_batches=2', '--num_batches=8']
    found: dict[str, Sequence[str]] = {'1 device': [*common, '--batch_size=32']}
    for mode in ('parameter_server', 'replicated'):
        for number in (2, 4, 8):
            flags = [f'--num_gpus={number}', f'--batch_size={32 // number}', f'--variable_update={mode}']
            found[f'{number} devices, {mode}'] = [*common, *flags]
    return found


def trivial_on_records(data_dir: str) -> dict[str, Sequence[str]]:
    """A model without work, on records: in plain loops with tf.data, and here by RecordInput and by tf.data."""
    steps = [f'--data_dir={data_dir}', '--batch_size=64', '--num_batches=100', '--num_warmup_batches=10']
    common = [*_ON_CPU, '--model=trivial', '--data_name=imagenet', *steps]
    return {
        'trivial, plain tf.data': [*_PLAIN, *steps],
        'trivial, plain tf.data, whole pictures': [*_PLAIN, *steps, '--whole_pictures'],
        'trivial, tf_data': [*common, '--input_pipeline=tf_data'],
        'trivial, record_input': common,
        'trivial, record_input, distortions': [*common, '--distortions'],
        'trivial, synthetic': [*common, '--data_dir='],
    }


def report_resnet50_on_records(args: argparse.Namespace) -> None:
    """ResNet-50 on synthetic images and on records."""
    from benchmarks.harness import Harness

    common: dict[str, Any] = {'device': 'cpu', 'model': 'resnet50', 'batch_size': _BATCH_SIZE}
    steps = argparse.Namespace(rounds=_STEPS_OF_ROUND * args.rounds, max_repeats=args.max_repeats, num_warmup_batches=6)
    of_records = {'data_dir': args.data_dir, 'data_name': 'imagenet'}
    with Harness(steps, **common) as synthetic, Harness(steps, **common, **of_records) as records:
        contestants = {'resnet50, synthetic': synthetic.take_step, 'resnet50, records': records.take_step}
        turns = take_turns(contestants, steps.rounds, max_repeats=args.max_repeats, show=lambda spent: f'{spent:.4g} s')
    rate = Measure[float]('images/sec', lambda seconds: _BATCH_SIZE / seconds, is_paired=True)
    print(format_report(turns, [rate], [('resnet50, records', 'resnet50, synthetic')]))


def mine(flags: str, variants: Sequence[str]) -> dict[str, Sequence[str]]:
    """By name: the flags of all, and those of the variant, which is written NAME=FLAGS."""
    named = [variant.partition('=') for variant in variants]
    return {name: [*PROGRAM, *shlex.split(flags), *shlex.split(own)] for name, _, own in named}


def report(contestants: Mapping[str, Sequence[str]], args: argparse.Namespace) -> None:
    """Prints the rates of the contestants, given as commands, and the ratios of the others to the first."""
    results = Results(args.output)
    runs = take_runs({name: results.contestant(name, argv) for name, argv in contestants.items()}, args)
    first, *others = contestants
    print(format_report(runs, [Throughput()], [(name, first) for name in others]), flush=True)
    print(f'\n{results.compare_line([first, others[0]])}\n')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog='settings.py'
    )
    parser.add_argument('what', choices=('towers', 'records', 'mine'))
    parser.add_argument('--data_dir', help='folder of records, for `records`')
    parser.add_argument('--flags', default='', help='of all contestants of `mine`, in one word')
    parser.add_argument('--vary', action='append', default=[], metavar='NAME=FLAGS', help='a contestant of `mine`')
    add_flags(parser, rounds=5, max_repeats=2)
    add_output(parser, 'settings')
    args = parser.parse_args()
    if args.what == 'records' and not args.data_dir:
        parser.error('records: give --data_dir, a folder that `tf_cnn_benchmarks.py records` has written')
    if args.what == 'mine' and (len(args.vary) < 2 or not all('=' in variant for variant in args.vary)):
        parser.error('mine: give --vary=NAME=FLAGS at least twice')
    if args.what == 'towers':
        report(towers(), args)
    elif args.what == 'mine':
        report(mine(args.flags, args.vary), args)
    else:
        report(trivial_on_records(args.data_dir), args)
        report_resnet50_on_records(args)


if __name__ == '__main__':
    sys.exit(exit_code(main))
