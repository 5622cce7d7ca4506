"""Random images and labels that stay on the device."""

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.pipeline import Batch, InputConfig, InputPipeline


class SyntheticInput(InputPipeline):
    """Random images and labels, made once on each device and used in every step.

    The input costs no time.

    Pixels are uniform in [-1, 1), labels in [0, num_classes). The seed and the tower determine
    them.
    """

    def __init__(self, config: InputConfig) -> None:
        super().__init__()
        for tower, device in enumerate(config.devices):
            seeds = [config.seed, tower]
            with tf.device(device), tf.name_scope(f'synthetic_input_{tower}'):
                options = config.options
                shape = [config.batch_size, options.height, options.width, options.channels]
                images = self._resident_variable(
                    tf.random.stateless_uniform(shape, seeds, -1.0, 1.0)
                ).read_value()
                labels = tf.random.stateless_uniform(
                    [config.batch_size], seeds, 0, config.num_classes, tf.int32
                )
                # GPUs hold no variables of 32-bit integers.
                labels = self._resident_variable(tf.cast(labels, tf.int64)).read_value()
                self._batches.append(Batch(images, tf.cast(labels, tf.int32)))
