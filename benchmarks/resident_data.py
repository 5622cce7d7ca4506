"""Three ways to feed a small network from data that fit into memory, with the loss that each reaches.

    python benchmarks/resident_data.py

The experiment of the article "Beating TensorFlow Training in-VRAM": 1,024,000 examples of 64 numbers, a perceptron
with 5 layers of 32 units, mean squared error, Adam, 10,000 mini-batches of 512. On a small network the time between
steps counts, not the arithmetic:

    feed_dict  NumPy draws a batch, and each call of the session takes it along with one step
    tf.data    the arrays are shuffled and batched by tf.data; one step for each call
    device     the arrays are variables on the device, from which each step gathers its batch; a loop in the graph
               takes many steps in a call, as --steps_per_run does

The three take turns, in pieces of --steps_per_run steps, so that a noisy machine disturbs all alike. The time to bring
the data to where they are needed is printed apart.

One rule for the threads of all: --num_intra_threads is for the whole process, by default 1, with which each of the
three is faster than with two on two cores (matrices this small are not worth sharing); and before it is measured, each
way is tried with one inter-op thread and with as many as there are cores, and keeps the faster, which is printed.
"""

import argparse
import functools
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.standings import Measure, format_report
from benchmarks.turns import take_turns
from managers.local import VariableMgrIndependent
from models.layers import Initializer, LayerBuilder, VariableSource, glorot_normal
from reporting.tables import format_markdown
from run.step_graph import Fetches
from run.steps_in_graph import StepsInGraph
from training.optimizers import Adam, OptimizerStep

_LAYERS, _WIDTH, _INPUTS = 5, 32, 64
_STEPS_OF_TRIAL, _ROUNDS_OF_TRIAL = 100, 6


@dataclass(frozen=True)
class Way:
    """A way to train: `take` takes that many steps; `loss` is that of 100,000 examples; prepared: seconds before.

    inter_threads: the inter-op threads of its session; 0: as many as there are cores. close: frees its memory.
    """

    take: Callable[[int], None]
    loss: Callable[[], float]
    prepared: float
    inter_threads: int
    close: Callable[[], None]


def make_data(num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [N, 64], uniform in [0, 1), and targets [N, 2]: their sum, and the square of the sum of every second."""
    x = np.random.default_rng(1).random([num_examples, _INPUTS], np.float32)
    return x, np.column_stack([x.sum(axis=1), x[:, ::2].sum(axis=1) ** 2 / 4]).astype(np.float32)


class Parts:
    """All weights of the network, as parts of one variable: the optimizer is one op, and the gradients meet in one."""

    def __init__(self, variables: VariableSource, num_outputs: int) -> None:
        widths = [_INPUTS, *[_WIDTH] * _LAYERS, num_outputs]
        shapes = [shape for pair in itertools.pairwise(widths) for shape in (pair, pair[1:])]
        sizes = [math.prod(shape) for shape in shapes]

        def initialize(_: Sequence[int], seed: int) -> Any:
            values = [
                glorot_normal(shape, seed + number) if len(shape) > 1 else tf.zeros(shape)
                for number, shape in enumerate(shapes)
            ]
            return tf.concat([tf.reshape(value, [-1]) for value in values], 0)

        parts = tf.split(variables.read('weights', [sum(sizes)], initialize), sizes)
        self._parts = iter([tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)])

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> Any:
        """The next part, in the order of the layers."""
        del name, initializer, trainable
        part = next(self._parts)
        assert part.shape == shape
        return part

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        raise NotImplementedError('the network has no variable that is not trained')

    def assign(self, name: str, value: Any) -> None:
        raise NotImplementedError('the network has no variable that is not trained')


class Model:
    """The network, with one op that takes a step on a batch."""

    def __init__(self, device: str) -> None:
        self._manager = VariableMgrIndependent([device], seed=1)
        self._device = device

    def loss_of(self, x: Any, y: Any) -> Any:
        with self._manager.create_outer_variable_scope(0) as variables:
            cnn = LayerBuilder(Parts(variables, int(y.shape[1])), 'NHWC', is_training=True)
            for number in range(_LAYERS):
                x = cnn.relu(cnn.dense(x, _WIDTH, f'hidden_{number}'))
            return tf.reduce_mean(tf.math.squared_difference(cnn.dense(x, int(y.shape[1]), 'outputs'), y))

    def step_on(self, x: Any, y: Any, learning_rate: float) -> tuple[Fetches, list[Any]]:
        """The step, and the ops that initialise its variables."""
        loss = self.loss_of(x, y)
        with tf.device(self._device):
            variables = self._manager.trainable_variables_on_device(0)
            gradients = tf.gradients(loss, [variable.value for variable in variables])
            global_step = self._manager.create_global_step()
            step = OptimizerStep(Adam(0.9, 0.999, 1e-8), tf.constant(learning_rate), global_step.value, None)
            train_op, _ = self._manager.build_update(step, global_step, [gradients])
            start = global_step.assign(tf.constant(0, tf.int64))
        fetches = Fetches(loss=loss, global_step=tf.identity(global_step.value), ops=[train_op])
        return fetches, [*self._manager.initializers, *step.initializers, start]


def build(way: str, data: tuple[np.ndarray, np.ndarray], args: argparse.Namespace, inter_threads: int) -> Way:
    """Builds the graph of a way, in a session with threads of its own."""
    begun = time.perf_counter()
    batch_size, device = args.batch_size, args.device
    inputs, targets = data
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        fed = [tf.placeholder(tf.float32, [None, array.shape[1]]) for array in data]
        model, initializers, loop = Model(device), [], None
        if way == 'feed_dict':
            batch: Any = fed
        elif way == 'tf.data':
            examples = tf.data.Dataset.from_tensor_slices(tuple(fed)).repeat().shuffle(args.shuffle_buffer, seed=1)
            batches = examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
            iterator = tf.data.make_initializable_iterator(batches)
            initializers.append(iterator.initializer)
            batch = iterator.get_next()
        else:
            with tf.device(device):
                # In no collection, and with names: the loop finds them by these.
                stores = [
                    tf.Variable(values, trainable=False, collections=[], use_resource=True, validate_shape=False)
                    for values in fed
                ]
                for store, array in zip(stores, data, strict=True):
                    store.set_shape(array.shape)
                initializers += [store.initializer for store in stores]
                chosen = tf.random.uniform([batch_size], 0, len(inputs), tf.int32, seed=1)
                # Reading a whole variable passes it on without a copy.
                batch = [tf.gather(store.read_value(), chosen) for store in stores]
        x, y = (
            tf.ensure_shape(tensor, [batch_size if way != 'feed_dict' else None, array.shape[1]])
            for tensor, array in zip(batch, data, strict=True)
        )
        fetches, of_model = model.step_on(x, y, args.learning_rate)
        if way == 'device':
            loop = StepsInGraph(fetches, device)
        # The last, since it reads the variables that are there.
        shown = model.loss_of(*fed)
        config = tf.ConfigProto(use_per_session_threads=True)
        config.intra_op_parallelism_threads = args.num_intra_threads
        config.inter_op_parallelism_threads = inter_threads
        session = tf.Session(graph=graph, config=config)
        feeds = dict(zip(fed, data, strict=True))
        session.run([*of_model, *initializers], feeds)
        prepared = time.perf_counter() - begun
        one_step = session.make_callable([fetches.loss, *fetches.ops], fed if way == 'feed_dict' else [])
        many_steps = session.make_callable(loop.values['loss'], [loop.num_steps]) if loop else None

    rng = np.random.default_rng(2)

    def take(num_steps: int) -> None:
        if many_steps:
            many_steps(num_steps)
            return
        for _ in range(num_steps):
            if way == 'feed_dict':
                rows = rng.integers(len(inputs), size=batch_size)
                one_step(inputs[rows], targets[rows])
            else:
                one_step()

    sample = {placeholder: array[:100_000] for placeholder, array in zip(fed, data, strict=True)}
    return Way(take, lambda: float(session.run(shown, sample)), prepared, inter_threads, session.close)


def with_faster_threads(name: str, data: tuple[np.ndarray, np.ndarray], args: argparse.Namespace) -> Way:
    """A way as new, with the number of inter-op threads that makes it faster in a trial."""
    tried = [build(name, data, args, number) for number in (0, 1)]
    pieces = [seconds_of(way, _STEPS_OF_TRIAL) for way in tried]
    rounds = [[next(piece) for piece in pieces] for _ in range(_ROUNDS_OF_TRIAL)]
    # The first has the preparations of TensorFlow in it.
    seconds = [statistics.median(of_way[1:]) for of_way in zip(*rounds, strict=True)]
    for way in tried:
        way.close()
    return build(name, data, args, tried[seconds.index(min(seconds))].inter_threads)


def seconds_of(way: Way, num_steps: int) -> Iterator[float]:
    """Takes that many steps again and again, and yields the seconds of each time."""
    while True:
        start = time.perf_counter()
        way.take(num_steps)
        yield time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--num_examples', type=int, default=1_024_000)
    parser.add_argument('--batch_size', type=int, default=512)
    parser.add_argument('--num_batches', type=int, default=10_000)
    parser.add_argument('--steps_per_run', type=int, default=500)
    parser.add_argument('--shuffle_buffer', type=int, default=1000, help='of tf.data, in examples')
    parser.add_argument('--learning_rate', type=float, default=1e-3)
    parser.add_argument('--device', default='/cpu:0')
    parser.add_argument('--num_intra_threads', type=int, default=1, help='as the flag of the program')
    args = parser.parse_args()
    data = make_data(args.num_examples)
    names = ('feed_dict', 'tf.data', 'device')
    ways = {name: with_faster_threads(name, data, args) for name in names}
    before = {name: way.loss() for name, way in ways.items()}
    pieces = {name: seconds_of(way, args.steps_per_run) for name, way in ways.items()}
    contestants = {name: functools.partial(_next_of, piece) for name, piece in pieces.items()}
    # Repeated turns would train more than the others.
    turns = take_turns(contestants, args.num_batches // args.steps_per_run, max_repeats=0)
    step = Measure[float](
        'us a step', lambda seconds: 1e6 * seconds / args.steps_per_run, is_cost=True, is_paired=True, decimals=0
    )
    print(format_report(turns, [step], [('feed_dict', name) for name in names if name != 'feed_dict']), end='\n\n')
    rows = [
        [name, str(way.inter_threads or 'cores'), f'{way.prepared:.1f}', f'{before[name]:.0f} -> {way.loss():.2f}']
        for name, way in ways.items()
    ]
    print(format_markdown(['', 'inter-op threads', 's to prepare', 'loss'], rows, right=[1, 2, 3]))


def _next_of(piece: Iterator[float], number: int) -> float:
    del number
    return next(piece)


if __name__ == '__main__':
    main()
