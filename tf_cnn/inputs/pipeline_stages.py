"""The stages of an input pipeline. Does not import TensorFlow."""

from collections.abc import Sequence

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
