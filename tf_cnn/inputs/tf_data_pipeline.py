"""The input pipeline that reads TFRecord shards with tf.data."""

import os
import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.pipeline import InputConfig, convert_record
from tf_cnn.inputs.pipeline_stages import DECODE, PARSE, READ, TRANSFER, Buffer
from tf_cnn.inputs.staged_input import HostBatch, StagedInput

Dataset = Any
# Dataset.interleave opens this many shards ahead for each that is read, and buffers this many
# records of each shard (kDefaultCyclePrefetchFactor, kDefaultPerIteratorPrefetchFactor in
# tensorflow/core/kernels/data/parallel_interleave_dataset_op.cc); parallel_interleave buffers as
# many records.
_SHARDS_AHEAD = 2
_RECORDS_PER_SHARD = 2
# The default buffer_size of TFRecordDataset: tensorflow/python/data/ops/readers.py.
_FILE_BUFFER_BYTES = 256 * 1024


class TfDataPipeline(StagedInput):
    """Reads and preprocesses the images of TFRecord shards with tf.data, and stages them.

    The threads of tf.data prepare batches between the steps too. Stage A takes one batch for each
    device from them, in the order of the devices. Epochs, the default of pool_records, the
    output of a shortened pipeline, and errors for faults in the data are as in RecordPipeline.

    The order of the records and the random changes of each image depend on the seed alone, unless
    datasets_sloppy_parallel_interleave is set: the k-th image of a run always has the same random
    numbers. Reading cannot begin in the middle of an epoch, so resumed training needs another seed.
    """

    def __init__(self, config: InputConfig, *, pool_records: int | None = None) -> None:
        source, devices, batch_size = config.source, config.devices, config.batch_size
        options, last_stage = config.options, config.last_stage
        assert isinstance(source, Shards)
        settings = config.tf_data or PipelineConfig()
        pool_size = (
            max(512, 2 * batch_size * len(devices)) if pool_records is None else pool_records
        )
        initializers = []

        @tf.autograph.experimental.do_not_convert
        def process_record(number: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if last_stage == READ:
                return (tf.strings.length(record),)
            random_numbers = image_random_numbers(number, options)
            image, label = convert_record(record, config, number, random_numbers)
            if last_stage in (PARSE, DECODE):
                return image, label
            if options.needs_shift_and_flip:
                # Other seeds than in image_random_numbers.
                uniform = tf.random.stateless_uniform([1, 3], tf.stack([options.seed, -1 - number]))
                [image] = tf.unstack(preprocessing.shift_and_flip(image[tf.newaxis], uniform))
            if not config.normalize_on_device:
                image = preprocessing.normalize(image, options.scale)
            return image, label

        def make_host_batches() -> list[HostBatch]:
            records = _shuffled_records(
                source.paths, options.seed, config.shard_offset, pool_size, settings
            )
            examples = records.enumerate().map(
                process_record, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            )
            batches = examples.batch(batch_size, drop_remainder=True)
            if settings.prefetched_batches:
                batches = batches.prefetch(settings.prefetched_batches)
            batches = batches.prefetch(
                settings.multi_device_iterator_max_buffer_size * len(devices)
            )
            # The name lets copies of the step (--steps_per_run) share the iterator. It is unique,
            # because a server shares iterators of one name among all clients and graphs.
            name = f'records_{uuid.uuid4().hex}'
            iterator = tf.data.make_initializable_iterator(
                batches.with_options(_options(settings)), shared_name=name
            )
            initializers.append(iterator.initializer)
            host_batches: list[HostBatch] = []
            for _ in devices:
                # Without these dependencies the devices would take the batches in any order.
                with tf.control_dependencies(
                    [tensor for batch in host_batches[-1:] for tensor in batch]
                ):
                    host_batches.append(list(iterator.get_next()))
            return host_batches

        super().__init__(
            devices,
            make_host_batches,
            host_device=config.host_device,
            scale=options.scale,
            last_stage=last_stage,
        )
        self.initializers += initializers
        self.buffers[:0] = _buffers(source, settings, pool_size)
        if last_stage == TRANSFER:
            # The batches that wait for stage A, and one in the making.
            num_batches = (
                settings.prefetched_batches
                + settings.multi_device_iterator_max_buffer_size * len(devices)
                + 1
            )
            image_bytes = (
                options.height
                * options.width
                * options.channels
                * (1 if config.normalize_on_device else 4)
            )
            self.buffers.append(
                Buffer('batches ahead', num_batches, batch_size * (image_bytes + 4))
            )
            self.buffers.append(Buffer('images in the making', os.cpu_count() or 1, image_bytes))


def image_random_numbers(
    number: tf.Tensor, options: preprocessing.ImageOptions
) -> preprocessing.RandomNumbers | None:
    """Returns the random numbers of an image; None outside training.

    They depend only on options.seed and on number, a scalar int64: the number of the image in the
    run, from 0.
    """
    if not options.training:
        return None
    return preprocessing.draw_random_numbers(
        1, options, seeds=tf.stack([options.seed, number])
    ).of_image(0)


def _shuffled_records(
    paths: Sequence[str], seed: int, shard_offset: float, pool_size: int, settings: PipelineConfig
) -> Dataset:
    """Returns an endless Dataset of all records, scalar strings, in another order each epoch."""
    count = len(paths)
    files = tf.data.Dataset.from_tensor_slices(list(paths)).shuffle(count, seed)
    if first_shard := int(shard_offset * count):
        roll = tf.autograph.experimental.do_not_convert(
            lambda names: tf.roll(names, -first_shard, axis=0)
        )
        files = files.batch(count).map(roll).unbatch()
    cycle_length = min(settings.cycle_length, count)
    if settings.datasets_parallel_interleave_prefetch is None:
        records = files.interleave(
            tf.data.TFRecordDataset,
            cycle_length,
            num_parallel_calls=cycle_length,
            deterministic=not settings.datasets_sloppy_parallel_interleave,
        )
    else:
        # The newer Dataset.interleave does not let its caller set how many shards it opens ahead.
        parallel = tf.data.experimental.parallel_interleave(
            tf.data.TFRecordDataset,
            cycle_length,
            sloppy=settings.datasets_sloppy_parallel_interleave,
            prefetch_input_elements=settings.datasets_parallel_interleave_prefetch,
        )
        records = files.apply(parallel)
    if settings.datasets_repeat_cached_sample:
        return records.take(1).cache().repeat()
    if settings.datasets_use_caching:
        records = records.cache()
    # Repeat after the shuffle, so that no record of the next epoch comes before the last one of
    # this epoch.
    return records.shuffle(pool_size, seed).repeat()


def _buffers(source: Shards, settings: PipelineConfig, pool_size: int) -> list[Buffer]:
    record_bytes = source.mean_record_bytes
    if not record_bytes:
        return []
    if settings.datasets_repeat_cached_sample:
        return [Buffer('record', 1, record_bytes)]
    cycle_length = min(settings.cycle_length, len(source.paths))
    num_ahead = (
        _SHARDS_AHEAD * cycle_length
        if settings.datasets_parallel_interleave_prefetch is None
        else settings.datasets_parallel_interleave_prefetch
    )
    num_open = min(cycle_length + num_ahead, len(source.paths))
    buffers = [
        Buffer('records', pool_size + _RECORDS_PER_SHARD * num_open, record_bytes),
        Buffer('open shards', num_open, _FILE_BUFFER_BYTES),
    ]
    if settings.datasets_use_caching:
        buffers.append(
            Buffer('cached shards', len(source.paths), source.num_bytes / len(source.paths))
        )
    return buffers


def _options(settings: PipelineConfig) -> Any:
    options = tf.data.Options()
    options.deterministic = not settings.datasets_sloppy_parallel_interleave
    if settings.datasets_num_private_threads is not None:
        options.threading.private_threadpool_size = settings.datasets_num_private_threads
    return options
