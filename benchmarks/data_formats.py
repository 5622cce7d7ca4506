"""Compares training in NCHW and in NHWC: on GPUs in each precision, on a CPU in fp32.

    python benchmarks/data_formats.py --device=gpu --model=resnet50 --batch_size=128 --rounds=5
    python benchmarks/data_formats.py --device=cpu --model=resnet50 --batch_size=16 --rounds=20

On a GPU each turn is a process of its own, because TF32 is a setting of the process; flags that this script does not
know go to the runs. On a CPU steps alternate in one process.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from benchmarks.program import PROGRAM, Results, add_output, exit_code, take_runs
from benchmarks.standings import Measure, Throughput, format_report
from benchmarks.turns import add_flags, take_turns

_FORMATS = ('NCHW', 'NHWC')
_PRECISIONS = {
    'fp32': ('--precision=fp32', '--notf32'),
    'fp32 in TF32': ('--precision=fp32', '--tf32'),
    'fp16': ('--precision=fp16',),
    'bf16': ('--precision=bf16',),
}


def on_gpus(flags: Sequence[str], args: argparse.Namespace) -> str:
    """The report of both formats in each precision.

    Raises:
      benchmarks.program.RunFailedError: a run failed.
    """
    results, contestants = Results(args.output), {}
    for precision, own in _PRECISIONS.items():
        for name in _FORMATS:
            argv = [*PROGRAM, '--device=gpu', *flags, *own, f'--data_format={name}']
            contestants[f'{precision}, {name}'] = results.contestant(f'{precision}, {name}', argv)
    pairs = [(f'{precision}, NCHW', f'{precision}, NHWC') for precision in _PRECISIONS]
    return format_report(take_runs(contestants, args), [Throughput()], pairs)


def on_a_cpu(args: argparse.Namespace) -> str:
    """The report of both formats, alternating steps in this process."""
    from benchmarks.harness import Harness

    with contextlib.ExitStack() as stack:
        contestants = {
            name: stack.enter_context(
                Harness(args, model=args.model, device='cpu', batch_size=args.batch_size, data_format=name)
            ).take_step
            for name in _FORMATS
        }
        turns = take_turns(
            contestants, args.rounds, max_repeats=args.max_repeats, show=lambda seconds: f'{seconds:.4g} s'
        )
    rate = Measure[float]('images/sec', lambda seconds: args.batch_size / seconds, is_paired=True)
    return format_report(turns, [rate], [_FORMATS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--batch_size', type=int, default=16)
    parser.add_argument('--num_batches', type=int, default=20, help='timed steps of each run on GPUs')
    parser.add_argument('--num_warmup_batches', type=int, default=3)
    add_flags(parser, rounds=20, max_repeats=2)
    add_output(parser, 'data_formats')
    args, flags = parser.parse_known_args()
    if args.device == 'gpu':
        own = ('model', 'batch_size', 'num_batches', 'num_warmup_batches')
        print(on_gpus([*(f'--{name}={getattr(args, name)}' for name in own), *flags], args))
        return
    if flags:
        parser.error(f'{" ".join(flags)}: on a CPU it takes no flags of runs')
    print(on_a_cpu(args))


if __name__ == '__main__':
    sys.exit(exit_code(main))
