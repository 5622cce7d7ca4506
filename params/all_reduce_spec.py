"""The language of --all_reduce_spec: which algorithm sums tensors of which size. Does not import TensorFlow."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from errors import UsageError, format_flag
from params.modes import modes_that

# The name of each algorithm, and what it does; managers.all_reduce implements them.
ALGORITHMS: Mapping[str, str] = {
    'pscpu': 'sums on the CPU',
    'psgpu': "sums on the towers' own devices, which take turns",
    'xring': 'passes chunks around a ring of towers',
    'nccl': 'NCCL, for GPUs only, which sums no bfloat16',
}
# The original's name for the sum that workers without parameter servers make in any case.
COLLECTIVE = 'collective'
# The 16-bit types that NCCL sums correctly in TensorFlow. NcclAllReduce refuses bfloat16; CollectiveReduce accepts it,
# but TensorFlow 2.21 passes it to NCCL as float32, which sums garbage (tensorflow/core/nccl/nccl_manager.cc,
# ToNcclType).
NCCL_TRANSFER_DTYPES = ('float16',)
_BYTES = {'': 1, 'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40}


@dataclass(frozen=True)
class Range:
    """A range of tensor sizes, and how to sum its tensors.

    Attributes:
      limit_bytes: tensors smaller than this that no earlier range takes; None for all others.
      shards: the number of parts into which the algorithm cuts a tensor, to sum each separately.
      between: the algorithm that sums between processes, after `algorithm` has summed within each process; None if
        `algorithm` sums over all towers.
    """

    algorithm: str
    limit_bytes: int | None
    shards: int = 1
    between: str | None = None
    between_shards: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return (self.algorithm,) if self.between is None else (self.algorithm, self.between)


def parse_spec(spec: str) -> tuple[Range, ...]:
    """Returns the ranges of --all_reduce_spec in order of their limits; the last one has none.

    The spec is WAY, or WAY:LIMIT:WAY..., where tensors smaller than LIMIT bytes (32k, 4m) are summed in the way before
    the limit. A way is ALG, ALG#SHARDS, or two of these separated by a slash: within processes, and between them.
    Raises UsageError if the spec has another form, or names an unknown algorithm.
    """

    def refusal(why: str) -> UsageError:
        known = ', '.join(f'{name} ({what})' for name, what in ALGORITHMS.items())
        return UsageError(
            f'{format_flag("all_reduce_spec", spec)}: {why}; write ALG or ALG:LIMIT:ALG, as in pscpu:32k:xring, where '
            f'ALG is one of {known}'
        )

    def read_part(part: str) -> tuple[str, int]:
        name, hash_sign, shards = part.partition('#')
        if name == COLLECTIVE:
            raise refusal(f'{name!r} is what {modes_that(lambda mode: mode.nccl_between_gpus)} does')
        if name not in ALGORITHMS:
            raise refusal(f'there is no algorithm {name!r}')
        if hash_sign and not re.fullmatch('[1-9][0-9]{0,3}', shards):
            raise refusal(f'{shards!r} is not a number of shards from 1 to 9999')
        return name, int(shards or 1)

    words = spec.split(':')
    ways, limits = words[::2], words[1::2]
    if len(words) % 2 == 0:
        raise refusal('a limit must stand between two algorithms')
    parts = []
    for way in ways:
        found = [read_part(part) for part in way.split('/')]
        if len(found) > 2:
            raise refusal(f'{way!r} has more than two algorithms')
        parts.append(found)
    sizes = []
    for limit in limits:
        match = re.fullmatch(r'(\d{1,15})([kmgt]?)', limit.lower(), re.ASCII)
        if not match:
            raise refusal(f'{limit!r} is not a number of bytes')
        sizes.append(int(match[1]) * _BYTES[match[2]])
    if sizes != sorted(set(sizes)):
        raise refusal('each limit must be larger than the one before')
    ranges = []
    for ((algorithm, shards), *others), size in zip(parts, [*sizes, None], strict=True):
        between, between_shards = others[0] if others else (None, 1)
        ranges.append(Range(algorithm, size, shards, between, between_shards))
    return tuple(ranges)


def idle_parts(spec: str, ranges: Sequence[Range], *, has_workers: bool) -> list[str]:
    """Returns one line for each part of a spec without effect; has_workers: whether one process sums for several."""
    written = format_flag('all_reduce_spec', spec)
    lines = []
    if not has_workers and any(part.between for part in ranges):
        lines.append(f'{written}: what follows a slash has no effect: all towers are in one process')
    reasons = {'pscpu': 'one CPU sums all parts', 'nccl': 'NCCL cuts tensors itself'}
    lines += [
        f'{written}: #{part.shards} after {part.algorithm} has no effect: {reasons[part.algorithm]}'
        for part in ranges
        if part.shards > 1 and part.algorithm in reasons
    ]
    return lines
