"""A large cluster on one machine: seconds to its first step and to its end, and the memory of each process.

    python benchmarks/cluster_start.py --workers=16 --ps=4 --model=trivial

Exits with code 0 if every process did. The private memory of a process is what one more process costs; the rest of its
resident memory is TensorFlow's libraries, which all processes share. Linux only.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.launched import RunFailedError, load, run_cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--workers', type=int, default=16)
    parser.add_argument('--ps', type=int, default=4)
    parser.add_argument('--model', default='trivial')
    parser.add_argument('--batch_size', type=int, default=4, help='images per step on each worker')
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--variable_update', default='parameter_server')
    args = parser.parse_args()
    print(f'{args.workers} workers and {args.ps} ps of {args.model}; {load()}', flush=True)
    flags = [f'--{name}={getattr(args, name)}' for name in ('model', 'batch_size', 'num_batches', 'variable_update')]
    try:
        run = run_cluster(args.ps, args.workers, [*flags, '--device=cpu', '--num_warmup_batches=1'])
    except RunFailedError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f'first step done after {run.warm_up_secs:.1f} s, all processes ended after {run.seconds:.1f} s')
    print(f'{run.images_per_second:.1f} images/sec')
    print('peak memory   resident   of its own')
    for name, memory in run.memory.items():
        print(f'{name:<10} {memory.resident:8.0f} MB {memory.private:9.0f} MB')
    print(f'{"all":<21} {sum(memory.private for memory in run.memory.values()):10.0f} MB')
    return 0


if __name__ == '__main__':
    sys.exit(main())
