"""The input pipeline that keeps all images in device memory."""

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs import array_order
from tf_cnn.inputs.data_sets import Arrays
from tf_cnn.inputs.pipeline import Batch, InputConfig, InputPipeline, RunOp
from tf_cnn.inputs.pipeline_stages import Buffer


class DeviceInput(InputPipeline):
    """Keeps all images as uint8 on each device, and gathers each step's batch there.

        draw the numbers of the images  ->  gather  ->  shift and flip  ->  normalise  ->  the model

    All of this runs on the device: a step copies nothing from the host. Each device tracks its
    position in the order of images. The batches equal the batches of ArrayPipeline, bit for bit and
    in the same order. Every device has the whole set, since its part of a batch may be any images;
    the virtual devices of a CPU share one copy.

    The source must have the image size in options, see inputs.validation.read_images. Set
    normalize_on_device if the devices are GPUs: they cannot shift uint8, and gather it only from
    variables.
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
            array_order.array_to_tensor(source.images),
            array_order.array_to_tensor(source.labels),
        )
        for tower, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f'device_input_{tower}'):
                image_store = self._resident_variable(images)
                # GPUs hold no variables of 32-bit integers.
                label_store = self._resident_variable(tf.cast(labels, tf.int64))
                first_position = config.first_position + tower * config.batch_size
                positions, initializer, seek_op = array_order.image_positions(
                    first_position, config.batch_size, config.global_batch_size, self._steps_before
                )
                self.initializers.append(initializer)
                self._seek_ops.append(seek_op)
                image_indices = array_order.shuffled_indices(positions, num_images, options.seed)
                if config.normalize_on_device:
                    batch = image_store.sparse_read(image_indices)
                else:
                    # On a CPU, sparse_read would make a copy for each variable instead of using
                    # the shared one.
                    batch = tf.gather(image_store.read_value(), image_indices)
                if options.needs_shift_and_flip:
                    batch = tf.cast(batch, tf.float32) if config.normalize_on_device else batch
                    batch = preprocessing.shift_and_flip(
                        batch, array_order.random_shift_numbers(positions, options.seed)
                    )
                batch = preprocessing.normalize(batch, options.scale)
                self._batches.append(
                    Batch(batch, tf.cast(label_store.sparse_read(image_indices), tf.int32))
                )

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        session.run(self._seek_ops, {self._steps_before: steps_before})
