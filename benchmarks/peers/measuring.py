"""The flags of a peer, and its timed steps. Needs no TensorFlow."""

import argparse
import json
import time
from collections.abc import Callable, Mapping

from benchmarks.peers.document import make_document
from hardware.atomic import write_whole
from hardware.meters import Disturbances

# Bottleneck blocks of the four stages: He et al. 2015, table 1.
BLOCKS = (3, 4, 6, 3)


def parse_flags(description: str, extra: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Reads the command line, whose flags have the same meaning as in this program; `extra` adds flags of one peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--batch_size', type=int, default=32)
    parser.add_argument('--num_batches', type=int, default=10)
    parser.add_argument('--num_warmup_batches', type=int, default=2)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--forward_only', action='store_true')
    parser.add_argument('--result_file', help='the JSON file to write')
    if extra:
        extra(parser)
    return parser.parse_args()


def run_steps(
    args: argparse.Namespace,
    peer: str,
    versions: Mapping[str, str],
    step: Callable[[], float],
    model: str = 'resnet50',
    *,
    is_synthetic: bool = True,
) -> None:
    """Takes the steps, prints images/sec, and writes the result.

    Args:
      args: the result of parse_flags.
      peer: the name of the software.
      versions: the versions of its libraries.
      step: takes a step and returns the loss.
      model: the name of the network in this program.
      is_synthetic: whether no images are read.

    Raises:
      OSError: the result cannot be written.
    """
    disturbances = Disturbances()
    starts, seconds, losses = [], [], []
    # One clock for starts and durations, so that their sums agree.
    first = time.time() - time.perf_counter()
    for number in range(args.num_warmup_batches + args.num_batches):
        if number == args.num_warmup_batches:
            disturbances.start()
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
        starts.append(first + start)
    document = make_document(
        args, peer, versions, starts, seconds, losses, disturbances.stop(), model, is_synthetic=is_synthetic
    )
    print(f'{peer}: loss {losses[-1]:.3f}')
    print(f'total images/sec: {document["throughput"]["images_per_second"]:.2f}')
    if args.result_file:
        write_whole(json.dumps(document), args.result_file)
