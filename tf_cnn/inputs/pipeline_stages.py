"""The stages of an input pipeline, and its buffers in host memory. Does not import TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tf_cnn.system.errors import format_scaled

READ, PARSE, DECODE, PREPROCESS, TRANSFER = 'read', 'parse', 'decode', 'preprocess', 'transfer'
# What each stage does, in order. Not every pipeline has all stages.
STAGES = {
    READ: 'gets records from the shards, or images from memory',
    PARSE: 'finds the encoded image and the label in a record',
    DECODE: 'decodes the part of the JPEG that is used',
    PREPROCESS: 'resizes, distorts, flips and normalises, and makes a batch',
    TRANSFER: 'stages the batch and brings it to the device',
}


def stages_up_to(last: str, available: Sequence[str]) -> tuple[str, ...]:
    """Returns the available stages up to the last, in their order."""
    names = list(STAGES)
    return tuple(name for name in available if names.index(name) <= names.index(last))


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
        f'{buffer.count:,} {buffer.what} of {format_scaled(buffer.bytes_each)}'
        for buffer in buffers
    )
    return (
        f'input memory: buffers of at most {format_scaled(max_total_bytes(buffers))} '
        f'({buffer_texts})'
    )
