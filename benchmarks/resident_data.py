"""Compares ways to feed a small network from data that fit into memory: preparation, training, and the loss reached.

    python benchmarks/resident_data.py

The experiment of the article "Beating TensorFlow Training in-VRAM": 1,024,000 examples of 64 numbers, a perceptron with
5 layers of 32 units, mean squared error, Adam, and 5 epochs, which are 10,000 mini-batches of 512. With a small network
the time between steps matters, not the arithmetic:

    feed_dict                NumPy draws a batch, and each call of the session feeds it to one step
    tf.data, buffer of N     tf.data shuffles in a buffer of N examples and prefetches 5 * 512 batches; all steps in one
                             tf.while_loop
    foldl                    the data are on the device, all batches are drawn before the first step, and tf.foldl takes
                             a step with each
    loop of --steps_per_run  the data are on the device, and each step draws its own batch, in the loop of this program

At first the data are NumPy arrays. Moving them to where they are needed is part of the comparison, as in the article,
and is also shown separately: it ends when the first batch can be drawn, with the buffer of tf.data full. Building the
graph is not timed. A turn is a whole training, in a new session. Each way first trains a little with one inter-op
thread, and with one per core, and uses the faster. One intra-op thread is enough for matrices this small.
"""

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.turns import Measure, format_report, make_parser, take_turns
from run.step_graph import Fetches
from run.steps_in_graph import StepsInGraph, frames

_LAYERS, _WIDTH, _INPUTS = 5, 32, 64
# How often each number of inter-op threads is tried, 0 for one per core.
_TRIALS, _THREADS = 2, (0, 1)


@dataclass(frozen=True)
class Experiment:
    """The sizes of a training, named like the flags."""

    batch_size: int = 512
    num_batches: int = 10_000
    learning_rate: float = 1e-3
    device: str = '/cpu:0'
    num_intra_threads: int = 1


class Training(NamedTuple):
    """The seconds of preparation and of all steps, and the loss on 100,000 examples after the last step."""

    preparation: float
    steps: float
    loss: float


class Way(NamedTuple):
    """A way to train, in the current graph.

    Attributes:
      start: returns, for a session, the function that takes all steps.
      prepare: ops that move the data to where they are needed, in groups that run one after the other.
    """

    start: Callable[[tf.Session], Callable[[], Any]]
    prepare: Sequence[Any] = ()


class Perceptron:
    """The perceptron. Creates its variables at once, since variables created in a loop would belong to that loop."""

    def __init__(self, num_outputs: int, learning_rate: float) -> None:
        zeros, widths = tf.zeros_initializer(), [_INPUTS, *[_WIDTH] * _LAYERS, num_outputs]
        self._layers = [
            (tf.get_variable(f'kernel_{i}', shape), tf.get_variable(f'biases_{i}', shape[1:], initializer=zeros))
            for i, shape in enumerate(itertools.pairwise(widths))
        ]
        self._optimizer = tf.train.AdamOptimizer(learning_rate)

    def loss(self, x: Any, y: Any) -> Any:
        *hidden, (kernel, biases) = self._layers
        for hidden_kernel, hidden_biases in hidden:
            x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, hidden_kernel), hidden_biases))
        return tf.reduce_mean(tf.math.squared_difference(tf.nn.bias_add(tf.matmul(x, kernel), biases), y))

    def step(self, x: Any, y: Any) -> tf.Operation:
        return self._optimizer.minimize(self.loss(x, y))


Arrays = Sequence[np.ndarray]


def feed_dict(network: Perceptron, fed: Sequence[Any], data: Arrays, experiment: Experiment) -> Way:
    step = network.step(*fed)
    rng = np.random.default_rng(2)

    def start(session: tf.Session) -> Callable[[], None]:
        take_step = session.make_callable(step, fed)

        def take_all() -> None:
            for _ in range(experiment.num_batches):
                rows = rng.integers(len(data[0]), size=experiment.batch_size)
                take_step(*(array[rows] for array in data))

        return take_all

    return Way(start)


def tf_data(network: Perceptron, fed: Sequence[Any], data: Arrays, experiment: Experiment, *, buffer: int) -> Way:
    del data
    with tf.device('/cpu:0'):
        examples = tf.data.Dataset.from_tensor_slices(tuple(fed)).repeat().shuffle(buffer, seed=1)
        batches = examples.batch(experiment.batch_size, drop_remainder=True).prefetch(5 * experiment.batch_size)
        iterator = tf.data.make_initializable_iterator(batches)

    def take_step(count: Any) -> Any:
        with tf.control_dependencies([count]):
            batch = iterator.get_next()
        with tf.control_dependencies([network.step(*batch)]):
            return tf.identity(count) + 1

    more = functools.partial(tf.greater, experiment.num_batches)
    loop = tf.while_loop(more, take_step, [0], back_prop=False, parallel_iterations=1)
    # The first batch waits until the buffer is full.
    return Way(lambda session: session.make_callable(loop), [iterator.initializer, iterator.get_next()])


def foldl(network: Perceptron, fed: Sequence[Any], data: Arrays, experiment: Experiment) -> Way:
    stores, initializers = _on_device(fed, data)
    sources = [store.read_value() for store in stores]
    batches = tf.random.uniform([experiment.num_batches, experiment.batch_size], 0, len(data[0]), tf.int32, seed=1)

    def take_step(done: Any, rows: Any) -> Any:
        with tf.control_dependencies([done, network.step(*(tf.gather(source, rows) for source in sources))]):
            return tf.constant(0)

    loop = tf.foldl(take_step, batches, 0, back_prop=False, parallel_iterations=1)
    return Way(lambda session: session.make_callable(loop), [initializers])


def own_loop(network: Perceptron, fed: Sequence[Any], data: Arrays, experiment: Experiment) -> Way:
    stores, initializers = _on_device(fed, data)
    rows = tf.random.uniform([experiment.batch_size], 0, len(data[0]), tf.int32, seed=1)
    step = network.step(*(tf.gather(store.read_value(), rows) for store in stores))
    # The number of steps is not read from this loop, so a constant stands for it.
    loop = StepsInGraph(Fetches(tf.zeros([]), tf.zeros([], tf.int64), [step]), experiment.device)

    def start(session: tf.Session) -> Callable[[], Any]:
        return functools.partial(session.make_callable(loop.values['loss'], [loop.num_steps]), experiment.num_batches)

    return Way(start, [initializers])


def _on_device(fed: Sequence[Any], data: Arrays) -> tuple[list[Any], list[tf.Operation]]:
    """Returns variables for the data, and the ops that fill them. A loop finds the variables by their names."""
    stores = [tf.Variable(values, trainable=False, collections=[], validate_shape=False) for values in fed]
    for store, array in zip(stores, data, strict=True):
        store.set_shape(array.shape)
    return stores, [store.initializer for store in stores]


WAYS: Mapping[str, Callable[[Perceptron, Sequence[Any], Arrays, Experiment], Way]] = {
    'feed_dict': feed_dict,
    'tf.data, buffer of 1,000': functools.partial(tf_data, buffer=1_000),
    'tf.data, buffer of 1,000,000': functools.partial(tf_data, buffer=1_000_000),
    'foldl': foldl,
    'loop of --steps_per_run': own_loop,
}
_BASELINE, *_OTHERS = WAYS
_PAIRS = [(_BASELINE, name) for name in _OTHERS]
# The article's seconds on a P100, including preparation, as ratios.
_PUBLISHED = dict(zip(_PAIRS, (16 / 12, 16 / 20, 16 / 8), strict=False))
MEASURES = (
    Measure[Training]('s in all', lambda one: one.preparation + one.steps, published=_PUBLISHED),
    Measure[Training]('s of steps', lambda one: one.steps),
    Measure[Training]('s of preparation', lambda one: one.preparation, has_ratios=False),
    Measure[Training]('loss', lambda one: one.loss, decimals=3, has_ratios=False),
)


def make_data(num_examples: int) -> Arrays:
    """Returns inputs [N, 64] in [0, 1), and targets [N, 2]: their sum, and the squared sum of every second input."""
    x = np.random.default_rng(1).random([num_examples, _INPUTS], np.float32)
    return x, np.column_stack([x.sum(axis=1), x[:, ::2].sum(axis=1) ** 2 / 4]).astype(np.float32)


def train(name: str, data: Arrays, experiment: Experiment, inter_threads: int) -> Training:
    """Trains in a new graph and session. inter_threads is as in ConfigProto: 0 for one thread per core."""
    with tf.Graph().as_default() as graph, tf.device(experiment.device), frames():
        tf.set_random_seed(1)
        tf.get_variable_scope().set_use_resource(True)
        fed = [tf.placeholder(tf.float32, [None, array.shape[1]]) for array in data]
        network = Perceptron(data[1].shape[1], experiment.learning_rate)
        loss = network.loss(*fed)
        way = WAYS[name](network, fed, data, experiment)
        initializer = tf.global_variables_initializer()
    config = tf.ConfigProto(use_per_session_threads=True, allow_soft_placement=True)
    config.intra_op_parallelism_threads = experiment.num_intra_threads
    config.inter_op_parallelism_threads = inter_threads
    with tf.Session(graph=graph, config=config) as session:
        take_steps = way.start(session)
        session.run(initializer)
        prepare = [session.make_callable(ops, fed) for ops in way.prepare]
        times = [time.perf_counter()]
        for bring in prepare:
            bring(*data)
        times.append(time.perf_counter())
        take_steps()
        times.append(time.perf_counter())
        reached = session.run(loss, dict(zip(fed, (array[:100_000] for array in data), strict=True)))
    return Training(times[1] - times[0], times[2] - times[1], float(reached))


def main() -> None:
    parser = make_parser(__doc__, rounds=6)
    parser.add_argument('--num_examples', type=int, default=1_024_000)
    parser.add_argument('--num_trial_batches', type=int, default=1000, help='steps of the trials of threads')
    for sized in fields(Experiment):
        parser.add_argument(f'--{sized.name}', type=type(sized.default), default=sized.default)
    args = parser.parse_args()
    data = make_data(args.num_examples)
    experiment = Experiment(**{sized.name: getattr(args, sized.name) for sized in fields(Experiment)})
    trial = replace(experiment, num_batches=args.num_trial_batches)
    threads = {}
    for name in WAYS:
        trials = take_turns({n: functools.partial(train, name, data, trial, n) for n in _THREADS}, _TRIALS)
        threads[name] = min(_THREADS, key=lambda n: min(one.steps for one in trials[n]))
    turns = take_turns(
        {name: functools.partial(train, name, data, experiment, threads[name]) for name in WAYS},
        args.rounds,
        lambda one: f'{one.preparation:.2f} + {one.steps:.2f} s',
    )
    print(format_report(turns, MEASURES, _PAIRS))
    print('\nInter-op threads: ' + '; '.join(f'{name}: {number or "cores"}' for name, number in threads.items()))


if __name__ == '__main__':
    main()
