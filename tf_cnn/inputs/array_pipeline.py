"""The input pipeline for data sets that fit into memory."""

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs import array_order
from tf_cnn.inputs.data_sets import Arrays
from tf_cnn.inputs.pipeline import InputConfig, RunOp, for_each_image
from tf_cnn.inputs.pipeline_stages import READ, Buffer
from tf_cnn.inputs.staged_input import HostBatch, StagedInput


class ArrayPipeline(StagedInput):
    """Draws the images of arrays in random order, preprocesses and stages them.

    Every image occurs once per epoch. Epochs follow each other without end; a batch may span two.
    The order and the shifts depend only on the seed and on the position of an image, distortions
    only on the seed and on the position of the first image of a step. Therefore training that
    resumes with batches of the same size sees the same images as uninterrupted training. Images of
    the model's size, without distortions, are drawn, shifted and normalised as one tensor.

    Host memory contains the images twice: as arrays, and in variables. Constants would be saved
    with the graph, which is limited to 2 GB.
    """

    def __init__(self, config: InputConfig) -> None:
        source, devices, options = config.source, config.devices, config.options
        assert isinstance(source, Arrays)
        images, labels = source.images, source.labels
        worker_batch_size = config.worker_batch_size
        num_images = len(images)
        self._steps_before = tf.placeholder(tf.uint64, [])

        array_tensors = array_order.array_to_tensor(images), array_order.array_to_tensor(labels)

        def make_host_batches() -> list[HostBatch]:
            image_store, label_store = map(self._resident_variable, array_tensors)
            positions, initializer, self._seek_op = array_order.image_positions(
                config.first_position,
                worker_batch_size,
                config.global_batch_size,
                self._steps_before,
            )
            self.initializers.append(initializer)
            image_indices = array_order.shuffled_indices(positions, num_images, options.seed)
            batch, batch_labels = (
                image_store.sparse_read(image_indices),
                label_store.sparse_read(image_indices),
            )
            if config.last_stage == READ:
                return [[batch, batch_labels]]
            if options.distortions or images.shape[1:3] != (options.height, options.width):
                arguments = [batch, tf.range(worker_batch_size, dtype=tf.int64)]
                if options.training:
                    first_position = tf.cast(positions[0], tf.int64)
                    arguments += preprocessing.draw_random_numbers(
                        worker_batch_size, options, seeds=tf.stack([options.seed, first_position])
                    )
                [batch] = for_each_image(
                    lambda image, position, *numbers: [
                        preprocessing.resize_and_distort(
                            image,
                            options,
                            position,
                            preprocessing.RandomNumbers(*numbers) if numbers else None,
                        )
                    ],
                    arguments,
                )
            if options.needs_shift_and_flip:
                batch = preprocessing.shift_and_flip(
                    batch, array_order.random_shift_numbers(positions, options.seed)
                )
            if not config.normalize_on_device:
                batch = preprocessing.normalize(batch)
            return list(
                zip(
                    tf.split(batch, len(devices)), tf.split(batch_labels, len(devices)), strict=True
                )
            )

        super().__init__(
            devices, make_host_batches, host_device=config.host_device, last_stage=config.last_stage
        )
        self.buffers.insert(0, Buffer('copies of the images', 2, images.nbytes + labels.nbytes))

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        session.run(self._seek_op, {self._steps_before: steps_before})
        super().warm_up(session, steps_before, run_op)
