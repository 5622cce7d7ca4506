"""The input pipeline for data sets that fit into memory."""

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs import array_draws
from tf_cnn.inputs.buffers import Buffer
from tf_cnn.inputs.data_sets import Arrays
from tf_cnn.inputs.each_image import for_each_image
from tf_cnn.inputs.pipeline import InputParts, Run
from tf_cnn.inputs.staged import HostBatch, StagedInput
from tf_cnn.inputs.stages import READ


class ArrayPipeline(StagedInput):
    """Draws the images of arrays in random order, preprocesses and stages them.

    Every image occurs once per epoch. Epochs follow each other without end; a batch may span two.
    The order and the shifts depend only on the seed and on the position of an image, distortions
    only on the seed and on the position of the first image of a step. Therefore training that
    resumes with batches of the same size sees the same images as uninterrupted training. Images of
    the model's size, without distortions, are drawn, shifted and normalised as one tensor.

    Host memory contains the images twice: the arrays, and their copy in variables. The variables
      get their values when
    they are initialised: constants would be saved with the graph, which is limited to 2 GB.
    """

    def __init__(self, parts: InputParts) -> None:
        source, devices, options = parts.source, parts.devices, parts.options
        assert isinstance(source, Arrays)
        images, labels = source.images, source.labels
        batch_of_worker = parts.batch_of_worker
        num_images = len(images)
        self._steps_before = tf.placeholder(tf.uint64, [])

        values = array_draws.from_host(images), array_draws.from_host(labels)

        def make_host_batches() -> list[HostBatch]:
            image_store, label_store = map(self._resident, values)
            positions = array_draws.Positions(
                parts.first_position, batch_of_worker, parts.batch_of_workers
            )
            self.initializers.append(positions.variable.initializer)
            self._set_position = positions.set(self._steps_before)
            chosen = array_draws.in_random_order(positions.of_step, num_images, options.seed)
            batch, batch_labels = image_store.sparse_read(chosen), label_store.sparse_read(chosen)
            if parts.until == READ:
                return [[batch, batch_labels]]
            if options.distortions or images.shape[1:3] != (options.height, options.width):
                arguments = [batch, tf.range(batch_of_worker, dtype=tf.int64)]
                if options.training:
                    first = tf.cast(positions.of_step[0], tf.int64)
                    arguments += preprocessing.draw(
                        batch_of_worker, options, seeds=tf.stack([options.seed, first])
                    )
                [batch] = for_each_image(
                    lambda image, position, *numbers: [
                        preprocessing.resize_and_distort(
                            image,
                            options,
                            position,
                            preprocessing.Draws(*numbers) if numbers else None,
                        )
                    ],
                    arguments,
                )
            if options.shifts:
                batch = preprocessing.shift_and_flip(
                    batch, array_draws.shift_numbers(positions.of_step, options.seed)
                )
            if not parts.normalize_on_device:
                batch = preprocessing.normalize(batch)
            return list(
                zip(
                    tf.split(batch, len(devices)), tf.split(batch_labels, len(devices)), strict=True
                )
            )

        super().__init__(
            devices, make_host_batches, host_device=parts.host_device, until=parts.until
        )
        self.buffers.insert(0, Buffer('copies of the images', 2, images.nbytes + labels.nbytes))

    def warm_up(self, session: tf.Session, steps_before: int = 0, run: Run | None = None) -> None:
        session.run(self._set_position, {self._steps_before: steps_before})
        super().warm_up(session, steps_before, run)
