"""Random images and labels that stay on the device."""

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.pipeline import Batch, InputParts, InputPipeline


class SyntheticInput(InputPipeline):
    """Random images and labels, made once on each device and used in every step: the input costs no
    time.

    Pixels are uniform in [-1, 1), labels in [0, num_classes). The seed and the tower determine
    them.
    """

    def __init__(self, parts: InputParts) -> None:
        super().__init__()
        self._batches = []
        for tower, device in enumerate(parts.devices):
            seeds = [parts.seed, tower]
            with tf.device(device), tf.name_scope(f'synthetic_input_{tower}'):
                options = parts.options
                shape = [parts.batch_size, options.height, options.width, options.channels]
                images = self._resident(
                    tf.random.stateless_uniform(shape, seeds, -1.0, 1.0)
                ).read_value()
                labels = tf.random.stateless_uniform(
                    [parts.batch_size], seeds, 0, parts.num_classes, tf.int32
                )
                # GPUs hold no variables of 32-bit integers.
                labels = self._resident(tf.cast(labels, tf.int64)).read_value()
                self._batches.append(Batch(images, tf.cast(labels, tf.int32)))

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]
