"""The cost of the harness: BenchmarkCNN compared with session loops, in turns within one process.

    python benchmarks/harness_overhead.py
    python benchmarks/harness_overhead.py --models=resnet50 --batch_sizes=32 --phases=training --precision=bf16

`bare` is a loop of session.run over the ops of the program's own step: the same graph in a session with the same
settings. `by hand` is a loop over the network as benchmarks/peers/plain_networks.py writes it in TensorFlow's ops, with
reference variables, the accuracy in forward steps, and session.run, as in the original program. `prepared` is the same
with make_callable, which looks up what to fetch only once, as this program does. CPU is the ratio of processor seconds.
Other networks of --models are compared with `bare` alone.
"""

import contextlib
import functools
import itertools
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from benchmarks.peers import plain_tensorflow
from benchmarks.peers.plain_networks import NETWORKS
from benchmarks.turns import as_table, machine_line, make_parser, ratio_cells, some_of, take_turns, two_or_more
from params import Params, make_params
from run.build import build_step
from sweeps.runner import order_of_round

_PHASES = ('training', 'forward')
_OURS = 'harness'
# The first step builds kernels, the second allocates; more are taken while they are short.
_MIN_WARMUP, _WARMUP_SECS = 2, 0.5
# A turn takes about as long. Short turns end before others disturb them, or are outliers, which a median ignores.
_TURN_SECS = 0.25
# Takes a number of steps.
TakeSteps = Callable[[int], object]


@contextlib.contextmanager
def harness(params: Params) -> Iterator[TakeSteps]:
    """A run of BenchmarkCNN, which prints nothing."""
    with contextlib.closing(BenchmarkCNN(params).steps()) as steps:
        yield lambda count: sum(1 for _ in itertools.islice(steps, count))


@contextlib.contextmanager
def bare_loop(params: Params) -> Iterator[TakeSteps]:
    """A loop over the ops of a run on one device."""
    plan = BenchmarkCNN(params).plan
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(plan.step.seed)
        step = build_step(plan)
    fetches = step.fetches.present()
    with tf.Session(graph=graph, config=plan.session.config) as session:
        session.run(step.initializers)
        step.start(session)
        yield lambda count: [session.run(fetches) for _ in range(count)]


@contextlib.contextmanager
def loop_by_hand(params: Params, *, prepares_fetches: bool = False) -> Iterator[TakeSteps]:
    """A loop over a network of plain_networks.py."""
    step = plain_tensorflow.make_step(
        params.model,
        params.batch_size,
        params.precision,
        forward_only=params.forward_only,
        prepares_fetches=prepares_fetches,
    )
    yield lambda count: [step() for _ in range(count)]


LOOPS: dict[str, Callable[[Params], AbstractContextManager[TakeSteps]]] = {
    _OURS: harness,
    'bare': bare_loop,
    'by hand': loop_by_hand,
    'prepared': functools.partial(loop_by_hand, prepares_fetches=True),
}
_OTHERS = [name for name in LOOPS if name != _OURS]


def measure(params: Params, num_sessions: int, num_rounds: int) -> dict[str, np.ndarray]:
    """Lets the loops take turns, in several sessions, which differ in their layout of memory.

    Returns:
      For each loop, [sessions, 2]: the medians of the wall and of the processor seconds of a step.
    """
    names = [name for name in LOOPS if params.model in NETWORKS or name in (_OURS, 'bare')]
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for number in range(1, num_sessions + 1):
        with contextlib.ExitStack() as stack:
            order = [names[index] for index in order_of_round(len(names), number, seed=1)]
            loops = {name: stack.enter_context(LOOPS[name](params)) for name in order}
            seconds = {name: warm_up(take_steps) for name, take_steps in loops.items()}
            count = math.ceil(_TURN_SECS / seconds[_OURS])
            turns = {name: functools.partial(seconds_of, take_steps, count) for name, take_steps in loops.items()}
            for name, taken in take_turns(turns, num_rounds).items():
                found[name].append(np.median(np.array(taken), axis=0))
    return {name: np.array(medians) for name, medians in found.items()}


def warm_up(take_steps: TakeSteps) -> float:
    """Takes the first steps of a loop, and returns the median of their seconds, the lower one of two."""
    seconds: list[float] = []
    while len(seconds) < _MIN_WARMUP or sum(seconds) < _WARMUP_SECS:
        seconds.append(seconds_of(take_steps, 1)[0])
    return statistics.median_low(seconds)


def seconds_of(take_steps: TakeSteps, count: int) -> np.ndarray:
    """Takes a number of steps, and returns the wall and the processor seconds of one: [2]."""
    start = np.array([time.perf_counter(), time.process_time()])
    take_steps(count)
    return (np.array([time.perf_counter(), time.process_time()]) - start) / count


def cells(seconds: dict[str, np.ndarray], batch_size: int) -> list[str]:
    """Formats the rate of the harness, and its ratios to each other loop: of rates, and of processor seconds."""
    ours = seconds[_OURS]
    found = [f'{batch_size / ours[:, 0].mean():.4g}']
    for name in _OTHERS:
        theirs = seconds.get(name)
        ratio = ['', '', ''] if theirs is None else ratio_cells(theirs[:, 0], ours[:, 0])
        found += ratio if theirs is None else [*ratio, f'{ours[:, 1].mean() / theirs[:, 1].mean():.3f}']
    return found


def main() -> None:
    parser = make_parser(__doc__, rounds=10)
    parser.add_argument('--models', default='trivial,lenet', help='comma-separated')
    parser.add_argument('--batch_sizes', default='1,8,64', help='comma-separated')
    known = ', '.join(_PHASES)
    parser.add_argument('--phases', type=some_of(_PHASES), default=_PHASES, help=f'comma-separated list of {known}')
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--sessions', type=two_or_more, default=4, help='how often each loop starts anew, at least 2')
    args = parser.parse_args()
    # Each session ends its run before the last step.
    warnings.filterwarnings('ignore', message='the run is incomplete')
    rows = []
    for model, size, phase in itertools.product(args.models.split(','), args.batch_sizes.split(','), args.phases):
        params = make_params(
            model=model,
            device='cpu',
            batch_size=int(size),
            precision=args.precision,
            forward_only=phase == 'forward',
            num_batches=10**9,
            num_warmup_batches=_MIN_WARMUP,
        )
        rows.append([f'{model}, batch {size}, {phase}', *cells(measure(params, args.sessions, args.rounds), int(size))])
        print(' | '.join(rows[-1]), file=sys.stderr, flush=True)
    ratios = itertools.chain.from_iterable((f'/ {name}', '95 %', 'CPU') for name in _OTHERS)
    print(machine_line(), as_table(['', 'images/sec', *ratios], rows), sep='\n\n')


if __name__ == '__main__':
    main()
