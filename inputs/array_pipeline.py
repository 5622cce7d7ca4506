"""The input pipeline for data sets that fit into memory."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

import preprocessing
from inputs import array_draws
from inputs.buffers import Buffer
from inputs.data_sets import Arrays
from inputs.each_image import for_each_image
from inputs.pipeline import InputParts, Run
from inputs.staged import HostBatch, StagedInput
from inputs.stages import READ, TRANSFER


class ArrayPipeline(StagedInput):
    """Draws the images of arrays in random order, preprocesses and stages them.

    Host memory contains the images twice: the arrays, and their copy in variables.

    Every image occurs once per epoch. Epochs follow each other without end; a batch may span two. The order within an
    epoch depends only on the seed and the epoch, the random numbers of a step only on the seed and the position.
    Therefore training that resumes with batches of the same size sees the same images as uninterrupted training.
    Images of the model's size, without distortions, are drawn, shifted and normalised as one tensor.
    """

    def __init__(
        self,
        source: Arrays,
        devices: Sequence[str],
        batch_size: int,
        options: preprocessing.ImageOptions,
        *,
        normalize_on_device: bool,
        host_device: str = '/cpu:0',
        shift: float = 0.0,
        until: str = TRANSFER,
    ) -> None:
        """Builds the ops.

        Args:
          source: the images. This process feeds them to variables when these are initialised: constants would be
            saved with the graph, which is limited to 2 GB.
          devices: the devices of the towers.
          batch_size: images per step on each device.
          options: how images are preprocessed.
          normalize_on_device: as for RecordPipeline.
          host_device: the device of stage A.
          shift: where in the order of the first epoch to begin, in [0, 1): worker w of W begins at w / W.
          until: the last stage, see StagedInput.
        """
        images, labels = source.images, source.labels
        global_batch = batch_size * len(devices)
        num_images = len(images)
        self._steps_before = tf.placeholder(tf.int64, [])

        values = array_draws.from_host(images), array_draws.from_host(labels)

        def make_host_batches() -> list[HostBatch]:
            image_store, label_store = map(self._resident, values)
            begin = tf.constant(int(shift * num_images), tf.int64)
            counter = self._resident(begin)
            self._set_position = counter.assign(begin + self._steps_before * global_batch)
            drawn = array_draws.draw(counter, global_batch, num_images, options.seed)
            batch, batch_labels = image_store.sparse_read(drawn.chosen), label_store.sparse_read(drawn.chosen)
            if until == READ:
                return [[batch, batch_labels]]
            if options.distortions or images.shape[1:3] != (options.height, options.width):
                arguments = [batch, tf.range(global_batch, dtype=tf.int64)]
                if options.training:
                    # The seeds differ from those of the shifts below.
                    arguments += preprocessing.draw(
                        global_batch, options, seeds=tf.stack([options.seed, -1 - drawn.end])
                    )
                [batch] = for_each_image(
                    lambda image, position, *numbers: [
                        preprocessing.resize_and_distort(
                            image, options, position, preprocessing.Draws(*numbers) if numbers else None
                        )
                    ],
                    arguments,
                )
            if options.shifts:
                batch = preprocessing.shift_and_flip(batch, drawn.uniform)
            if not normalize_on_device:
                batch = preprocessing.normalize(batch)
            return list(zip(tf.split(batch, len(devices)), tf.split(batch_labels, len(devices)), strict=True))

        super().__init__(devices, make_host_batches, host_device=host_device, until=until)
        self.buffers.insert(0, Buffer('copies of the images', 2, images.nbytes + labels.nbytes))

    @classmethod
    def of(cls, parts: InputParts) -> 'ArrayPipeline':
        """Adds the pipeline that is made of these parts to the current graph."""
        assert isinstance(parts.source, Arrays)
        return cls(
            parts.source,
            parts.devices,
            parts.batch_size,
            parts.options,
            normalize_on_device=parts.normalize_on_device,
            host_device=parts.host_device,
            shift=parts.shift,
            until=parts.until,
        )

    def warm_up(self, session: tf.Session, steps_before: int = 0, run: Run | None = None) -> None:
        session.run(self._set_position, {self._steps_before: steps_before})
        super().warm_up(session, steps_before, run)
