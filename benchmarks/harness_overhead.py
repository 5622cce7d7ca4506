"""Measures the overhead of BenchmarkCNN against session loops, alternately in one process.

    python -m benchmarks.harness_overhead
    python -m benchmarks.harness_overhead --models=resnet50 --batch_sizes=32 --phases=training
    --precision=bf16

benchmarks/README.md describes the loops `bare` and `by hand`. Networks that are not in
peers/plain_networks.py are compared only with `bare`. The report counts each session as one turn.
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

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from benchmarks.peers import plain_tensorflow
from benchmarks.peers.plain_networks import NETWORKS
from benchmarks.turns import (
    Numbers,
    comma_separated,
    make_parser,
    print_report,
    run_in_turns,
    run_script,
)
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import make_params
from tf_cnn.step.build import build_step
from tf_cnn.sweep.runner import order_of_round

_OURS = 'harness'
_PHASES = ('training', 'forward')
# The first step builds kernels, the second allocates. Short steps are repeated for a while.
_MIN_WARMUP, _WARMUP_SECS = 2, 0.5
# The approximate length of a turn. Most short turns have no noise from other programs; the median
# ignores the others.
_TURN_SECS = 0.25
# A function that takes this number of steps.
TakeSteps = Callable[[int], object]


@contextlib.contextmanager
def harness(params: Params) -> Iterator[TakeSteps]:
    with contextlib.closing(BenchmarkCNN(params).steps()) as steps:
        yield lambda count: sum(1 for _ in itertools.islice(steps, count))


@contextlib.contextmanager
def bare_loop(params: Params) -> Iterator[TakeSteps]:
    plan = BenchmarkCNN(params).plan
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(plan.params.run.tf_random_seed)
        step = build_step(plan)
    fetches = step.fetches.as_dict()
    with tf.Session(graph=graph, config=plan.session.config) as session:
        session.run(step.initializers)
        step.prepare_first_step(session)
        yield lambda count: [session.run(fetches) for _ in range(count)]


@contextlib.contextmanager
def loop_by_hand(params: Params) -> Iterator[TakeSteps]:
    sizes = params.run.model, params.run.batch_size, params.precision.precision
    step = plain_tensorflow.make_step(*sizes, forward_only=params.run.forward_only)
    yield lambda count: [step() for _ in range(count)]


LOOPS: dict[str, Callable[[Params], AbstractContextManager[TakeSteps]]] = {
    _OURS: harness,
    'bare': bare_loop,
    'by hand': loop_by_hand,
}


def measure(params: Params, num_sessions: int, num_rounds: int) -> dict[str, list[Numbers]]:
    """Measures the loops alternately, in several sessions, since the layout of memory varies.

    Returns for each loop, and each session, the medians over the rounds.
    """
    names = [name for name in LOOPS if params.run.model in NETWORKS or name != 'by hand']
    medians: dict[str, list[Numbers]] = {name: [] for name in names}
    for number in range(1, num_sessions + 1):
        with contextlib.ExitStack() as stack:
            order = [names[index] for index in order_of_round(len(names), number)]
            loops = {name: stack.enter_context(LOOPS[name](params)) for name in order}
            seconds = {name: warm_up(take_steps) for name, take_steps in loops.items()}
            count = math.ceil(_TURN_SECS / seconds[_OURS])
            cases = {
                name: functools.partial(time_steps, loops[name], count, params.run.batch_size)
                for name in order
            }
            for name, round_numbers in run_in_turns(cases, num_rounds, is_shown=False).items():
                medians[name].append(
                    {
                        title: statistics.median(numbers[title] for numbers in round_numbers)
                        for title in round_numbers[0]
                    }
                )
    return medians


def warm_up(take_steps: TakeSteps) -> float:
    seconds: list[float] = []
    while len(seconds) < _MIN_WARMUP or sum(seconds) < _WARMUP_SECS:
        start = time.perf_counter()
        take_steps(1)
        seconds.append(time.perf_counter() - start)
    return statistics.median_low(seconds)


def time_steps(take_steps: TakeSteps, count: int, batch_size: int) -> Numbers:
    wall, processor = time.perf_counter(), time.process_time()
    take_steps(count)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {'images/sec': batch_size * count / wall, 'processor ms': 1e3 * processor / count}


def main() -> int:
    parser = make_parser(__doc__, rounds=10, sessions=4)
    parser.add_argument('--models', default='trivial,lenet', help='comma-separated')
    parser.add_argument('--batch_sizes', default='1,8,64', help='comma-separated')
    parser.add_argument(
        '--phases', type=comma_separated(_PHASES), default=','.join(_PHASES), help='comma-separated'
    )
    parser.add_argument(
        '--precision', choices=('fp32', 'bf16'), default='fp32', help='of the activations'
    )
    args = parser.parse_args()
    # Each session stops before the last step of its run.
    warnings.filterwarnings('ignore', message='the run is incomplete')
    outcomes, pairs = dict[str, list[Numbers]](), []
    for model, size, phase in itertools.product(
        args.models.split(','), args.batch_sizes.split(','), args.phases
    ):
        params = make_params(
            model=model,
            device='cpu',
            batch_size=int(size),
            precision=args.precision,
            forward_only=phase == 'forward',
            num_batches=10**9,
            num_warmup_batches=_MIN_WARMUP,
        )
        medians = measure(params, args.sessions, args.rounds)
        case = f'{model} {size} {phase}'
        outcomes |= {f'{case}, {name}': sessions for name, sessions in medians.items()}
        pairs += [(f'{case}, {_OURS}', f'{case}, {name}') for name in medians if name != _OURS]
        print(f'{case}: done', file=sys.stderr, flush=True)
    return print_report(outcomes, pairs)


if __name__ == '__main__':
    run_script(main)
