"""Makes shards of JPEGs that are as much work for the input pipeline as photographs."""

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

_NUM_SHARDS, _IMAGES_PER_SHARD = 4, 48
# The most frequent size in ImageNet.
_HEIGHT, _WIDTH = 375, 500
# The distance in pixels between the random colours of a picture. With some noise, JPEGs have 110 KB, as in ImageNet.
_COARSE = 24
_NOISE = 9.0
_QUALITY = 95
_NUM_CLASSES = 1000


def write_shards(folder: str) -> None:
    """Writes shards of TFRecords in the layout of ImageNet, with labels from 1 to 1000.

    A session without GPUs makes the JPEGs: eager ops would open every GPU and keep its memory until this process ends,
    and a run in another process would find none.

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
