"""The usual pipeline of tf.data on JPEG records, which plain_tensorflow.py feeds to a network with --data_dir.

It follows TensorFlow's guides: parse an example, decode a random window by the fused op, flip, resize and normalise it,
in a parallel map with AUTOTUNE. Everything else has TensorFlow's defaults, so libjpeg-turbo also smooths the colours
between pixels (fancy upscaling), which this program turns off. With distortions it changes colours as well, by the
functions of tf.image, in the ranges of this program's --distortions.
"""

from collections.abc import Callable

import tensorflow.compat.v1 as tf

_IMAGE_SIZE = 227
# The features that all records have.
_FEATURES = {
    'image/encoded': tf.io.FixedLenFeature([], tf.string),
    'image/class/label': tf.io.FixedLenFeature([], tf.int64),
}


def make_pipeline(data_dir: str, batch_size: int, *, distortions: bool) -> Callable[[], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function that adds the pipeline: images [N, 227, 227, 3] float32 in [-1, 1], and labels [N] int32."""

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(record, _FEATURES)
        file = example['image/encoded']
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(file),
            tf.zeros([1, 0, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=(0.75, 1.33),
            area_range=(0.05, 1.0),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.io.decode_and_crop_jpeg(file, window, channels=3)
        image.set_shape([None, None, 3])
        image = tf.image.resize(tf.image.random_flip_left_right(image), [_IMAGE_SIZE, _IMAGE_SIZE])
        if distortions:
            image = _distorted(image / 255) * 255
        return image / 127.5 - 1, tf.cast(example['image/class/label'], tf.int32)

    def pipeline() -> tuple[tf.Tensor, tf.Tensor]:
        files = tf.data.Dataset.list_files(f'{data_dir}/train-*')
        records = files.interleave(tf.data.TFRecordDataset, cycle_length=10, num_parallel_calls=tf.data.AUTOTUNE)
        records = records.shuffle(10_000).repeat()
        batches = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size, drop_remainder=True)
        images, labels = tf.data.make_one_shot_iterator(batches.prefetch(tf.data.AUTOTUNE)).get_next()
        return images, labels

    return pipeline


def _distorted(image: tf.Tensor) -> tf.Tensor:
    """Changes the colours of [H, W, 3] float32 in [0, 1] at random."""
    image = tf.image.random_brightness(image, max_delta=32 / 255)
    image = tf.image.random_saturation(image, lower=0.5, upper=1.5)
    image = tf.image.random_hue(image, max_delta=0.1)
    image = tf.image.random_contrast(image, lower=0.5, upper=1.5)
    return tf.clip_by_value(image, 0, 1)
