"""The repeats and limits of a sweep: flags of the subcommand, and keys of the same names in a file."""

import re
from dataclasses import dataclass

from errors import UsageError, format_flag
from params.spec import flag

_SIZE = re.compile(r'\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b?|b)?\s*', re.ASCII | re.IGNORECASE)
_PREFIXES = {'k': 1, 'm': 2, 'g': 3, 't': 4}


@dataclass(frozen=True)
class Settings:
    repeats: int = flag(1, 'Runs of each configuration.', lower_bound=1, unit='runs')
    timeout_secs: float | None = flag(
        None, 'End a run that takes longer, and go on with the next.', lower_bound=0.1, unit='seconds'
    )
    memory_limit: str | None = flag(
        None, 'End a run whose processes together need more memory than this, such as 8GiB, and go on with the next.'
    )
    find_batch_size: bool = flag(
        False,
        'Find the largest batch size of each configuration that fits into the memory, with a few steps of each size '
        'that is tried; on CPUs, which have no limit of their own, with --memory_limit.',
    )
    seed: int = flag(1234, 'Seed of the order of the third and later repeats.', lower_bound=0)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else read_bytes(self.memory_limit)

    def check(self) -> None:
        if self.memory_limit is not None:
            try:
                found = read_bytes(self.memory_limit)
            except ValueError:
                found = 0
            if not found:
                raise UsageError(
                    f'{format_flag("memory_limit", self.memory_limit)}: it must be a size above 0, such as 8GiB'
                )
        if self.find_batch_size and self.repeats > 1:
            raise UsageError(
                f'--find_batch_size clashes with {format_flag("repeats", self.repeats)}: it tries each size once; '
                'leave one out'
            )


def read_bytes(text: str) -> int:
    """Reads a number of bytes: 8GiB is 8 * 2^30, 8GB is 8 * 10^9; 8G is 8GiB, as in tools that limit memory."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(text)
    unit = (match[2] or 'B').lower()
    base = 1000 if len(unit) == 2 else 1024
    return int(float(match[1]) * base ** _PREFIXES.get(unit[0], 0))
