"""Parses --all_reduce_spec: the all-reduce algorithm for each size of tensor. Does not import
TensorFlow.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tf_cnn.system.errors import UsageError, format_flag

# The name of each algorithm, and a summary; managers.all_reduce implements them.
ALGORITHMS: Mapping[str, str] = {
    'pscpu': 'sums on the CPU',
    'psgpu': "sums on the towers' devices in turn",
    'xring': 'passes chunks around a ring of towers',
    'nccl': 'sums with NCCL, for GPUs only and not in bfloat16',
}
# The original's name for the all-reduce that workers without parameter servers always use.
COLLECTIVE = 'collective'
# The 16-bit types that NCCL sums correctly in TensorFlow. NcclAllReduce refuses bfloat16;
# CollectiveReduce accepts it, but TensorFlow 2.21 passes it to NCCL as float32, which sums garbage
# (tensorflow/core/nccl/nccl_manager.cc, ToNcclType).
NCCL_TRANSFER_DTYPES = ('float16',)
_BYTES = {'': 1, 'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40}
_LIMIT = re.compile(r'(\d{1,15})([kmgt]?)', re.ASCII)
_NAMES, _SHARDS = '|'.join(ALGORITHMS), '[1-9][0-9]{0,3}'
_ALGORITHM = re.compile(
    f'(?P<first>{_NAMES})(#(?P<shards>{_SHARDS}))?'
    f'(/(?P<between>{_NAMES})(#(?P<between_shards>{_SHARDS}))?)?'
)


@dataclass(frozen=True)
class SizeRange:
    """A range of tensor sizes, and how to sum its tensors.

    Attributes:
      limit_bytes: the range holds the tensors smaller than this that no earlier range holds;
        None: all remaining tensors.
      shards: the number of shards that a tensor is cut into; each is reduced separately.
      between: the algorithm that sums between processes, after `algorithm` has summed within each
        process; None if `algorithm` sums over all towers.
    """

    algorithm: str
    limit_bytes: int | None
    shards: int = 1
    between: str | None = None
    between_shards: int = 1


def parse_spec(spec: str) -> tuple[SizeRange, ...]:
    """Returns the ranges of --all_reduce_spec in order of their limits; the last one has none.

    The spec is ALG, or ALG:LIMIT:ALG...; the algorithm before a limit sums the tensors smaller
    than LIMIT bytes (32k, 4m). ALG is a name, NAME#SHARDS, or two of these separated by a slash:
    within processes, and between them. Raises UsageError if the spec has another form, or an
    unknown name.
    """
    words = spec.split(':')
    algorithms = [_ALGORITHM.fullmatch(word) for word in words[::2]]
    limits = [_LIMIT.fullmatch(word.lower()) for word in words[1::2]]
    sizes = [int(limit[1]) * _BYTES[limit[2]] for limit in limits if limit]
    if (
        not all([*algorithms, *limits])
        or len(limits) != len(algorithms) - 1
        or sizes != sorted(set(sizes))
    ):
        choices = ', '.join(f'{name} ({summary})' for name, summary in ALGORITHMS.items())
        raise UsageError(
            f'{format_flag("all_reduce_spec", spec)}: it must be ALG, or ALG:LIMIT:ALG... with '
            'increasing limits, as in pscpu:32k:xring; ALG#4 cuts a tensor into 4 shards, ALG/ALG '
            'sums within processes and then between them, and ALG is one of '
            f'{choices}'
        )
    return tuple(
        SizeRange(
            algorithm['first'],
            size,
            int(algorithm['shards'] or 1),
            algorithm['between'],
            int(algorithm['between_shards'] or 1),
        )
        for algorithm, size in zip(algorithms, [*sizes, None], strict=True)
        if algorithm
    )
