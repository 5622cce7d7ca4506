"""What --gpu_thread_mode is worth: training on real data with each of its values, in turns.

    python benchmarks/gpu_threads.py --rounds=5 --model=resnet50 --data_dir=data/records --precision=fp16 --num_gpus=2

Kernels of GPUs are started by threads of the host. With `global` these are the threads that also decode images; so the
difference is largest where images are decoded just fast enough. Flags that this script does not know go to the runs. It
also measures `global` with --num_intra_threads=1, since the other two leave one thread to each operation.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.program import PROGRAM, Results, add_output, exit_code, take_runs
from benchmarks.standings import Throughput, format_report
from benchmarks.turns import add_flags

_BASELINE = 'global'
_VARIANTS = {
    _BASELINE: ('--gpu_thread_mode=global',),
    'global, 1 intra-op thread': ('--gpu_thread_mode=global', '--num_intra_threads=1'),
    'gpu_shared': ('--gpu_thread_mode=gpu_shared',),
    'gpu_private': ('--gpu_thread_mode=gpu_private',),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument('--device', choices=('gpu', 'cpu'), default='gpu', help='cpu: only to try this script')
    parser.add_argument('--data_dir', required=True, help='records of images, as the subcommand records writes them')
    add_flags(parser, rounds=5, max_repeats=2)
    add_output(parser, 'gpu_threads')
    args, flags = parser.parse_known_args()
    results, common = Results(args.output), [f'--device={args.device}', f'--data_dir={args.data_dir}', *flags]
    contestants = {name: results.contestant(name, [*PROGRAM, *common, *own]) for name, own in _VARIANTS.items()}
    turns = take_runs(contestants, args)
    print(format_report(turns, [Throughput()], [(name, _BASELINE) for name in _VARIANTS if name != _BASELINE]))


if __name__ == '__main__':
    sys.exit(exit_code(main))
