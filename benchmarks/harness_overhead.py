"""The cost of the harness: BenchmarkCNN compared with session loops, in turns within one process.

    python benchmarks/harness_overhead.py
    python benchmarks/harness_overhead.py --models=resnet50 --batch_sizes=32 --phases=training --precision=bf16

`bare` is a loop of session.run over the ops of the program's own step: the same graph in a session with the same
settings. `by hand` is a loop over the network as benchmarks/peers/plain_networks.py writes it in TensorFlow's ops, with
reference variables, the accuracy in forward steps, and session.run, as in the original program. `prepared` is the same
with make_callable, which looks up what to fetch only once, as this program does.
"""

import argparse
import contextlib
import functools
import itertools
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from benchmarks.peers import plain_tensorflow
from benchmarks.peers.plain_networks import NETWORKS
from benchmarks.standings import format_interval, machine_line, paired_ratio
from benchmarks.turns import at_least, order_of_round, others_share, outcomes, some_of, take_turns
from comparison.tables import Table, TableColumn
from hardware.meters import Disturbances
from params import Params, make_params
from run.build import build_step

_MODELS, _BATCH_SIZES, _PHASES = ('trivial', 'lenet', 'alexnet', 'resnet20'), (1, 8, 64), ('training', 'forward')
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
        step = build_step(plan, root=0)
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


@dataclass(frozen=True)
class Session:
    """What one session of each loop found.

    Attributes:
      seconds: for each loop, the median over its turns of the wall and of the processor seconds of a step: [2].
      others: the share of the cores that other processes and machines used; None if unknown.
    """

    seconds: Mapping[str, np.ndarray]
    others: float | None


def measure(params: Params, num_sessions: int, num_rounds: int) -> list[Session]:
    """Lets the loops take turns, in several sessions, which differ in their layout of memory."""
    names = [name for name in LOOPS if params.model in NETWORKS or name in (_OURS, 'bare')]
    sessions = []
    for number in range(1, num_sessions + 1):
        with contextlib.ExitStack() as stack:
            loops = {name: stack.enter_context(LOOPS[name](params)) for name in order_of_round(names, number)}
            seconds = {name: warm_up(take_steps) for name, take_steps in loops.items()}
            num_steps = math.ceil(_TURN_SECS / seconds[_OURS])
            watching = Disturbances()
            watching.start()
            turns = take_turns(
                {name: turn_of(take_steps, num_steps) for name, take_steps in loops.items()}, num_rounds, max_repeats=0
            )
            others = others_share(watching.stop())
        sessions.append(Session({name: np.median(outcomes(taken), axis=0) for name, taken in turns.items()}, others))
    return sessions


def warm_up(take_steps: TakeSteps) -> float:
    """Takes the first steps of a loop, and returns the median of their seconds, the lower one of two."""
    seconds: list[float] = []
    while len(seconds) < _MIN_WARMUP or sum(seconds) < _WARMUP_SECS:
        seconds.append(seconds_of(take_steps, 1)[0])
    return statistics.median_low(seconds)


def turn_of(take_steps: TakeSteps, count: int) -> Callable[[int], np.ndarray]:
    """Returns a contestant whose turn is a number of steps, and returns seconds_of() it."""
    return lambda _: seconds_of(take_steps, count)


def seconds_of(take_steps: TakeSteps, count: int) -> np.ndarray:
    """Takes a number of steps, and returns the wall and the processor seconds of one: [2]."""
    start = np.array([time.perf_counter(), time.process_time()])
    take_steps(count)
    return (np.array([time.perf_counter(), time.process_time()]) - start) / count


def cells(sessions: Sequence[Session], batch_size: int) -> list[str]:
    """Formats the rate of the harness, its ratios to each other loop, and the share of the cores that others used."""
    # [sessions, 2]
    seconds = {name: np.array([session.seconds[name] for session in sessions]) for name in sessions[0].seconds}
    found = [f'{batch_size / seconds[_OURS][:, 0].mean():.4g}']
    for name in LOOPS:
        if name != _OURS:
            found += ratio_cells(seconds[_OURS], seconds[name]) if name in seconds else ['', '', '']
    known = [session.others for session in sessions if session.others is not None]
    return [*found, f'{statistics.fmean(known):.0%}' if known else '']


def ratio_cells(ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    """Formats the ratio of the rates with its interval, and that of the processor seconds, from [sessions, 2]."""
    by_clock = paired_ratio(ours[:, 0], theirs[:, 0])
    return [
        f'{by_clock.value:.3f}',
        format_interval(by_clock.interval, 3),
        f'{ours[:, 1].mean() / theirs[:, 1].mean():.3f}',
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--models', type=lambda text: text.split(','), default=_MODELS, help='comma-separated')
    sizes = ','.join(map(str, _BATCH_SIZES))
    parser.add_argument(
        '--batch_sizes',
        type=lambda text: [int(size) for size in text.split(',')],
        default=_BATCH_SIZES,
        help=f'comma-separated; default: {sizes}',
    )
    parser.add_argument(
        '--phases', type=some_of(_PHASES), default=_PHASES, help=f'comma-separated list of {", ".join(_PHASES)}'
    )
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--sessions', type=at_least(2), default=4, help='how often each loop starts anew, at least 2')
    parser.add_argument('--rounds', type=at_least(2), default=10, help='turns of each loop in a session, at least 2')
    args = parser.parse_args()
    # Each session ends its run before the last step.
    warnings.filterwarnings('ignore', message='the run is incomplete')
    rows = []
    for model, batch_size, phase in itertools.product(args.models, args.batch_sizes, args.phases):
        params = make_params(
            model=model,
            device='cpu',
            batch_size=batch_size,
            precision=args.precision,
            forward_only=phase == 'forward',
            num_batches=10**9,
            num_warmup_batches=_MIN_WARMUP,
        )
        row = [f'{model}, batch {batch_size}, {phase}', *cells(measure(params, args.sessions, args.rounds), batch_size)]
        print(' | '.join(row), file=sys.stderr, flush=True)
        rows.append(row)
    titles = [
        '',
        'images/sec',
        *itertools.chain.from_iterable((f'/ {name}', '95 %', 'CPU') for name in LOOPS if name != _OURS),
    ]
    columns = [TableColumn(title, is_number=bool(number)) for number, title in enumerate([*titles, 'others used'])]
    print(machine_line(), Table(columns, rows).as_markdown(), sep='\n\n')


if __name__ == '__main__':
    main()
