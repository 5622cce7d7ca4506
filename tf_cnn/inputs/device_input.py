"""The input pipeline that keeps all images in the memory of the devices, which gather batches
there.
"""

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs import array_order as array_draws
from tf_cnn.inputs.buffers import Buffer
from tf_cnn.inputs.data_sets import Arrays
from tf_cnn.inputs.pipeline import Batch, InputConfig, InputPipeline, RunOp


class DeviceInput(InputPipeline):
    """Each device holds all images as uint8, and takes its batch from them in each step.

        draw the numbers of the images  ->  gather  ->  shift and flip  ->  normalise  ->  the model

    All of it is on the device: a step brings nothing from the host. Each device counts where its
    images are in the order. The batches equal the batches of ArrayPipeline, bit for bit and in the
    same order. Every device has the whole set, since its part of a batch may be any images; the
    virtual devices of a CPU share one copy in their common memory.

    The source has the size in options, see inputs.validation.read_images. normalize_on_device says
    that the devices are GPUs, which cannot shift uint8 and gather it only from variables.
    """

    def __init__(self, config: InputConfig) -> None:
        source, devices, options = config.source, config.devices, config.options
        assert isinstance(source, Arrays)
        super().__init__()
        num_images = len(source.images)
        with tf.device(config.host_device):
            self._steps_before = tf.placeholder(tf.uint64, [])
        self._seek_ops = []
        self.buffers.append(
            Buffer('images', num_images, (source.images.nbytes + source.labels.nbytes) / num_images)
        )
        images, labels = (
            array_draws.array_to_tensor(source.images),
            array_draws.array_to_tensor(source.labels),
        )
        self._batches = []
        for tower, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f'device_input_{tower}'):
                image_store = self._resident_variable(images)
                # GPUs hold no variables of 32-bit integers.
                label_store = self._resident_variable(tf.cast(labels, tf.int64))
                first_position = config.first_position + tower * config.batch_size
                positions = array_draws.ImagePositions(
                    first_position, config.batch_size, config.global_batch_size
                )
                self.initializers.append(positions.variable.initializer)
                self._seek_ops.append(positions.seek(self._steps_before))
                image_indices = array_draws.shuffled_indices(
                    positions.current, num_images, options.seed
                )
                if config.normalize_on_device:
                    batch = image_store.sparse_read(image_indices)
                else:
                    # On a CPU, sparse_read would give each variable a copy of its own instead of
                    # the shared one.
                    batch = tf.gather(image_store.read_value(), image_indices)
                if options.needs_shift_and_flip:
                    batch = tf.cast(batch, tf.float32) if config.normalize_on_device else batch
                    batch = preprocessing.shift_and_flip(
                        batch, array_draws.random_shift_numbers(positions.current, options.seed)
                    )
                batch = preprocessing.normalize(batch, options.scale)
                self._batches.append(
                    Batch(batch, tf.cast(label_store.sparse_read(image_indices), tf.int32))
                )

    def tower_batch(self, tower: int) -> Batch:
        return self._batches[tower]

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        session.run(self._seek_ops, {self._steps_before: steps_before})
