"""How much host memory the buffers of an input pipeline take at most. Does not import TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """A buffer of a pipeline: at most `count` things of on average `bytes_each` bytes. what: their plural."""

    what: str
    count: int
    bytes_each: float

    @property
    def num_bytes(self) -> float:
        return self.count * self.bytes_each


def most_bytes(buffers: Sequence[Held]) -> int:
    """The bytes of all buffers when they are full."""
    return round(sum(held.num_bytes for held in buffers))


def format_memory(buffers: Sequence[Held]) -> str:
    """The bound and what it is made of, in one line."""
    parts = ', '.join(f'{held.count:,} {held.what} of {_size(held.bytes_each)}' for held in buffers)
    return f'input memory: buffers of at most {_size(most_bytes(buffers))} ({parts})'


def _size(num_bytes: float) -> str:
    for unit, prefix in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if num_bytes >= unit:
            return f'{num_bytes / unit:.3g} {prefix}B'
    return f'{num_bytes:.0f} B'
