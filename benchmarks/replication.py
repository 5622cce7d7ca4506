"""Compares one device, in-graph replication and between-graph replication on a small network.

    python benchmarks/sample_digits.py --output=data/mnist --format=mnist
    python -m benchmarks.replication --data_dir=data/mnist

The experiment of the article "Multi-GPU Training in TensorFlow" (benchmarks/README.md), with Adam
at 0.001 and batches of 128 on each device. All variants train on the same number of images, so the
replicated ones take half as many steps. The logs have the loss and the accuracy of each run.
"""

import sys

from benchmarks.comparing import ROOT, compare_pairs, make_parser
from tf_cnn.system.place import PROGRAM

_BASELINE = 'one device'
_CLUSTER = ('cluster', '--ps=1', '--workers=2', '--')
# For each variant: the words before the flags of the run, further flags, and the number of devices.
_VARIANTS = {
    _BASELINE: ((), (), 1),
    'in-graph, variables on the host': (
        (),
        ('--num_gpus=2', '--variable_update=parameter_server'),
        2,
    ),
    'in-graph, replicated variables': ((), ('--num_gpus=2', '--variable_update=replicated'), 2),
    'between-graph, synchronous': (_CLUSTER, ('--variable_update=parameter_server',), 2),
    'between-graph, asynchronous': (
        _CLUSTER,
        ('--variable_update=parameter_server', '--nocross_replica_sync'),
        2,
    ),
}


def main() -> int:
    parser = make_parser(
        __doc__, 'replication', batch_size=128, num_batches=400, num_warmup_batches=20
    )
    parser.add_argument(
        '--data_dir',
        required=True,
        help='folder with the files of MNIST, or the digits in its format',
    )
    args = parser.parse_args()
    if args.num_batches % 2 or args.num_warmup_batches % 2:
        parser.error(
            '--num_batches, --num_warmup_batches: two devices take half as many; use even numbers'
        )
    common = [
        f'--model_file={ROOT / "benchmarks" / "mnist_network.py"}',
        '--model=mnist_network',
        '--device=cpu',
    ]
    common += [f'--data_dir={args.data_dir}', f'--batch_size={args.batch_size}', '--optimizer=adam']
    common += ['--init_learning_rate=0.001', '--weight_decay=0', '--display_every=100']
    commands = {}
    for name, (before, flags, devices) in _VARIANTS.items():
        timed, warm_up = args.num_batches // devices, args.num_warmup_batches // devices
        # The evaluation follows the last step.
        steps = [f'--num_batches={timed}', f'--num_warmup_batches={warm_up}']
        steps.append(f'--eval_during_training_at_specified_steps={timed + warm_up}')
        commands[name] = [*PROGRAM, *before, *common, *flags, *steps]
    pairs = [(name, _BASELINE) for name in _VARIANTS if name != _BASELINE]
    return compare_pairs(commands, pairs, args)


if __name__ == '__main__':
    sys.exit(main())
