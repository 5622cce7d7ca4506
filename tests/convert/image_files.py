"""Reads the images of shards, and changes their files."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

from tests.support.images import shard_paths


def claiming(jpeg: bytes, width: int, height: int) -> bytes:
    """Returns a baseline JPEG with another size in its header: ITU-T T.81, B.2.2."""
    at = jpeg.index(b'\xff\xc0') + 5
    return jpeg[:at] + height.to_bytes(2, 'big') + width.to_bytes(2, 'big') + jpeg[at + 4 :]


def pixels(jpeg: bytes) -> np.ndarray:
    """Returns the pixels of an RGB JPEG, [H, W, 3] int."""
    with Image.open(io.BytesIO(jpeg)) as image:
        assert (image.format, image.mode) == ('JPEG', 'RGB')
        return np.asarray(image).astype(int)


def read_examples(folder: Path, subset: str = 'train') -> Iterator[dict[str, Any]]:
    """Yields the feature values of each record in a folder; fails unless every feature has one
    value.
    """
    for path in shard_paths(folder, subset):
        for data in tf.io.tf_record_iterator(str(path)):
            values = {}
            for name, feature in tf.train.Example.FromString(data).features.feature.items():
                (values[name],) = getattr(feature, feature.WhichOneof('kind')).value
            yield values
