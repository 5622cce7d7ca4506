"""The checks of `doctor` that use the program.

Only a process of doctor imports them, so they may import every package of the program.
"""

import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.doctor.checks import OK, SKIPPED, WARNING, WRONG, Finding
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.onednn import ONEDNN_VARIABLE, uses_onednn
from tf_cnn.managers.all_reduce import Algorithm, make_algorithm
from tf_cnn.managers.all_reduce_spec import ALGORITHMS, COLLECTIVE, NCCL_TRANSFER_DTYPES, parse_spec
from tf_cnn.managers.collective import collective_algorithm
from tf_cnn.sweep.runner import PROGRAM
from tf_cnn.system.documents import read_json
from tf_cnn.system.errors import RunError
from tf_cnn.system.limited_process import run_process


def _num_gpus() -> int:
    return len(tf.config.list_physical_devices('GPU'))


# ---- sums ----------------------------------------------------------------------------------------

_DTYPES = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}
# NCCL has different protocols for short and long tensors. Most of these sizes are not divisible by
# the number of devices.
_SIZES = (1, 5, 4097, 2**20 + 1)
_NUM_RUNS = 3
# No sum over up to 64 devices exceeds 160. Integers up to 256 are exact even in bfloat16, in any
# order of summation.
_LARGEST_FACTOR = 4


def check_sums(algorithm: str, precision: str) -> Finding:
    """Checks that sums of integers over 2, 3 ... all GPUs are exact.

    Args:
      algorithm: an --all_reduce_spec, or COLLECTIVE.
      precision: a key of _DTYPES.
    """
    dtype = _DTYPES[precision]
    if algorithm in ('nccl', COLLECTIVE) and dtype not in ('float32', *NCCL_TRANSFER_DTYPES):
        return Finding(
            SKIPPED, f'TensorFlow has no NCCL sum of {dtype}; a run sums such gradients in float32'
        )
    numbers = range(2, _num_gpus() + 1)
    for number in numbers:
        towers = [f'/gpu:{index}' for index in range(number)]
        reduce = algorithm_for_towers(towers, algorithm)
        try:
            faults = list_wrong_sums(towers, reduce, tf.as_dtype(dtype))
        except tf.errors.OpError as error:
            summary = f'over {number} GPUs: {error.message.splitlines()[0]}'
            return Finding(WRONG, summary, 'see docs/gpu.md, If something is wrong')
        if faults:
            summary = f'over {number} GPUs: {"; ".join(faults[:3])}'
            advice = 'train with another --all_reduce_spec, and report it: gradients would be wrong'
            return Finding(WRONG, summary, advice, {'faults': faults})
    return Finding(OK, f'exact over {", ".join(map(str, numbers))} GPUs')


def list_wrong_sums(towers: Sequence[str], reduce: Algorithm, dtype: tf.DType) -> list[str]:
    """Returns a line for each tensor with a wrong sum on a tower."""
    with tf.Graph().as_default() as graph:
        sums = []
        for index, size in enumerate(_SIZES):
            tensors = []
            for tower, device in enumerate(towers):
                with tf.device(device):
                    tensors.append(
                        tf.constant(_tower_values(size, tower), dtype) * tf.ones([], dtype)
                    )
            sums.append([tf.cast(total, tf.float32) for total in reduce(tensors, index)])
    # TensorFlow takes all memory of the GPUs, as in a run: NCCL's buffers must fit beside it.
    config = tf.ConfigProto(allow_soft_placement=False)
    config.device_count['CPU'] = len(towers)  # for tests without GPUs
    faults: dict[str, None] = {}
    expected = [
        np.sum([_tower_values(size, tower) for tower in range(len(towers))], 0) for size in _SIZES
    ]
    with tf.Session(graph=graph, config=config) as session:
        for _ in range(_NUM_RUNS):
            # Fetches all sums at once, as a step does: with NCCL all devices must start them in the
            # same order.
            for right, totals in zip(expected, session.run(sums), strict=True):
                for device, total in zip(towers, totals, strict=True):
                    differing = np.flatnonzero(total != right)
                    if len(differing):
                        first = f'{total[differing[0]]:g} for {right[differing[0]]:g}'
                        faults[
                            f'{len(differing)} of {len(right)} sums are wrong on {device}, such '
                            f'as {first}'
                        ] = None
    return list(faults)


def _tower_values(size: int, tower: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns float32 [size]: integers in [-4, 4], different on each tower and for neighbours."""
    return ((np.arange(size) % 3 - 1) * (tower % _LARGEST_FACTOR + 1)).astype(np.float32)


def algorithm_for_towers(towers: Sequence[str], name: str) -> Algorithm:
    """Returns the all-reduce algorithm of an --all_reduce_spec, or collective ops for COLLECTIVE.

    On CPUs TensorFlow replaces NCCL by its ring, with the same order of the sums.
    """
    if name == COLLECTIVE:
        return collective_algorithm(towers, 1, None, nccl_over_towers=True)
    return make_algorithm(parse_spec(name), towers, HOST_DEVICE)


# ---- the processor -------------------------------------------------------------------------------

# Few steps, since each may take seconds without oneDNN.
_ONEDNN_FLAGS = (
    '--model=resnet50',
    '--device=cpu',
    '--batch_size=8',
    '--num_batches=3',
    '--num_warmup_batches=1',
)
_ONEDNN_ROUNDS = 2
# Single runs of so few steps differ by less.
_ONEDNN_GAIN = 1.15


def check_onednn(
    is_onednn_on: Callable[[], bool | None] = uses_onednn, flags: Sequence[str] = _ONEDNN_FLAGS
) -> Finding:
    """Measures the gain from oneDNN if TensorFlow leaves it off on this processor."""
    if (is_on := is_onednn_on()) is None:
        return Finding(SKIPPED, 'this TensorFlow does not say whether it uses oneDNN')
    if is_on:
        return Finding(OK, 'TensorFlow computes by oneDNN')
    environment = {name: value for name, value in os.environ.items() if name != ONEDNN_VARIABLE}
    rates: dict[str, list[float]] = {'false': [], 'true': []}
    for value in [*rates] * _ONEDNN_ROUNDS:
        document = _run_program([*flags, f'--onednn={value}'], environment)
        if document['run']['onednn'] is not (value == 'true'):
            return Finding(SKIPPED, 'this TensorFlow was built without oneDNN')
        rates[value].append(document['throughput']['images_per_second'])
    return compare_onednn(rates, os.environ.get(ONEDNN_VARIABLE))


def _run_program(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs the program, and returns its result document; raises RunError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, 'result.json'), Path(folder, 'log')
        process_exit = run_process(
            [*PROGRAM, *arguments, f'--result_file={result}'], log, environment=environment
        )
        print(log.read_text(errors='backslashreplace'), file=sys.stderr)
        if process_exit.exit_code:
            raise RunError(
                f'{process_exit.reason}; the command was tf_cnn_benchmarks {" ".join(arguments)}'
            )
        return read_json(result, dict[str, Any])


def compare_onednn(rates: Mapping[str, Sequence[float]], variable: str | None) -> Finding:
    """Compares the images/sec with and without oneDNN.

    Args:
      rates: the images/sec of the runs, by the value of --onednn.
      variable: TF_ENABLE_ONEDNN_OPTS; None if it is not set.
    """
    rate_without, rate_with = (max(rates[value]) for value in ('false', 'true'))
    reason = 'TensorFlow leaves it off on this processor'
    if variable is not None:
        reason = f'{ONEDNN_VARIABLE}={variable} turns it off'
    summary = (
        f'ResNet-50 trains at {rate_without:.2f} images/sec without oneDNN ({reason}), and at '
        f'{rate_with:.2f} with it'
    )
    figures = {'images_per_second': rates}
    if rate_with < _ONEDNN_GAIN * rate_without:
        return Finding(OK, summary, None, figures)
    run_flags = ' '.join(f"--run='--model=resnet50 --onednn={value}'" for value in rates)
    unset = '' if variable is None else f'unset {ONEDNN_VARIABLE} and '
    advice = (
        f'{unset}use --onednn=true; to measure longer: tf_cnn_benchmarks.py compare {run_flags}'
    )
    return Finding(WARNING, summary, advice, figures)


# ---- XLA -----------------------------------------------------------------------------------------

# A step has convolutions, matrix products and updates, and compiles within seconds.
_XLA_FLAGS = (
    '--model=lenet',
    '--batch_size=8',
    '--num_batches=2',
    '--num_warmup_batches=1',
    '--xla',
)


def check_xla(
    flags: Sequence[str] = _XLA_FLAGS, count_gpus: Callable[[], int] = _num_gpus
) -> Finding:
    """Trains with --xla, in a process of its own: XLA may abort it."""
    if not count_gpus():
        return Finding(SKIPPED, 'no GPU')
    try:
        _run_program(flags, os.environ)
    except RunError as error:
        return Finding(WRONG, str(error), 'train without --xla; see docs/gpu.md')
    return Finding(OK, 'a network trains with --xla')


def _all_reduce_checks() -> dict[str, Callable[[], Finding]]:
    if _num_gpus() < 2:
        return {'sums': functools.partial(Finding, SKIPPED, 'fewer than two GPUs')}
    # NCCL comes last: if it crashes, the other algorithms have been checked.
    algorithms = (*sorted(ALGORITHMS, key='nccl'.__eq__), COLLECTIVE)
    return {
        f'{algorithm}/{precision}': functools.partial(check_sums, algorithm, precision)
        for algorithm, precision in itertools.product(algorithms, _DTYPES)
    }


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'processor': {'onednn': check_onednn},
    'xla': {'training': check_xla},
    'all_reduce': _all_reduce_checks(),
}
