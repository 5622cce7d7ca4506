"""The input pipeline that feeds NumPy batches, like the feed_dict of TensorFlow's tutorials."""

import math
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs import array_order
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.pipeline import Batch, InputConfig, InputPipeline, RunOp
from tf_cnn.inputs.pipeline_stages import Buffer


class FeedInput(InputPipeline):
    """Draws, shifts and normalises each batch in NumPy, and feeds it to placeholders.

        NumPy: gather  ->  shift and flip  ->  normalise  ->  placeholder  ->  copy to the device
          ->  the model

    Nothing overlaps: the device waits while Python prepares the batch. This pipeline exists to
    measure that cost. The images come in the order of ArrayPipeline, but their shifts differ, since
    NumPy draws the random numbers. Without a source, each step feeds the same random images, as
    SyntheticInput does. With normalize_on_device, uint8 is fed and normalised on the device; this
    has no effect on random images. A source must have the image size in options, see
    inputs.validation.read_images.
    """

    def __init__(self, config: InputConfig) -> None:
        source, devices, batch_size, options = (
            config.source,
            config.devices,
            config.batch_size,
            config.options,
        )
        assert not isinstance(source, Shards)
        super().__init__()
        self._options, self._source, self._config = options, source, config
        self._worker_batch_size, self._num_towers = config.worker_batch_size, len(devices)
        self._normalizes_on_host = source is not None and not config.normalize_on_device
        self._session: tf.Session | None = None
        self._position, self._epoch, self._order = 0, -1, np.zeros(0, np.int64)
        shape = batch_size, options.height, options.width, options.channels
        if source is None:
            rng = np.random.default_rng(options.seed % 2**64)
            images = rng.random((self._worker_batch_size, *shape[1:]), np.float32) * 2 - 1
            self._random_arrays = self._split_by_tower(
                images,
                rng.integers(config.num_classes, size=self._worker_batch_size, dtype=np.int32),
            )
        else:
            count = source.num_images
            with tf.device(config.host_device), tf.name_scope('feed_input'):
                self._epoch_placeholder = tf.placeholder(tf.uint64, [])
                positions = self._epoch_placeholder * count + tf.cast(
                    tf.range(count, dtype=tf.int64), tf.uint64
                )
                self._epoch_order = array_order.shuffled_indices(positions, count, options.seed)
            self.buffers.append(
                Buffer('images', count, (source.images.nbytes + source.labels.nbytes) / count)
            )
        pixel_dtype = tf.uint8 if source is not None and config.normalize_on_device else tf.float32
        self.buffers.append(
            Buffer(
                'images of a batch',
                self._worker_batch_size,
                math.prod(shape[1:]) * pixel_dtype.size,
            )
        )
        for tower, device in enumerate(devices):
            with tf.name_scope(f'feed_input_{tower}'):
                with tf.device(config.host_device):
                    placeholders = (
                        tf.placeholder(pixel_dtype, shape),
                        tf.placeholder(tf.int32, [batch_size]),
                    )
                self.feed_placeholders += placeholders
                with tf.device(device):
                    image_batch = tf.identity(placeholders[0])
                    if pixel_dtype == tf.uint8:
                        image_batch = preprocessing.normalize(image_batch, options.scale)
                    self._batches.append(Batch(image_batch, tf.identity(placeholders[1])))

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        self._session = session
        if self._source:
            self._position = (
                self._config.first_position + steps_before * self._config.global_batch_size
            )

    def next_feed_values(self) -> list[Any]:
        if self._source is None:
            return self._random_arrays
        options = self._options
        image_indices = self._next_image_indices(self._source.num_images)
        images = self._source.images[image_indices]
        if options.needs_shift_and_flip:
            rng = np.random.default_rng([options.seed % 2**64, self._position])
            images = _shift_and_flip(images, rng)
        if self._normalizes_on_host:
            images = images.astype(np.float32)
            images *= np.float32(options.scale.factor)
            images -= np.array(options.scale.offsets, np.float32)
        return self._split_by_tower(images, self._source.labels[image_indices])

    def _next_image_indices(self, count: int) -> np.ndarray:
        """Returns the [B] image indices of the next step, for all devices of this worker."""
        assert self._session, 'call warm_up first'
        index_chunks, end_position = [], self._position + self._worker_batch_size
        while self._position < end_position:
            epoch, first = divmod(self._position, count)
            if epoch != self._epoch:
                self._epoch, self._order = (
                    epoch,
                    self._session.run(self._epoch_order, {self._epoch_placeholder: epoch}),
                )
            index_chunks.append(self._order[first : first + end_position - self._position])
            self._position += len(index_chunks[-1])
        # Skip the shares of the other workers.
        self._position += self._config.global_batch_size - self._worker_batch_size
        return np.concatenate(index_chunks)

    def _split_by_tower(self, images: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
        """Returns [images of tower 0, labels of tower 0, images of tower 1, ...]."""
        towers = zip(
            np.split(images, self._num_towers), np.split(labels, self._num_towers), strict=True
        )
        return [array for tower in towers for array in tower]


def _shift_and_flip(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Does in NumPy what preprocessing.shift_and_flip does."""
    count, height, width = images.shape[:3]
    pads = (preprocessing.PADDING, preprocessing.PADDING)
    padded = np.pad(images, [(0, 0), pads, pads, (0, 0)])
    tops, lefts = rng.integers(2 * preprocessing.PADDING + 1, size=[2, count, 1])
    columns = np.where(rng.random([count, 1]) < 0.5, np.arange(width)[::-1], np.arange(width))
    rows = tops + np.arange(height)
    return padded[
        np.arange(count)[:, np.newaxis, np.newaxis],
        rows[:, :, np.newaxis],
        (lefts + columns)[:, np.newaxis],
    ]
