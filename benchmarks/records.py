"""Compares training on JPEG records in this program, with default flags, and in a tf.data loop.

    python -m benchmarks.records --data_dir=data/records --rounds=3

The network is `trivial`: its short steps leave most of the CPU to the input pipeline. The loop is
benchmarks/peers/plain_tensorflow.py. Each run is a new process.
"""

import sys

from benchmarks.turns import make_parser, print_report, run_commands, run_script
from tf_cnn.sweep.runner import PROGRAM

_PLAIN = (sys.executable, '-m', 'benchmarks.peers.plain_tensorflow')
_PIPELINES = ('record_input', 'tf_data')
_SIZES = {'batch_size': 64, 'num_batches': 60, 'num_warmup_batches': 10}


def main() -> int:
    parser = make_parser(__doc__, 'records', **_SIZES)
    parser.add_argument('--data_dir', required=True, help='folder with train-*-of-* shards')
    parser.add_argument('flags', nargs='*', help='further flags of this program, after --')
    args = parser.parse_args()
    common = [f'--{name}={getattr(args, name)}' for name in ('data_dir', *_SIZES)]
    ours = [
        *PROGRAM,
        '--model=trivial',
        '--data_name=imagenet',
        '--device=cpu',
        *common,
        *args.flags,
    ]
    commands = {'plain tf.data': [*_PLAIN, *common]}
    commands |= {pipeline: [*ours, f'--input_pipeline={pipeline}'] for pipeline in _PIPELINES}
    pairs = [(pipeline, 'plain tf.data') for pipeline in _PIPELINES]
    return print_report(run_commands(commands, args.rounds, args.output), pairs)


if __name__ == '__main__':
    run_script(main)
