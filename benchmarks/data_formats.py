"""Compares training in NCHW and in NHWC: on GPUs in each precision, on a CPU in fp32.

    python benchmarks/data_formats.py --device=gpu --model=resnet50 --batch_size=128 --rounds=5
    python benchmarks/data_formats.py --device=cpu --model=resnet50 --batch_size=16 --num_batches=20

On a GPU each run is a process of its own, in turns, because TF32 is a setting of the process; flags that this script
does not know go to the runs. On a CPU steps alternate in one process.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from benchmarks.launched import RunFailedError
from benchmarks.turns import compare_in_turns

_FORMATS = ('NCHW', 'NHWC')
_PRECISIONS = {
    'fp32': ('--precision=fp32', '--notf32'),
    'fp32 in TF32': ('--precision=fp32', '--tf32'),
    'fp16': ('--precision=fp16',),
    'bf16': ('--precision=bf16',),
}


def on_gpus(flags: Sequence[str], rounds: int) -> None:
    """Prints the rates of both formats in each precision.

    Raises:
      benchmarks.launched.RunFailedError: a run failed.
    """
    for precision, own in _PRECISIONS.items():
        variants = {f'{precision}, {name}': (*own, f'--data_format={name}') for name in _FORMATS}
        compare_in_turns(variants, ['--device=gpu', *flags], rounds)
        print()


def on_a_cpu(model: str, batch_size: int, num_batches: int, num_warmup: int) -> None:
    """Prints the rates of both formats, alternating steps in this process."""
    from benchmark_cnn import BenchmarkCNN
    from benchmarks.interleave import compare
    from params import make_params

    def steps(data_format: str) -> Iterator[float]:
        params = make_params(
            model=model,
            device='cpu',
            data_format=data_format,
            batch_size=batch_size,
            num_batches=num_batches,
            num_warmup_batches=num_warmup,
        )
        return (step.seconds for step in BenchmarkCNN(params).steps())

    compare(_FORMATS, (steps('NCHW'), steps('NHWC')), batch_size, num_warmup, num_batches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--batch_size', type=int, default=16)
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--num_warmup_batches', type=int, default=3)
    parser.add_argument('--rounds', type=int, default=5, help='runs of each format and precision on GPUs')
    args, flags = parser.parse_known_args()
    if args.device == 'cpu':
        if flags:
            parser.error(f'{" ".join(flags)}: on a CPU it takes no flags of runs')
        on_a_cpu(args.model, args.batch_size, args.num_batches, args.num_warmup_batches)
        return 0
    own = ('model', 'batch_size', 'num_batches', 'num_warmup_batches')
    try:
        on_gpus([*(f'--{name}={getattr(args, name)}' for name in own), *flags], args.rounds)
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
