"""The input pipeline that feeds each step a batch of Python's, like the feed_dict of TensorFlow's
tutorials.
"""

import math
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs import array_draws
from tf_cnn.inputs.buffers import Buffer
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.pipeline import Batch, InputParts, InputPipeline, Run


class FeedInput(InputPipeline):
    """NumPy draws, shifts and normalises each batch, which is fed to placeholders.

        NumPy: gather  ->  shift and flip  ->  normalise  ->  placeholder  ->  copy to the device
          ->  the model

    Nothing overlaps: the device waits while Python draws. This pipeline exists to measure that
    cost. The images come in the order of ArrayPipeline, but their shifts differ, since NumPy draws
    them. Without a source each step feeds the same random images, like those of SyntheticInput.
    With normalize_on_device, uint8 is fed and normalised on the device; this has no effect on
    random images. A source has the size in options, see inputs.validation.read_images.
    """

    def __init__(self, parts: InputParts) -> None:
        source, devices, batch_size, options = (
            parts.source,
            parts.devices,
            parts.batch_size,
            parts.options,
        )
        assert not isinstance(source, Shards)
        super().__init__()
        self._options, self._source, self._parts = options, source, parts
        self._batch_of_worker, self._num_towers = parts.batch_of_worker, len(devices)
        self._normalizes = source is not None and not parts.normalize_on_device
        self._session: tf.Session | None = None
        self._position, self._epoch, self._order = 0, -1, np.zeros(0, np.int64)
        shape = batch_size, options.height, options.width, options.channels
        if source is None:
            rng = np.random.default_rng(options.seed % 2**64)
            images = rng.random((self._batch_of_worker, *shape[1:]), np.float32) * 2 - 1
            self._random = self._split(
                images, rng.integers(parts.num_classes, size=self._batch_of_worker, dtype=np.int32)
            )
        else:
            count = source.num_images
            with tf.device(parts.host_device), tf.name_scope('feed_input'):
                self._epoch_to_order = tf.placeholder(tf.uint64, [])
                positions = self._epoch_to_order * count + tf.cast(
                    tf.range(count, dtype=tf.int64), tf.uint64
                )
                self._whole_epoch = array_draws.in_random_order(positions, count, options.seed)
            self.buffers.append(
                Buffer('images', count, (source.images.nbytes + source.labels.nbytes) / count)
            )
        pixels = tf.uint8 if source is not None and parts.normalize_on_device else tf.float32
        self.buffers.append(
            Buffer('images of a batch', self._batch_of_worker, math.prod(shape[1:]) * pixels.size)
        )
        self._batches = []
        for tower, device in enumerate(devices):
            with tf.name_scope(f'feed_input_{tower}'):
                with tf.device(parts.host_device):
                    fed = tf.placeholder(pixels, shape), tf.placeholder(tf.int32, [batch_size])
                self.fed += fed
                with tf.device(device):
                    image_batch = tf.identity(fed[0])
                    if pixels == tf.uint8:
                        image_batch = preprocessing.normalize(image_batch, options.scale)
                    self._batches.append(Batch(image_batch, tf.identity(fed[1])))

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]

    def warm_up(self, session: tf.Session, steps_before: int = 0, run: Run | None = None) -> None:
        self._session = session
        if self._source:
            self._position = (
                self._parts.first_position + steps_before * self._parts.batch_of_workers
            )

    def feeds(self) -> list[Any]:
        if self._source is None:
            return self._random
        options = self._options
        chosen = self._next_images(self._source.num_images)
        images = self._source.images[chosen]
        if options.shifts:
            rng = np.random.default_rng([options.seed % 2**64, self._position])
            images = _shifted_and_flipped(images, rng)
        if self._normalizes:
            images = images.astype(np.float32)
            images *= np.float32(options.scale.factor)
            images -= np.array(options.scale.offsets, np.float32)
        return self._split(images, self._source.labels[chosen])

    def _next_images(self, count: int) -> np.ndarray:
        """Returns the numbers [B] of the images of the next step, for all devices."""
        assert self._session, 'call warm_up first'
        parts, end = [], self._position + self._batch_of_worker
        while self._position < end:
            epoch, first = divmod(self._position, count)
            if epoch != self._epoch:
                self._epoch, self._order = (
                    epoch,
                    self._session.run(self._whole_epoch, {self._epoch_to_order: epoch}),
                )
            parts.append(self._order[first : first + end - self._position])
            self._position += len(parts[-1])
        # The others of this step are the shares of the other workers.
        self._position += self._parts.batch_of_workers - self._batch_of_worker
        return np.concatenate(parts)

    def _split(self, images: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
        """Images and labels of all devices -> images of the first, its labels, images of the
        second, ...
        """
        towers = zip(
            np.split(images, self._num_towers), np.split(labels, self._num_towers), strict=True
        )
        return [part for tower in towers for part in tower]


def _shifted_and_flipped(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shifts and flips as preprocessing.shift_and_flip does, with the random numbers of NumPy."""
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
