"""Reads the flags of a peer, times its steps, and prints images/sec as this program does.

Does not import TensorFlow.
"""

import argparse
import time
from collections.abc import Callable

# Bottleneck blocks of the four stages: He et al. 2015, table 1.
BLOCKS = (3, 4, 6, 3)
WEIGHT_DECAY, NUM_CLASSES = 4e-5, 1001
IMAGE_SIZE = 224  # of ResNet-50
# Constant, and low enough for random labels, as the program's schedule at its start. It does not
# affect the speed.
LEARNING_RATE = 0.005


def make_parser(description: str) -> argparse.ArgumentParser:
    """Returns the parser of a peer. The flags have the same meaning as in this program."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in {'batch_size': 32, 'num_batches': 10, 'num_warmup_batches': 2}.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--forward_only', action='store_true')
    return parser


def run_steps(args: argparse.Namespace, peer: str, step: Callable[[], float]) -> None:
    """Takes the steps and prints images/sec of the timed ones.

    Args:
      peer: the software, with its version.
      step: takes one step and returns the loss.
    """
    for _ in range(args.num_warmup_batches):
        step()
    start = time.perf_counter()
    for _ in range(args.num_batches):
        loss = step()
    seconds = time.perf_counter() - start
    print(f'{peer}: loss {loss:.3f}')
    print(f'total images/sec: {args.batch_size * args.num_batches / seconds:.2f}')
