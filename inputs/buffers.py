"""The host memory of an input pipeline's buffers. Does not import TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Buffer:
    """A buffer of at most `count` items; `what` names them in the plural ('records')."""

    what: str
    count: int
    bytes_each: Annotated[float, 'The mean.']

    @property
    def num_bytes(self) -> float:
        return self.count * self.bytes_each


def most_bytes(buffers: Sequence[Buffer]) -> int:
    return round(sum(buffer.num_bytes for buffer in buffers))


def format_memory(buffers: Sequence[Buffer]) -> str:
    parts = ', '.join(f'{buffer.count:,} {buffer.what} of {_size(buffer.bytes_each)}' for buffer in buffers)
    return f'input memory: buffers of at most {_size(most_bytes(buffers))} ({parts})'


def _size(num_bytes: float) -> str:
    for unit, prefix in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if num_bytes >= unit:
            return f'{num_bytes / unit:.3g} {prefix}B'
    return f'{num_bytes:.0f} B'
