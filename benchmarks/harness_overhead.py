"""The cost of the harness: BenchmarkCNN compared with minimal session loops, alternating steps in one process.

    python benchmarks/harness_overhead.py --model=resnet50 --batch_size=32 --rounds=20
    python benchmarks/harness_overhead.py --model=vgg16 --batch_size=16 --precision=bf16 --forward_only

`minimal` is a typical loop over the same layers: synthetic images in a variable, tf.gradients, gradient descent, and
one session.run with the loss for each step. For the networks in benchmarks/peers/plain_networks.py there is also
`by hand`, which is written entirely in TensorFlow's ops.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from benchmarks.peers import plain_tensorflow
from benchmarks.peers.document import NUM_CLASSES, WEIGHT_DECAY
from benchmarks.peers.plain_networks import NETWORKS
from benchmarks.standings import Measure, format_report
from benchmarks.turns import add_flags, take_turns
from models.networks import build_network
from models.registry import MODELS
from params import make_params
from training.variables import Initializer


class Harness:
    """A run of BenchmarkCNN after its warm-up steps; each turn takes one step. Prints to standard error."""

    def __init__(self, args: argparse.Namespace, **flags: Any) -> None:
        """Plans the run.

        Args:
          args: the script's arguments: rounds, max_repeats and num_warmup_batches.
          flags: the flags of the run, by name.
        """
        self.params = make_params(
            # Enough even if every turn is repeated as often as allowed.
            num_batches=args.rounds * (1 + args.max_repeats),
            num_warmup_batches=args.num_warmup_batches,
            **flags,
        )
        self._num_warmup = args.num_warmup_batches

    def __enter__(self) -> 'Harness':
        with contextlib.redirect_stdout(sys.stderr):
            self._steps = BenchmarkCNN(self.params).steps()
            for _ in range(self._num_warmup):
                next(self._steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._steps.close()

    def take_step(self, number: int) -> float:
        """Takes a step, and returns its seconds."""
        del number
        with contextlib.redirect_stdout(sys.stderr):
            return next(self._steps).seconds


class PlainVariables:
    """A source of ordinary TensorFlow resource variables for a network."""

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


def minimal_loop(model: str, batch_size: int, precision: str, *, forward_only: bool) -> Callable[[], object]:
    """Returns a function that takes a step of a minimal session loop over the program's layers."""
    facts = MODELS.find_model(model)
    with tf.Graph().as_default() as graph:
        size = facts.image_size
        images = tf.Variable(tf.random.uniform([batch_size, size, size, 3], -1, 1), trainable=False, use_resource=True)
        labels = tf.Variable(tf.random.uniform([batch_size], 0, NUM_CLASSES, tf.int32), trainable=False)
        variables = PlainVariables()
        logits = build_network(
            facts.network,
            images,
            NUM_CLASSES,
            variables,
            'NHWC',
            is_training=not forward_only,
            dtype=tf.bfloat16 if precision == 'bf16' else tf.float32,
        ).logits
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))
        ops = [loss]
        if not forward_only:
            kernels = [variable for variable in tf.trainable_variables() if len(variable.shape) > 1]
            loss += WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
            descend = tf.train.GradientDescentOptimizer(facts.learning_rate).minimize(loss)
            ops = [loss, tf.group(descend, *variables.updates)]
        initialize = tf.global_variables_initializer()
    session = tf.Session(graph=graph)
    session.run(initialize)
    return lambda: session.run(ops)


def timed(step: Callable[[], object], num_warmup: int) -> Callable[[int], float]:
    """Takes the warm-up steps, and returns a contestant that takes a step and returns its seconds."""
    for _ in range(num_warmup):
        step()

    def take(number: int) -> float:
        del number
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    return take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--batch_size', type=int, default=32)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--forward_only', action='store_true')
    parser.add_argument('--num_warmup_batches', type=int, default=3)
    parser.add_argument(
        '--reverse',
        action='store_true',
        help='start the contestants in the reverse order, which can change the ratio by 2 or 3 %%',
    )
    add_flags(parser, rounds=20, max_repeats=2)
    args = parser.parse_args()
    run = {name: getattr(args, name) for name in ('model', 'batch_size', 'precision', 'forward_only')}
    with contextlib.ExitStack() as stack:
        makers: dict[str, Callable[[], Callable[[int], float]]] = {
            'harness': lambda: stack.enter_context(Harness(args, device='cpu', **run)).take_step,
            'minimal': lambda: timed(minimal_loop(**run), args.num_warmup_batches),
        }
        if args.model in NETWORKS:
            makers['by hand'] = lambda: timed(plain_tensorflow.make_step(**run), args.num_warmup_batches)
        contestants = {name: makers[name]() for name in (reversed(makers) if args.reverse else makers)}
        turns = take_turns(
            contestants, args.rounds, max_repeats=args.max_repeats, show=lambda seconds: f'{seconds:.4g} s'
        )
    rate = Measure[float]('images/sec', lambda seconds: args.batch_size / seconds, is_paired=True)
    print(format_report(turns, [rate], [('harness', name) for name in makers if name != 'harness']))


if __name__ == '__main__':
    main()
