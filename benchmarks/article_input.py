"""Compares the input pipeline of the articles on high-performance models with three others.

    python -m benchmarks.article_input --data_dir=data/records
    python -m benchmarks.article_input --data_dir=data/records --method='queue runners'

benchmarks/README.md describes the methods. All of them read the same shards, and preprocessing.py
decodes, crops, distorts and flips the images. Nothing computes with the batches, so the rate is the
highest at which a network could be fed.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

import preprocessing
from benchmarks.comparing import compare_pairs, make_parser
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.pipeline import InputConfig, convert_record
from tf_cnn.inputs.pipeline_stages import PREPROCESS
from tf_cnn.inputs.record_pipeline import RecordPipeline
from tf_cnn.inputs.tf_data_pipeline import TfDataPipeline

# The size of AlexNet, with which the articles found queue runners too slow.
_IMAGE_SIZE = 227
_NUM_CLASSES = 1001
# As many records as RecordPipeline keeps.
_POOL_SIZE = 512
# num_readers of TensorFlow's Inception, whose input the articles replaced.
_NUM_READERS = 4

# (the ops of a step, initializers).
InputMethod = tuple[list[tf.Operation], list[tf.Operation]]


def _convert(
    record: tf.Tensor, config: InputConfig, position: int, numbers: preprocessing.RandomNumbers
) -> list[tf.Tensor]:
    """Returns the normalised image and the label of a record, a scalar string."""
    image, label = convert_record(record, config, position, numbers)
    return [preprocessing.normalize(image, config.options.scale), label]


def queue_runners(config: InputConfig, num_threads: int) -> InputMethod:
    """Python threads move records, and then images, through queues: image_processing.py of
    TensorFlow's Inception.
    """
    source = config.source
    assert isinstance(source, Shards)
    paths = tf.train.string_input_producer(source.paths, shuffle=True, capacity=16)
    records = tf.RandomShuffleQueue(
        _POOL_SIZE + 3 * config.batch_size, _POOL_SIZE, [tf.string], shapes=[[]]
    )
    reads = [records.enqueue(tf.TFRecordReader().read(paths).value) for _ in range(_NUM_READERS)]
    tf.train.add_queue_runner(tf.train.QueueRunner(records, reads))
    examples = [
        _convert(
            records.dequeue(),
            config,
            position,
            preprocessing.draw_random_numbers(1, config.options).of_image(0),
        )
        for position in range(num_threads)
    ]
    batch = tf.train.batch_join(
        examples, config.batch_size, capacity=2 * num_threads * config.batch_size
    )
    return [tensor.op for tensor in batch], []


def readers_and_copies(config: InputConfig, num_threads: int) -> InputMethod:
    """The pipeline of the articles: each image of a batch has a reader, a copy of each op, and a
    place in the tensor that parallel_stack allocates.
    """
    del num_threads  # TensorFlow's own threads run the ops.
    source, size, options = config.source, config.batch_size, config.options
    assert isinstance(source, Shards)
    numbers = preprocessing.draw_random_numbers(size, options)
    examples = []
    for position in range(size):
        record = tf.raw_ops.RecordInput(
            file_pattern=source.file_pattern,
            batch_size=1,
            file_random_seed=options.seed + position,
            file_shuffle_shift_ratio=position / size,
            file_buffer_size=max(2, _POOL_SIZE // size),
            file_parallelism=1,
        )
        examples.append(
            _convert(tf.reshape(record, []), config, position, numbers.of_image(position))
        )
    return [tf.parallel_stack(tensors).op for tensors in zip(*examples, strict=True)], []


def tf_data(config: InputConfig, num_threads: int) -> InputMethod:
    del num_threads
    pipeline = TfDataPipeline(config)
    return pipeline.per_step_ops, pipeline.initializers


def record_input(config: InputConfig, num_threads: int) -> InputMethod:
    del num_threads
    return RecordPipeline(config).per_step_ops, []


_BASELINE = 'RecordInput'
INPUT_METHODS: Mapping[str, Callable[[InputConfig, int], InputMethod]] = {
    _BASELINE: record_input,
    'queue runners': queue_runners,
    'readers and copies': readers_and_copies,
    'tf.data': tf_data,
}


def measure(method: str, config: InputConfig, args: Any) -> None:
    """Prints the images/sec of the timed batches, and the processor time of an image."""
    # Queue runners are deprecated.
    tf.logging.set_verbosity(tf.logging.ERROR)
    with tf.Graph().as_default(), tf.device('/cpu:0'):
        step, initializers = INPUT_METHODS[method](config, args.threads)
        coordinator = tf.train.Coordinator()
        with tf.Session() as session:
            session.run(initializers)
            tf.train.start_queue_runners(session, coordinator)
            # Fetched by themselves: in a group, TensorFlow would drop ops that nothing reads.
            take_step = session.make_callable(step)
            for _ in range(args.num_warmup_batches):
                take_step()
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(args.num_batches):
                take_step()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            coordinator.request_stop()
    num_images = args.num_batches * config.batch_size
    print(f'processor ms of an image: {1e3 * processor / num_images:.4g}')
    print(f'total images/sec: {num_images / wall:.6g}')


def main() -> int:
    parser = make_parser(
        __doc__, 'article_input', batch_size=256, num_batches=40, num_warmup_batches=10, threads=4
    )
    parser.add_argument('--data_dir', type=Path, required=True, help='folder with train-* shards')
    parser.add_argument('--method', choices=INPUT_METHODS, help='only measure this method')
    args = parser.parse_args()
    paths = sorted(map(str, args.data_dir.glob('train-*')))
    if not paths:
        parser.error(f'--data_dir={args.data_dir}: it has no shards train-*; `records` makes some')
    if args.method:
        options = preprocessing.ImageOptions(
            _IMAGE_SIZE, _IMAGE_SIZE, 3, training=True, distortions=True, seed=1
        )
        source = Shards('train', tuple(paths), num_missing=0)
        config = InputConfig(
            source, ['/cpu:0'], args.batch_size, _NUM_CLASSES, options, last_stage=PREPROCESS
        )
        measure(args.method, config, args)
        return 0
    script = [sys.executable, '-m', 'benchmarks.article_input', *sys.argv[1:]]
    commands = {name: [*script, f'--method={name}'] for name in INPUT_METHODS}
    pairs = [(name, _BASELINE) for name in INPUT_METHODS if name != _BASELINE]
    return compare_pairs(commands, pairs, args)


if __name__ == '__main__':
    sys.exit(main())
