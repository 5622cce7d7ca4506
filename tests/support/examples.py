"""JPEG files and tf.train.Examples of images, as the ImageNet shards hold them."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

from records.framing import masked_checksums
from records.layout import shard_name


def encoded(image: np.ndarray | Image.Image, file_format: str = 'JPEG', **options: Any) -> bytes:
    """An image, given as [H, W] or [H, W, 3] uint8 or as a PIL image, encoded as a file."""
    file = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(file, file_format, **options)
    return file.getvalue()


def claiming(jpeg: bytes, width: int, height: int) -> bytes:
    """A baseline JPEG whose header gives another size: ITU-T T.81, B.2.2."""
    at = jpeg.index(b'\xff\xc0') + 5
    return jpeg[:at] + height.to_bytes(2, 'big') + width.to_bytes(2, 'big') + jpeg[at + 4 :]


def example(image: bytes | None, label: int | None, boxes: Iterable[tuple[float, float, float, float]] = ()) -> bytes:
    """A serialized Example; arguments that are None are left out. Boxes are ymin, xmin, ymax, xmax."""
    features: dict[str, Any] = {}
    if image is not None:
        features['image/encoded'] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))
    if label is not None:
        features['image/class/label'] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    for side, values in zip(('ymin', 'xmin', 'ymax', 'xmax'), zip(*boxes, strict=True), strict=False):
        features[f'image/object/bbox/{side}'] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_shard(path: Path, records: Iterable[bytes]) -> None:
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def header_of(length: int) -> bytes:
    """The 12 bytes before a record in a shard, with a right checksum, for any length below 2^64."""
    encoded_length = length.to_bytes(8, 'little')
    return encoded_length + masked_checksums(np.frombuffer(encoded_length, np.uint8)[np.newaxis]).tobytes()


def write_noise(folder: Path, num_validation: int, num_labels: int = 8) -> None:
    """Writes training and validation shards of random images, with few labels, so that some guesses are right."""
    random = np.random.default_rng(3)

    def records(count: int) -> list[bytes]:
        images = random.integers(0, 256, [count, 40, 36, 3], np.uint8)
        return [
            example(encoded(image), int(label))
            for image, label in zip(images, random.integers(0, num_labels, count), strict=True)
        ]

    write_shard(folder / shard_name('train', 0, 1), records(16))
    for shard, count in enumerate((9, num_validation - 9)):
        write_shard(folder / shard_name('validation', shard, 2), records(count))
