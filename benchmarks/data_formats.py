"""Compares training in NCHW and in NHWC on a CPU, alternating steps in one process.

python benchmarks/data_formats.py --model=resnet50 --batch_size=16 --num_batches=20
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from benchmark_cnn import BenchmarkCNN
from benchmarks.interleave import compare
from params import make_params


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--batch_size', type=int, default=16)
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--num_warmup_batches', type=int, default=3)
    args = parser.parse_args()

    def steps(data_format: str) -> Iterator[float]:
        params = make_params(
            model=args.model,
            device='cpu',
            data_format=data_format,
            batch_size=args.batch_size,
            num_batches=args.num_batches,
            num_warmup_batches=args.num_warmup_batches,
        )
        return (step.seconds for step in BenchmarkCNN(params).steps())

    compare(
        ('NCHW', 'NHWC'), (steps('NCHW'), steps('NHWC')), args.batch_size, args.num_warmup_batches, args.num_batches
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
