"""Makes shards of JPEGs on which the input pipeline works as on photographs."""

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

_NUM_SHARDS, _IMAGES_PER_SHARD = 4, 48
# The most frequent size in ImageNet.
_HEIGHT, _WIDTH = 375, 500
# Of the grid of random colours behind a picture: with some noise, the JPEGs have the 110 KB of those of ImageNet.
_COARSE = 24
_NOISE = 9.0
_QUALITY = 95
_NUM_CLASSES = 1000


def write_shards(folder: str) -> None:
    """Writes shards of TFRecords in the layout of ImageNet, with labels from 1 to 1000.

    A session without GPUs makes the JPEGs. Eager ops would open every GPU and keep its memory until this process ends,
    so that a run in another process would find none.

    Raises:
      OSError: the disk is full.
    """
    random = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        coarse = tf.placeholder(tf.float32, [_HEIGHT // _COARSE, _WIDTH // _COARSE, 3])
        noise = tf.placeholder(tf.float32, [_HEIGHT, _WIDTH, 1])
        picture = tf.image.resize(coarse, [_HEIGHT, _WIDTH], 'bicubic') + noise
        jpeg = tf.io.encode_jpeg(tf.saturate_cast(picture, tf.uint8), quality=_QUALITY)
    with tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0})) as session:
        for shard in range(_NUM_SHARDS):
            path = Path(folder) / f'train-{shard:05d}-of-{_NUM_SHARDS:05d}'
            with tf.io.TFRecordWriter(str(path)) as writer:
                for _ in range(_IMAGES_PER_SHARD):
                    fed = {
                        coarse: random.uniform(0, 255, coarse.shape.as_list()),
                        noise: random.normal(0, _NOISE, noise.shape.as_list()),
                    }
                    writer.write(_example(session.run(jpeg, fed), int(random.integers(1, _NUM_CLASSES + 1))))


def _example(jpeg: bytes, label: int) -> bytes:
    features = {
        'image/encoded': tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        'image/class/label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized
