"""The input pipeline for TFRecord shards."""

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.pipeline import InputConfig, convert_record, for_each_image
from tf_cnn.inputs.pipeline_stages import DECODE, PARSE, READ, TRANSFER, Buffer
from tf_cnn.inputs.staged_input import HostBatch, StagedInput

# kRecords in tensorflow/core/kernels/record_yielder.cc.
_RECORDS_PER_READER = 16


class RecordPipeline(StagedInput):
    """Reads, preprocesses and stages the images of TFRecord shards.

    Stage A is one RecordInput for the batches of all devices (several would each read every
    record), followed by one op for each device that turns records into images, many at once. Stage
    B copies the batches to the devices. Every record occurs once per epoch, in random order. Epochs
    follow each other without end; a batch may span two.

    Faults in the data fail the step with an error that does not name the file: DataLossError (a
    record is truncated or fails its checksum), InvalidArgumentError (no Example, no image, no JPEG,
    a label out of range), or UnicodeDecodeError if TensorFlow's message quotes bytes of the record.
    RecordInput takes a shard that ends within the 12 bytes of a record's header for complete, and a
    length of 2^60 ends the process. The caller must detect both before the first step
    (inputs.framing.scan_shards).

    At the start of every epoch a step waits until half of pool_records are read (by default 512,
    but at least two sets of batches). The buffers contain at most pool_records + 16 * readers
    records and the records of one step; a record of ImageNet has 110 KB. A pipeline that ends at
    PARSE or DECODE keeps only one number for each image.
    """

    def __init__(
        self, config: InputConfig, *, pool_records: int | None = None, readers: int = 16
    ) -> None:
        source, devices, batch_size = config.source, config.devices, config.batch_size
        options, last_stage = config.options, config.last_stage
        assert isinstance(source, Shards)
        worker_batch_size = batch_size * len(devices)
        pool_size = max(512, 2 * worker_batch_size) if pool_records is None else pool_records
        # Normalise images only after they are shifted, so that the black padding is 0.
        normalizes_images = not config.normalize_on_device and not options.needs_shift_and_flip

        def process_record(
            record: tf.Tensor, position: tf.Tensor, *fields: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            random_numbers = preprocessing.RandomNumbers(*fields) if fields else None
            image, label = convert_record(record, config, position, random_numbers)
            if normalizes_images and last_stage not in (PARSE, DECODE):
                image = preprocessing.normalize(image, options.scale)
            return image, label

        def make_host_batches() -> list[HostBatch]:
            records = tf.raw_ops.RecordInput(
                file_pattern=source.file_pattern,
                batch_size=worker_batch_size,
                file_random_seed=options.seed,
                file_shuffle_shift_ratio=config.shard_offset,
                file_buffer_size=pool_size,
                file_parallelism=readers,
            )
            records.set_shape([worker_batch_size])
            if last_stage == READ:
                return [[records]]
            arguments = [records, tf.range(worker_batch_size, dtype=tf.int64)]
            if options.training:
                arguments += preprocessing.draw_random_numbers(worker_batch_size, options)
            arguments_by_tower = zip(
                *(tf.split(argument, len(devices)) for argument in arguments), strict=True
            )
            batches = [
                for_each_image(process_record, tower_arguments)
                for tower_arguments in arguments_by_tower
            ]
            if options.needs_shift_and_flip and last_stage not in (PARSE, DECODE):
                uniform = tf.unstack(
                    tf.random.uniform([len(devices), batch_size, 3], seed=options.seed)
                )
                scale = None if config.normalize_on_device else options.scale
                batches = [
                    _shift_and_flip(batch, numbers, scale)
                    for batch, numbers in zip(batches, uniform, strict=True)
                ]
            return batches

        super().__init__(devices, make_host_batches, config.host_device, options.scale, last_stage)
        if record_bytes := source.mean_record_bytes:
            # Each reader collects records before it adds them to the pool; each step takes its
            # batches out of the pool.
            num_records = pool_size + _RECORDS_PER_READER * readers + worker_batch_size
            self.buffers.insert(0, Buffer('records', num_records, record_bytes))
        if last_stage == TRANSFER:
            # One op makes all images of a batch, perhaps all at once, before it copies each into
            # the batch.
            image_bytes = (
                options.height * options.width * options.channels * (4 if normalizes_images else 1)
            )
            self.buffers.append(Buffer('images in the making', worker_batch_size, image_bytes))


def _shift_and_flip(
    batch: HostBatch, uniform: tf.Tensor, scale: preprocessing.Scale | None
) -> HostBatch:
    images, labels = batch
    images = preprocessing.shift_and_flip(images, uniform)
    return preprocessing.normalize(images, scale) if scale else images, labels
