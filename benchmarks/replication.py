"""One device, in-graph replication and between-graph replication on a small network, with the loss that each reaches.

    python benchmarks/sample_digits.py --output=data/mnist --format=mnist
    python benchmarks/replication.py --data_dir=data/mnist

The experiment of the article "Multi-GPU Training in TensorFlow": the MNIST network of TensorFlow's tutorial
(benchmarks/mnist_network.py), Adam at 0.001, batches of 128 on each device. The variants are one device, two devices of
one process (variables on the host, or a copy on each device), and two workers with one parameter server, synchronous
and asynchronous. All train on the same number of images, so the replicated ones take half as many steps, each on twice
the images. --data_dir may also be MNIST.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.turns import OTHERS, PROGRAM, ROOT, Measure, make_parser, print_report, rate, run_script, take_runs
from results.document import Record

_BASELINE = 'one device'
_CLUSTER = ('cluster', '--ps=1', '--workers=2', '--')
# For each variant: arguments before the flags of the run, further flags, and how many devices share the images.
_VARIANTS = {
    _BASELINE: ((), (), 1),
    'in-graph, variables on the host': ((), ('--num_gpus=2', '--variable_update=parameter_server'), 2),
    'in-graph, replicated variables': ((), ('--num_gpus=2', '--variable_update=replicated'), 2),
    'between-graph, synchronous': (_CLUSTER, ('--variable_update=parameter_server',), 2),
    'between-graph, asynchronous': (_CLUSTER, ('--variable_update=parameter_server', '--nocross_replica_sync'), 2),
}
_LAST_STEPS = 10
# The article's images/sec with two GPUs over those with one: 80 and 50 batches of 2x128 per second over 200 of 128.
_PUBLISHED = {
    ('in-graph, variables on the host', _BASELINE): 2 * 80 / 200,
    ('between-graph, asynchronous', _BASELINE): 2 * 50 / 200,
}
MEASURES = (
    rate(published=_PUBLISHED),
    Measure[Record]('s', lambda run: float(run.document['throughput']['wall_seconds']), 1, has_ratios=False),
    Measure[Record]('loss', lambda run: last_loss(run), 4, has_ratios=False),
    Measure[Record]('top-1', lambda run: float(run.document['evaluations'][-1]['top_1']), 4, has_ratios=False),
    OTHERS,
)


def last_loss(run: Record) -> float:
    """Returns the median loss of the chief's last steps."""
    return statistics.median(run.document['workers'][0]['steps']['loss'][-_LAST_STEPS:])


def main() -> int:
    parser = make_parser(__doc__, 'replication')
    parser.add_argument('--data_dir', required=True, help='folder with the four files of MNIST')
    parser.add_argument('--batch_size', type=int, default=128, help='images per step on each device')
    parser.add_argument('--num_batches', type=int, default=400, help='timed steps of one device')
    parser.add_argument('--num_warmup_batches', type=int, default=20, help='first steps of one device, not timed')
    args = parser.parse_args()
    if args.num_batches % 2 or args.num_warmup_batches % 2:
        parser.error('--num_batches, --num_warmup_batches: two devices take half as many; give even numbers')
    common = [f'--model_file={ROOT / "benchmarks" / "mnist_network.py"}', '--model=mnist_network', '--device=cpu']
    common += [f'--data_dir={args.data_dir}', f'--batch_size={args.batch_size}', '--optimizer=adam']
    common += ['--init_learning_rate=0.001', '--weight_decay=0', '--display_every=100']
    commands = {}
    for name, (before, flags, devices) in _VARIANTS.items():
        timed, warm_up = args.num_batches // devices, args.num_warmup_batches // devices
        # Evaluates the trained model after the last step.
        steps = [f'--num_batches={timed}', f'--num_warmup_batches={warm_up}']
        steps.append(f'--eval_during_training_at_specified_steps={timed + warm_up}')
        commands[name] = [*PROGRAM, *before, *common, *flags, *steps]
    pairs = [(name, _BASELINE) for name in _VARIANTS if name != _BASELINE]
    return print_report(take_runs(commands, args.rounds, args.output), MEASURES, pairs)


if __name__ == '__main__':
    run_script(main)
