"""Compares input methods for a small network and data that fit in memory.

    python -m benchmarks.resident_data
    python -m benchmarks.resident_data --method=foldl

The experiment of the article "Beating TensorFlow Training in-VRAM" (benchmarks/README.md), with the
network, the targets and the optimizer of its script: five layers of 32 units, mean squared error,
and Adam with a rate of 0.01. `device` draws each batch on the device, as --input_pipeline=device
does: with one session call for each step, or in the loop of --steps_per_run. Preparation ends when
the first batch can be drawn and the buffer of tf.data is full; building the graph is not timed. One
intra-op and one inter-op thread are enough for matrices this small. Only tf.data, which prepares
batches meanwhile, and Hogwild use more: one inter-op thread per core.
"""

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.comparing import compare_pairs, make_parser
from tf_cnn.inputs.array_order import image_positions, shuffled_indices
from tf_cnn.step.graph_loop import GraphLoop, use_frame_loops
from tf_cnn.step.step_graph import Fetches

_LAYERS, _WIDTH, _INPUTS = 5, 32, 64

Arrays = Sequence[np.ndarray]


class Experiment(NamedTuple):
    """The data, inputs [N, 64] and targets [N, 4], and the sizes of a training."""

    data: Arrays
    batch_size: int = 512
    num_batches: int = 10_000
    device: str = '/cpu:0'


# (session -> function that takes all steps; groups of ops that move the data, to run in order).
InputMethod = tuple[Callable[[tf.Session], Callable[[], Any]], Sequence[Any]]


class Perceptron:
    """A perceptron. Creates its variables first: variables of a loop would belong to the loop."""

    def __init__(self, num_outputs: int) -> None:
        zeros, widths = tf.zeros_initializer(), [_INPUTS, *[_WIDTH] * _LAYERS, num_outputs]
        self._layers = [
            (
                tf.get_variable(f'kernel_{i}', shape),
                tf.get_variable(f'biases_{i}', shape[1:], initializer=zeros),
            )
            for i, shape in enumerate(itertools.pairwise(widths))
        ]
        self._optimizer = tf.train.AdamOptimizer(1e-2)

    def loss(self, x: Any, y: Any) -> Any:
        for i, (kernel, biases) in enumerate(self._layers):
            x = tf.nn.bias_add(tf.matmul(tf.nn.relu(x) if i else x, kernel), biases)
        return tf.reduce_mean(tf.math.squared_difference(x, y))

    def step(self, x: Any, y: Any) -> tf.Operation:
        return self._optimizer.minimize(self.loss(x, y))


def feed_dict(
    network: Perceptron, fed: Sequence[Any], experiment: Experiment, *, draws_first: bool
) -> InputMethod:
    """draws_first: draw the rows of all batches before the time begins."""
    step, data, rng = network.step(*fed), experiment.data, np.random.default_rng(2)
    draws = (
        rng.integers(len(data[0]), size=experiment.batch_size)
        for _ in range(experiment.num_batches)
    )
    batches = [*draws] if draws_first else draws

    def start(session: tf.Session) -> Callable[[], None]:
        take_step = session.make_callable(step, fed)

        def take_all() -> None:
            for rows in batches:
                take_step(*(array[rows] for array in data))

        return take_all

    return start, ()


def tf_data(
    network: Perceptron, fed: Sequence[Any], experiment: Experiment, *, buffer: int
) -> InputMethod:
    with tf.device('/cpu:0'):
        examples = tf.data.Dataset.from_tensor_slices(tuple(fed)).repeat().shuffle(buffer, seed=1)
        batches = examples.batch(experiment.batch_size, drop_remainder=True).prefetch(
            5 * experiment.batch_size
        )
        iterator = tf.data.make_initializable_iterator(batches)

    def take_step(count: Any) -> Any:
        with tf.control_dependencies([count]):
            batch = iterator.get_next()
        with tf.control_dependencies([network.step(*batch)]):
            return tf.identity(count) + 1

    more = functools.partial(tf.greater, experiment.num_batches)
    loop = tf.while_loop(more, take_step, [0], back_prop=False, parallel_iterations=1)
    # The first batch waits until the buffer is full.
    return lambda session: session.make_callable(loop), [iterator.initializer, iterator.get_next()]


def foldl(
    network: Perceptron, fed: Sequence[Any], experiment: Experiment, *, parallel_iterations: int = 1
) -> InputMethod:
    """parallel_iterations: above 1, as many steps read and update the variables at once: Hogwild
    (Niu et al. 2011, arXiv:1106.5730).
    """
    sources, initializers = _on_device(fed, experiment.data)
    shape = [experiment.num_batches, experiment.batch_size]
    batches = tf.random.uniform(shape, 0, len(experiment.data[0]), tf.int32, seed=1)

    def take_step(previous: Any, rows: Any) -> Any:
        with tf.control_dependencies(
            [previous, network.step(*(tf.gather(source, rows) for source in sources))]
        ):
            return tf.constant(0)

    loop = tf.foldl(take_step, batches, 0, back_prop=False, parallel_iterations=parallel_iterations)
    return lambda session: session.make_callable(loop), [initializers]


def device(network: Perceptron, fed: Sequence[Any], experiment: Experiment) -> InputMethod:
    step, initializers = _step_on_device(network, fed, experiment)

    def start(session: tf.Session) -> Callable[[], None]:
        take_step = session.make_callable(step)

        def take_all() -> None:
            for _ in range(experiment.num_batches):
                take_step()

        return take_all

    return start, [initializers]


def device_loop(network: Perceptron, fed: Sequence[Any], experiment: Experiment) -> InputMethod:
    step, initializers = _step_on_device(network, fed, experiment)
    # Nothing reads the number of steps from this loop, so it is a constant.
    loop = GraphLoop(Fetches(tf.zeros([]), tf.zeros([], tf.int64), [step]))

    def start(session: tf.Session) -> Callable[[], Any]:
        return functools.partial(
            session.make_callable(loop.values['loss'], [loop.num_steps]), experiment.num_batches
        )

    return start, [initializers]


def _step_on_device(
    network: Perceptron, fed: Sequence[Any], experiment: Experiment
) -> tuple[tf.Operation, list[tf.Operation]]:
    """Returns a step that draws its batch as --input_pipeline=device does, and its initializers."""
    sources, initializers = _on_device(fed, experiment.data)
    positions, initializer, _ = image_positions(
        0, experiment.batch_size, experiment.batch_size, tf.zeros([], tf.uint64)
    )
    rows = shuffled_indices(positions, len(experiment.data[0]), seed=1)
    step = network.step(*(tf.gather(source, rows) for source in sources))
    return step, [*initializers, initializer]


def _on_device(fed: Sequence[Any], data: Arrays) -> tuple[list[Any], list[tf.Operation]]:
    """Returns the data on the device, and the ops that move them there.

    The data are in variables, which a loop finds by their names.
    """
    stores = [
        tf.Variable(values, trainable=False, collections=[], validate_shape=False) for values in fed
    ]
    for store, array in zip(stores, data, strict=True):
        store.set_shape(array.shape)
    return [store.read_value() for store in stores], [store.initializer for store in stores]


INPUT_METHODS: Mapping[str, Callable[[Perceptron, Sequence[Any], Experiment], InputMethod]] = {
    'feed_dict': functools.partial(feed_dict, draws_first=False),
    'feed_dict, drawn before': functools.partial(feed_dict, draws_first=True),
    'tf.data, buffer of 1,000': functools.partial(tf_data, buffer=1_000),
    'tf.data, buffer of 1,000,000': functools.partial(tf_data, buffer=1_000_000),
    'foldl': foldl,
    'foldl, Hogwild': functools.partial(foldl, parallel_iterations=10),
    'device': device,
    'device, loop in the graph': device_loop,
}


def make_data(num_examples: int) -> Arrays:
    """Returns inputs [N, 64] in (0, 1], and targets [N, 4].

    The targets are the sums of the inputs, of their logarithms, exponentials and sines.
    """
    x = 1 - np.random.default_rng(1).random([num_examples, _INPUTS], np.float32)
    return x, np.column_stack([f(x).sum(axis=1) for f in (np.positive, np.log, np.exp, np.sin)])


def train(name: str, experiment: Experiment) -> dict[str, float]:
    """Trains in a new graph and session; returns seconds, and the losses of all examples."""
    data = experiment.data
    with tf.Graph().as_default() as graph, tf.device(experiment.device), use_frame_loops():
        tf.set_random_seed(1)
        tf.get_variable_scope().set_use_resource(True)
        fed = [tf.placeholder(tf.float32, [None, array.shape[1]]) for array in data]
        network = Perceptron(data[1].shape[1])
        loss = network.loss(*fed)
        start, groups = INPUT_METHODS[name](network, fed, experiment)
        initializer = tf.global_variables_initializer()
    config = tf.ConfigProto(use_per_session_threads=True, allow_soft_placement=True)
    config.intra_op_parallelism_threads = 1
    uses_all_cores = name.startswith('tf.data') or name == 'foldl, Hogwild'
    config.inter_op_parallelism_threads = 0 if uses_all_cores else 1
    with tf.Session(graph=graph, config=config) as session:
        take_steps = start(session)
        session.run(initializer)
        all_examples = dict(zip(fed, data, strict=True))
        first_loss = session.run(loss, all_examples)
        data_moves = [session.make_callable(ops, fed) for ops in groups]
        begin = time.perf_counter()
        for move_data in data_moves:
            move_data(*data)
        preparation = time.perf_counter() - begin
        take_steps()
        total = time.perf_counter() - begin
        last_loss = session.run(loss, all_examples)
    steps = total - preparation
    return {
        's in all': total,
        's of preparation': preparation,
        's of steps': steps,
        'loss before': first_loss,
        'loss after': last_loss,
    }


def main() -> int:
    parser = make_parser(
        __doc__,
        'resident_data',
        rounds=6,
        num_examples=1_024_000,
        batch_size=512,
        num_batches=10_000,
    )
    parser.add_argument(
        '--device', default='/cpu:0', help='the device of the network and the resident data'
    )
    parser.add_argument('--method', choices=INPUT_METHODS, help='only train with this method')
    args = parser.parse_args()
    if args.method:
        data = make_data(args.num_examples)
        experiment = Experiment(data, args.batch_size, args.num_batches, args.device)
        numbers = train(args.method, experiment)
        print(', '.join(f'{value:.4g} {title}' for title, value in numbers.items()))
        print(f'trainings/sec: {1 / numbers["s in all"]:.6g}')
        return 0
    script = [sys.executable, '-m', 'benchmarks.resident_data', *sys.argv[1:]]
    commands = {name: [*script, f'--method={name}'] for name in INPUT_METHODS}
    baseline, *other_names = INPUT_METHODS
    pairs = [(name, baseline) for name in other_names]
    return compare_pairs(commands, pairs, args, r'trainings/sec: (\S+)')


if __name__ == '__main__':
    sys.exit(main())
