"""The checks of `doctor` on sums over GPUs."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.machine.findings import OK, SKIPPED, WRONG, Finding
from tf_cnn.managers.all_reduce import Algorithm, make_algorithm
from tf_cnn.managers.all_reduce_spec import ALGORITHMS, COLLECTIVE, NCCL_TRANSFER_DTYPES, parse_spec
from tf_cnn.managers.collective import collective_algorithm
from tf_cnn.training.config import DTYPES


def _num_gpus() -> int:
    return len(tf.config.list_physical_devices('GPU'))


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
      precision: a key of DTYPES.
    """
    dtype = DTYPES[precision]
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


def _all_reduce_checks() -> dict[str, Callable[[], Finding]]:
    if _num_gpus() < 2:
        return {'sums': functools.partial(Finding, SKIPPED, 'fewer than two GPUs')}
    # NCCL comes last: if it crashes, the other algorithms have been checked.
    algorithms = (*sorted(ALGORITHMS, key='nccl'.__eq__), COLLECTIVE)
    return {
        f'{algorithm}/{precision}': functools.partial(check_sums, algorithm, precision)
        for algorithm, precision in itertools.product(algorithms, DTYPES)
    }


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'all_reduce': _all_reduce_checks(),
}
