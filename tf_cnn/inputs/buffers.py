"""The host memory of an input pipeline's buffers. Does not import TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True)
class Buffer:
    """A buffer of at most `count` items.

    `what` names the items in the plural ('records'); `bytes_each` is their mean size.
    """

    what: str
    count: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    bytes_each: Annotated[float, Meta(ge=0, le=1e100)]

    @property
    def num_bytes(self) -> float:
        return self.count * self.bytes_each


def max_total_bytes(buffers: Sequence[Buffer]) -> int:
    return round(sum(buffer.num_bytes for buffer in buffers))


def format_memory(buffers: Sequence[Buffer]) -> str:
    buffer_texts = ', '.join(
        f'{buffer.count:,} {buffer.what} of {_format_bytes(buffer.bytes_each)}'
        for buffer in buffers
    )
    return (
        f'input memory: buffers of at most {_format_bytes(max_total_bytes(buffers))} '
        f'({buffer_texts})'
    )


def _format_bytes(num_bytes: float) -> str:
    for unit, prefix in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if num_bytes >= unit:
            return f'{num_bytes / unit:.3g} {prefix}B'
    return f'{num_bytes:.0f} B'
