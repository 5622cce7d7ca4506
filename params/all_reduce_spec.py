"""The language of --all_reduce_spec: which algorithm sums tensors of which size. Does not import TensorFlow."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from errors import UsageError, spelled

# The algorithms by name, and what each does; managers.all_reduce implements them.
ALGORITHMS: Mapping[str, str] = {
    'pscpu': 'sums on the CPU',
    'psgpu': "sums on the towers' own devices, which take turns",
    'xring': 'passes chunks around a ring of towers',
    'nccl': 'NCCL, for GPUs only, which sums no bfloat16',
}
# The types of 16 bits that TensorFlow has NCCL sum. NcclAllReduce refuses bfloat16; CollectiveReduce takes it, and in
# TensorFlow 2.21 hands it to NCCL as float32, which adds garbage (tensorflow/core/nccl/nccl_manager.cc, ToNcclType).
NCCL_TRANSFER_DTYPES = ('float16',)
_BYTES = {'': 1, 'k': 1 << 10, 'm': 1 << 20}


@dataclass(frozen=True)
class Range:
    """The tensors of fewer than limit_bytes bytes that no earlier range takes (None: all others), and how to sum them.

    Attributes:
      algorithm: a name in ALGORITHMS.
    """

    algorithm: str
    limit_bytes: int | None


def parse_spec(spec: str) -> tuple[Range, ...]:
    """Reads the value of --all_reduce_spec.

    Args:
      spec: ALG, or ALG:LIMIT:ALG... where tensors smaller than LIMIT bytes (32k, 4m) take the algorithm before it.

    Returns:
      The ranges by growing limit; the last one has none.

    Raises:
      UsageError: the spec has another form, or names an unknown algorithm.
    """

    def refusal(why: str) -> UsageError:
        known = ', '.join(f'{name} ({what})' for name, what in ALGORITHMS.items())
        return UsageError(
            f'{spelled("all_reduce_spec", spec)}: {why}; write ALG or ALG:LIMIT:ALG, as in pscpu:32k:xring, where '
            f'ALG is one of {known}'
        )

    words = spec.split(':')
    names, limits = words[::2], words[1::2]
    if len(words) % 2 == 0:
        raise refusal('a limit must stand between two algorithms')
    for name in names:
        if '/' in name:
            raise refusal(f'{name!r} asks for a second algorithm between machines, which this version does not have')
        if '#' in name:
            raise refusal(f'{name!r} asks for shards, which this version does not have')
        if name not in ALGORITHMS:
            raise refusal(f'there is no algorithm {name!r}')
    sizes = []
    for limit in limits:
        match = re.fullmatch(r'(\d+)([km]?)', limit.lower())
        if not match:
            raise refusal(f'{limit!r} is not a number of bytes')
        sizes.append(int(match[1]) * _BYTES[match[2]])
    if sizes != sorted(set(sizes)):
        raise refusal('each limit must be larger than the one before')
    return tuple(map(Range, names, [*sizes, None]))
