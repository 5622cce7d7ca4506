"""The cost of the harness: BenchmarkCNN compared with a minimal session loop over the same layers, alternating steps.

    python benchmarks/harness_overhead.py --model=resnet50 --batch_size=32 --rounds=20

The loop is a typical hand-written one: synthetic images in a variable, tf.gradients, gradient descent, one
session.run with the loss for each step. The ratio is the throughput of the harness divided by that of the loop.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmarks.harness import Harness
from benchmarks.standings import Measure, format_report
from benchmarks.turns import add_flags, take_turns
from models.layers import Initializer
from models.networks import build_network
from models.registry import MODELS

_NUM_CLASSES = 1001


class PlainVariables:
    """Gives a network ordinary TensorFlow resource variables."""

    def __init__(self) -> None:
        self.updates: list[tf.Operation] = []
        self._variables: dict[str, tf.Variable] = {}

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> tf.Tensor:
        seed = len(self._variables) + 1
        variable = tf.Variable(initializer(shape, seed), name=name, trainable=trainable, use_resource=True)
        self._variables[name] = variable
        return variable.read_value()

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Does nothing: the single tower uses all variables."""

    def assign(self, name: str, value: tf.Tensor) -> None:
        self.updates.append(tf.assign(self._variables[name], value))


def minimal_loop(model: str, batch_size: int, weight_decay: float) -> Iterator[float]:
    """Takes training steps forever, and yields the seconds of each."""
    facts = MODELS.find_model(model)
    with tf.Graph().as_default() as graph:
        size = facts.image_size
        images = tf.Variable(tf.random.uniform([batch_size, size, size, 3], -1, 1), trainable=False, use_resource=True)
        labels = tf.Variable(tf.random.uniform([batch_size], 0, _NUM_CLASSES, tf.int32), trainable=False)
        variables = PlainVariables()
        logits = build_network(facts.network, images, _NUM_CLASSES, variables, 'NHWC', is_training=True).logits
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))
        kernels = [variable for variable in tf.trainable_variables() if len(variable.shape) > 1]
        loss += weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        descend = tf.train.GradientDescentOptimizer(facts.learning_rate).minimize(loss)
        train_op = tf.group(descend, *variables.updates)
        initialize = tf.global_variables_initializer()
    session = tf.Session(graph=graph)
    session.run(initialize)
    while True:
        start = time.perf_counter()
        session.run([train_op, loss])
        yield time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--batch_size', type=int, default=32)
    parser.add_argument('--num_warmup_batches', type=int, default=3)
    add_flags(parser, rounds=20, max_repeats=2)
    args = parser.parse_args()
    with Harness(args, model=args.model, device='cpu', batch_size=args.batch_size) as harness:
        minimal = minimal_loop(args.model, args.batch_size, harness.params.weight_decay)
        for _ in range(args.num_warmup_batches):
            next(minimal)
        turns = take_turns(
            {'harness': harness.take_step, 'minimal': lambda _: next(minimal)},
            args.rounds,
            max_repeats=args.max_repeats,
            show=lambda seconds: f'{seconds:.4g} s',
        )
    rate = Measure[float]('images/sec', lambda seconds: args.batch_size / seconds, is_paired=True)
    print(format_report(turns, [rate], [('harness', 'minimal')]))


if __name__ == '__main__':
    main()
