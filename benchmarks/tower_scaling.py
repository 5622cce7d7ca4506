"""The start-up cost of many towers: seconds to the end of the first step, and peak memory, for 1 and 8 towers.

    python benchmarks/tower_scaling.py --model=resnet50 --global_batch_size=8 --rounds=3

Each measurement runs in its own process on virtual CPU devices, alternating 1 and 8 towers. The time starts after
TensorFlow is imported and ends with the first step; it contains building the graph, TensorFlow's graph passes and the
initial values.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def measure(model: str, variable_update: str, num_towers: int, global_batch_size: int) -> dict[str, float]:
    """Runs one step in this process; returns its seconds and the peak memory in MiB."""
    sys.path.insert(0, str(_ROOT))
    from benchmark_cnn import BenchmarkCNN
    from params import make_params

    params = make_params(
        model=model,
        device='cpu',
        num_gpus=num_towers,
        batch_size=global_batch_size // num_towers,
        variable_update=variable_update,
        num_warmup_batches=0,
        num_batches=1,
    )
    start = time.perf_counter()
    BenchmarkCNN(params).run()
    seconds = time.perf_counter() - start
    return {'seconds': seconds, 'megabytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--global_batch_size', type=int, default=8)
    parser.add_argument('--towers', type=int, default=8)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--variable_update', default='parameter_server,replicated', help='comma-separated modes')
    parser.add_argument('--only', type=int, help='measure this many towers in this process and print JSON')
    args = parser.parse_args()
    modes = args.variable_update.split(',')
    if args.only:
        print(json.dumps(measure(args.model, modes[0], args.only, args.global_batch_size)))
        return 0
    for mode in modes:
        found: dict[int, list[dict[str, float]]] = {1: [], args.towers: []}
        for _ in range(args.rounds):
            for num_towers, measured in found.items():
                command = [sys.executable, __file__, f'--model={args.model}', f'--only={num_towers}']
                command += [f'--variable_update={mode}', f'--global_batch_size={args.global_batch_size}']
                environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'}
                ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
                measured.append(json.loads(ran.stdout.splitlines()[-1]))
        for num_towers, measured in found.items():
            seconds = [one['seconds'] for one in measured]
            megabytes = max(one['megabytes'] for one in measured)
            print(
                f'{mode}, {num_towers} towers: first step done after {statistics.median(seconds):.1f} s '
                f'({min(seconds):.1f} to {max(seconds):.1f}), peak memory {megabytes:.0f} MB',
                flush=True,
            )
        ratios = [many['seconds'] / one['seconds'] for one, many in zip(found[1], found[args.towers], strict=True)]
        spread = f'{min(ratios):.2f} to {max(ratios):.2f}'
        print(f'{mode}, {args.towers} towers / 1: {statistics.median(ratios):.2f} ({spread})')
    return 0


if __name__ == '__main__':
    sys.exit(main())
