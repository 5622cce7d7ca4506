"""The input pipeline for TFRecord shards."""

import itertools
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

import preprocessing
from inputs.data_sets import Shards
from inputs.staged import HostBatch, StagedInput


class RecordPipeline(StagedInput):
    """Reads, preprocesses and stages the images of TFRecord shards.

    Stage A is one RecordInput for the batches of all devices (several would each read every record), followed by
    separate ops for each record, which the session runs in parallel. Stage B stacks the records of a batch: a single op
    on one core, which runs while the other cores decode the next records. Every record occurs once per epoch, in random
    order. Epochs follow each other without end; a batch may span two.

    Faults in the data fail the step with a TensorFlow error that does not name the file: DataLossError (a record is
    truncated or fails its checksum) or InvalidArgumentError (no Example, no image, no JPEG, a label out of range), or
    with UnicodeDecodeError if TensorFlow's message quotes bytes of the record. RecordInput treats a shard that ends
    within the 12 bytes of a record's header as complete, and a length of 2^60 ends the process; the caller has to
    detect both before the first step (records.framing.first_cut_shard).

    At the start of every epoch a step waits until half of pool_records are read. The buffers take the memory of
    pool_records + 16 * readers records, 110 KB each in ImageNet.
    """

    def __init__(
        self,
        source: Shards,
        devices: Sequence[str],
        batch_size: int,
        num_classes: int,
        options: preprocessing.ImageOptions,
        *,
        normalize_on_device: bool,
        host_device: str = '/cpu:0',
        shift: float = 0.0,
        pool_records: int | None = None,
        readers: int = 16,
    ) -> None:
        """Builds the ops.

        Args:
          batch_size: images per step on each device.
          normalize_on_device: copy uint8 to the device and convert it to float32 there, which moves a quarter of the
            bytes. If False, convert before the copy, which is less work if the device is the CPU.
          shift: where in the list of shards to begin, in [0, 1): worker w of W begins at w / W.
          pool_records: size of the shuffle buffer; by default 512, but at least two sets of batches.
          readers: number of shards that are read at the same time.
        """
        global_batch = batch_size * len(devices)
        # Images that are shifted are normalised afterwards, so that black is 0 in all of them.
        normalizes_each = not normalize_on_device and not options.shifts

        def example(record: tf.Tensor, position: int, draws: preprocessing.Draws | None) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.name_scope(f'record_{position}'):
                encoded, label, boxes = preprocessing.parse_example(record, num_classes, options.uses_boxes)
                image = preprocessing.preprocess(encoded, boxes, options, position, draws)
                return preprocessing.normalize(
                    image, options.scale, is_record=True
                ) if normalizes_each else image, label

        def make_host_batches() -> list[HostBatch]:
            """For each device its images, then their labels, and then, if images are shifted, random numbers [N, 3]."""
            records = tf.raw_ops.RecordInput(
                file_pattern=source.file_pattern,
                batch_size=global_batch,
                file_random_seed=options.seed,
                file_shuffle_shift_ratio=shift,
                file_buffer_size=max(512, 2 * global_batch) if pool_records is None else pool_records,
                file_parallelism=readers,
            )
            records.set_shape([global_batch])
            draws = preprocessing.draw(global_batch, options) if options.training else [None] * global_batch
            examples = list(map(example, tf.unstack(records), range(global_batch), draws))
            towers = [examples[i : i + batch_size] for i in range(0, global_batch, batch_size)]
            host_batches: list[HostBatch] = [list(itertools.chain(*zip(*tower, strict=True))) for tower in towers]
            if options.shifts:
                uniform = tf.random.uniform([len(devices), batch_size, 3], seed=options.seed)
                host_batches = [
                    [*tensors, numbers] for tensors, numbers in zip(host_batches, tf.unstack(uniform), strict=True)
                ]
            return host_batches

        def assemble(host_batch: HostBatch) -> tuple[tf.Tensor, tf.Tensor]:
            size = batch_size
            images, labels = tf.stack(host_batch[:size]), tf.stack(host_batch[size : 2 * size])
            if options.shifts:
                images = preprocessing.shift_and_flip(images, host_batch[2 * size])
                if not normalize_on_device:
                    images = preprocessing.normalize(images, options.scale)
            return images, labels

        super().__init__(devices, make_host_batches, assemble, host_device, options.scale)
