"""The flags of a peer, its timed steps, and the result document that it writes. Needs no TensorFlow."""

import argparse
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hardware.meters import Disturbances, host_peak_bytes
from hardware.surroundings import environment_facts, machine_facts
from reporting.record import RESULT, SCHEMA_VERSION, write_document

LEARNING_RATE, WEIGHT_DECAY, NUM_CLASSES, IMAGE_SIZE = 0.005, 4e-5, 1001, 224
# Bottleneck blocks of the four stages: He et al. 2015, table 1.
BLOCKS = (3, 4, 6, 3)


def parse_flags(description: str, extra: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """The flags of the command line, which mean what they mean to this program; `extra` adds those of one peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--batch_size', type=int, default=32)
    parser.add_argument('--num_batches', type=int, default=10)
    parser.add_argument('--num_warmup_batches', type=int, default=2)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--forward_only', action='store_true')
    parser.add_argument('--result_file', type=Path, help='the JSON file to write')
    if extra:
        extra(parser)
    return parser.parse_args()


def run_steps(args: argparse.Namespace, peer: str, versions: Mapping[str, str], step: Callable[[], float]) -> None:
    """Takes the steps, prints images/sec, and writes the result.

    Args:
      args: of parse_flags. peer: its name. versions: of its libraries. step: takes a step and returns the loss.
    """
    begun, disturbances = datetime.now(timezone.utc), Disturbances()
    starts, seconds, losses = [], [], []
    for number in range(args.num_warmup_batches + args.num_batches):
        if number == args.num_warmup_batches:
            disturbances.start()
        start = time.time()
        clock = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - clock)
        starts.append(start)
    disturbance = disturbances.stop()
    timed = slice(args.num_warmup_batches, None)
    images, wall = args.num_batches * args.batch_size, starts[-1] + seconds[-1] - starts[args.num_warmup_batches]
    print(f'{peer}: loss {losses[-1]:.3f}\ntotal images/sec: {images / wall:.2f}')
    if not args.result_file:
        return
    num_warmup, machine = args.num_warmup_batches, machine_facts()
    document: dict[str, Any] = {
        'schema': RESULT,
        'schema_version': SCHEMA_VERSION,
        'id': uuid.uuid4().hex,
        'complete': True,
        'ended': {'exit_code': 0, 'reason': None},
        'started_at': f'{begun:%Y-%m-%dT%H:%M:%SZ}',
        'program': {'peer': peer},
        'command': {'argv': [], 'flags': {'peer': peer}, 'given': {}},
        'run': {
            'role': 'forward-only' if args.forward_only else 'training',
            'precision': args.precision,
            'device': 'cpu',
            'data_set': 'imagenet',
            'is_synthetic': True,
            'image_size': IMAGE_SIZE,
            'batch_size': args.batch_size,
            'optimizer': 'sgd',
        },
        'cluster': {'shape': '1*1'},
        'model': {'name': 'resnet50'},
        'workers': [
            {
                'steps': {
                    'phase': ['warmup'] * num_warmup + ['timed'] * args.num_batches,
                    'generation': [1] * len(seconds),
                    'start': starts,
                    'seconds': seconds,
                    'loss': losses,
                    'between': {},
                }
            }
        ],
        'throughput': {
            'images_per_second': images / wall,
            'images_per_second_of_steps': images / sum(seconds[timed]),
        },
        'memory': {'host_peak_bytes': host_peak_bytes()},
        'machine': machine | {'versions': machine['versions'] | versions},
        'environment': environment_facts(os.environ),
        'disturbance': disturbance,
        'warnings': [],
    }
    write_document(json.dumps(document), str(args.result_file))
