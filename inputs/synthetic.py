"""Random images and labels that stay on the device."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from inputs.pipeline import Batch, InputParts, InputPipeline


class SyntheticInput(InputPipeline):
    """Random images and labels, made once on each device and used in every step: the input costs no time.

    Pixels are uniform in [-1, 1), labels in [0, num_classes). The seed and the tower determine them.
    """

    def __init__(
        self,
        devices: Sequence[str],
        batch_size: int,
        height: int,
        width: int,
        channels: int,
        num_classes: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._batches = []
        for tower, device in enumerate(devices):
            seeds = [seed, tower]
            with tf.device(device), tf.name_scope(f'synthetic_input_{tower}'):
                shape = [batch_size, height, width, channels]
                images = self._resident(tf.random.stateless_uniform(shape, seeds, -1.0, 1.0)).read_value()
                labels = tf.random.stateless_uniform([batch_size], seeds, 0, num_classes, tf.int32)
                # GPUs hold no variables of 32-bit integers.
                labels = self._resident(tf.cast(labels, tf.int64)).read_value()
                self._batches.append(Batch(images, tf.cast(labels, tf.int32)))

    @classmethod
    def of(cls, parts: InputParts) -> 'SyntheticInput':
        """Adds the pipeline that is made of these parts to the current graph."""
        size = parts.options.height, parts.options.width, parts.options.channels
        return cls(parts.devices, parts.batch_size, *size, parts.num_classes, parts.seed)

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]
