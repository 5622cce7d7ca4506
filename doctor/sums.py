"""Checks that the sums of every all-reduce algorithm are exact, for any number of devices and any dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from doctor.verdicts import Context, Verdict, ok, skipped, wrong
from managers.all_reduce import Algorithm, make_algorithm
from managers.collective import by_collective
from params.all_reduce_spec import NCCL_TRANSFER_DTYPES, parse_spec
from params.device_flags import HOST_DEVICE

# The algorithm of --variable_update=collective_all_reduce; the others are those of --all_reduce_spec.
COLLECTIVE = 'collective'
# The algorithms that use NCCL between GPUs.
_BY_NCCL = ('nccl', COLLECTIVE)
# NCCL has different protocols for short and long tensors. Most of these sizes are not divisible by the number of
# devices.
_SIZES = (1, 5, 4097, 2**20 + 1)
_VIRTUAL_CPUS = (2, 4)
_NUM_RUNS = 3
# No sum over up to 64 devices exceeds 160: whole numbers up to 256 are exact even in bfloat16, in any order.
_LARGEST_FACTOR = 4


def exact_sums(context: Context, algorithm: str, dtype: str) -> Verdict:
    """Sums tensors of small whole numbers over 2, 3 ... all GPUs, or over virtual CPUs, and compares every element.

    Args:
      context: the context of the check.
      algorithm: an algorithm of --all_reduce_spec, or COLLECTIVE.
      dtype: the dtype of the tensors.
    """
    if context.num_gpus > 1 and algorithm in _BY_NCCL and dtype not in ('float32', *NCCL_TRANSFER_DTYPES):
        return skipped(f'NCCL sums no {dtype} in TensorFlow; a run sums such gradients in float32')
    kind, numbers = ('gpu', range(2, context.num_gpus + 1)) if context.num_gpus > 1 else ('cpu', _VIRTUAL_CPUS)
    for number in numbers:
        context.doing(f'summing {dtype} over {number} {kind.upper()}s by {algorithm}')
        towers = [f'/{kind}:{index}' for index in range(number)]
        faults = list_faults(towers, algorithm_over(towers, algorithm), tf.as_dtype(dtype))
        if faults:
            return wrong(
                f'over {number} {kind.upper()}s: {"; ".join(faults[:3])}',
                'train with another --all_reduce_spec, and report it: gradients would be wrong',
                faults=faults,
            )
    listed = ', '.join(map(str, numbers))
    return ok(f'exact over {listed} {"GPUs" if kind == "gpu" else "virtual CPUs"}', kind=kind, numbers=list(numbers))


def list_faults(towers: Sequence[str], reduce: Algorithm, dtype: tf.DType) -> list[str]:
    """Returns the faults of the sums over these towers, a line for each tensor on each tower."""
    with tf.Graph().as_default() as graph:
        sums = []
        for index, size in enumerate(_SIZES):
            tensors = []
            for tower, device in enumerate(towers):
                with tf.device(device):
                    tensors.append(tf.constant(_values(size, tower), dtype) * tf.ones([], dtype))
            sums.append([tf.cast(total, tf.float32) for total in reduce(tensors, index)])
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    if 'cpu' in towers[0]:
        config.device_count['CPU'] = len(towers)
    found: dict[str, None] = {}
    expected = [np.sum([_values(size, tower) for tower in range(len(towers))], 0) for size in _SIZES]
    with tf.Session(graph=graph, config=config) as session:
        for _ in range(_NUM_RUNS):
            # All sums at once, as in a step: with NCCL all devices must start them in the same order.
            for right, totals in zip(expected, session.run(sums), strict=True):
                for device, total in zip(towers, totals, strict=True):
                    differing = np.flatnonzero(total != right)
                    if len(differing):
                        first = differing[0]
                        found[
                            f'{len(differing)} of {len(right)} sums are wrong on {device}, such as {total[first]:g} '
                            f'for {right[first]:g}'
                        ] = None
    return list(found)


def _values(size: int, tower: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns float32 [size]: whole numbers from -4 to 4, which differ between towers and between neighbours."""
    return ((np.arange(size) % 3 - 1) * (tower % _LARGEST_FACTOR + 1)).astype(np.float32)


def algorithm_over(towers: Sequence[str], name: str) -> Algorithm:
    """Returns the algorithm of --all_reduce_spec=name, or that of a worker of collective_all_reduce on GPUs.

    On CPUs TensorFlow replaces NCCL by its ring, with the same order of the sums.
    """
    if name == COLLECTIVE:
        return by_collective(towers, 1, None, on_towers=True)
    return make_algorithm(parse_spec(name), towers, HOST_DEVICE)
