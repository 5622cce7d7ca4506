"""Training on JPEG records: the command with its default flags, beside plain loops with tf.data, in turns.

    python benchmarks/records.py --data_dir=data/records --rounds=3

The network is `trivial`, whose steps leave most of the processor to the images; benchmarks/peers/plain_records.py
describes the plain loops. Each turn is a new process.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command_runs import PROGRAM, ROOT, Results, add_output, exit_code, take_runs
from benchmarks.standings import Throughput, format_report
from benchmarks.turns import add_flags

_PLAIN = (sys.executable, str(ROOT / 'benchmarks' / 'peers' / 'plain_records.py'))
_OURS = ('record_input', 'tf_data')
# The flags of the plain loops, by the end of their names: with a decoder of windows, and of whole pictures.
_THEIRS = {'plain tf.data': (), 'plain tf.data, whole pictures': ('--whole_pictures',)}
_COLOURS = {'': (), ', distortions': ('--distortions',)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--data_dir', required=True, help='folder with train-*-of-* shards')
    parser.add_argument('--batch_size', type=int, default=64)
    parser.add_argument('--num_batches', type=int, default=60)
    parser.add_argument('--num_warmup_batches', type=int, default=10)
    parser.add_argument('flags', nargs='*', help='further flags of this program, after --')
    add_flags(parser, rounds=3, max_repeats=2)
    add_output(parser, 'records')
    args = parser.parse_args()
    common = [
        f'--{name}={getattr(args, name)}' for name in ('data_dir', 'batch_size', 'num_batches', 'num_warmup_batches')
    ]
    command = [*PROGRAM, '--model=trivial', '--data_name=imagenet', '--device=cpu', *common, *args.flags]
    results, contestants, pairs = Results(args.output), {}, []
    for ending, colours in _COLOURS.items():
        peers = {f'{name}{ending}': flags for name, flags in _THEIRS.items()}
        for pipeline in _OURS:
            name = f'{pipeline}{ending}'
            contestants[name] = results.contestant(name, [*command, f'--input_pipeline={pipeline}', *colours])
            pairs += [(name, peer) for peer in peers]
        for name, flags in peers.items():
            contestants[name] = results.contestant(name, [*_PLAIN, *common, *flags, *colours])
    print(format_report(take_runs(contestants, args), [Throughput()], pairs))


if __name__ == '__main__':
    sys.exit(exit_code(main))
