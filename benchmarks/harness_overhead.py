"""Compares the overhead of BenchmarkCNN with session loops.

    python -m benchmarks.harness_overhead
    python -m benchmarks.harness_overhead --models=resnet50 --batch_sizes=32 --phases=training
    --precision=bf16

benchmarks/README.md describes the loops `bare` and `by hand`. Networks that are not in
peers/plain_networks.py are compared only with `bare`. With --loop the script measures one loop in
one session, since the layout of memory varies from session to session.
"""

import contextlib
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
from benchmarks.comparing import comma_separated, compare_pairs, make_parser
from benchmarks.peers import plain_tensorflow
from benchmarks.peers.plain_networks import NETWORKS
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import make_params
from tf_cnn.step.build import build_step

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
    sizes = params.run.model, params.run.batch_size, params.numerics.precision
    step = plain_tensorflow.make_step(*sizes, forward_only=params.run.forward_only)
    yield lambda count: [step() for _ in range(count)]


LOOPS: dict[str, Callable[[Params], AbstractContextManager[TakeSteps]]] = {
    _OURS: harness,
    'bare': bare_loop,
    'by hand': loop_by_hand,
}


def measure(loop: str, params: Params, num_turns: int) -> None:
    """Prints the median of the turns of one session."""
    with LOOPS[loop](params) as take_steps:
        count = math.ceil(_TURN_SECS / warm_up(take_steps))
        turns = [time_steps(take_steps, count) for _ in range(num_turns)]
    seconds, processor_ms = (statistics.median(values) for values in zip(*turns, strict=True))
    print(f'processor ms: {processor_ms:.4g}')
    print(f'total images/sec: {params.run.batch_size / seconds:.6g}')


def warm_up(take_steps: TakeSteps) -> float:
    seconds: list[float] = []
    while len(seconds) < _MIN_WARMUP or sum(seconds) < _WARMUP_SECS:
        start = time.perf_counter()
        take_steps(1)
        seconds.append(time.perf_counter() - start)
    return statistics.median_low(seconds)


def time_steps(take_steps: TakeSteps, count: int) -> tuple[float, float]:
    """Returns the wall seconds and the processor milliseconds of a step."""
    wall, processor = time.perf_counter(), time.process_time()
    take_steps(count)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return wall / count, 1e3 * processor / count


def main() -> int:
    parser = make_parser(__doc__, 'harness_overhead', rounds=4, turns=10)
    parser.add_argument('--models', default='trivial,lenet', help='comma-separated')
    parser.add_argument('--batch_sizes', default='1,8,64', help='comma-separated')
    parser.add_argument(
        '--phases', type=comma_separated(_PHASES), default=','.join(_PHASES), help='comma-separated'
    )
    parser.add_argument(
        '--precision', choices=('fp32', 'bf16'), default='fp32', help='of the activations'
    )
    parser.add_argument('--loop', choices=LOOPS, help='only measure this loop in the first case')
    args = parser.parse_args()
    cases = itertools.product(args.models.split(','), args.batch_sizes.split(','), args.phases)
    if args.loop:
        model, size, phase = next(cases)
        # The session stops before the last step of its run.
        warnings.filterwarnings('ignore', message='the run is incomplete')
        params = make_params(
            model=model,
            device='cpu',
            batch_size=int(size),
            precision=args.precision,
            forward_only=phase == 'forward',
            num_batches=10**9,
            num_warmup_batches=_MIN_WARMUP,
        )
        measure(args.loop, params, args.turns)
        return 0
    commands, pairs = dict[str, list[str]](), []
    for model, size, phase in cases:
        case = [f'--models={model}', f'--batch_sizes={size}', f'--phases={phase}']
        case += [f'--precision={args.precision}', f'--turns={args.turns}']
        for loop in LOOPS if model in NETWORKS else (_OURS, 'bare'):
            name = f'{model} {size} {phase}, {loop}'
            script = [sys.executable, '-m', 'benchmarks.harness_overhead', f'--loop={loop}']
            commands[name] = [*script, *case]
            if loop != _OURS:
                pairs.append((f'{model} {size} {phase}, {_OURS}', name))
    return compare_pairs(commands, pairs, args)


if __name__ == '__main__':
    sys.exit(main())
