"""Compares RecordInput, tf.data and decoding alone: how fast shards become batches, without a model.

    python benchmarks/input_pipeline.py --data_dir=DIR

The pipelines read the same shards, make images with the same functions, prepare two sets of batches ahead, and take
turns in one process; tf.data runs with several settings. `full decode` shows the limit of libjpeg-turbo on the same
cores: it decodes whole JPEG files in memory with the same options, and drops the pixels. Each turn starts when no
background thread is working, and does not time the first batches, which are already prepared. Linux only.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

import preprocessing
from benchmarks.standings import Measure, format_report
from benchmarks.turns import add_flags, take_turns
from errors import UsageError
from inputs.data_sets import DATA_SETS, Shards, find_shards
from inputs.pipeline import Batch, InputParts, InputPipeline
from inputs.record_pipeline import RecordPipeline

OURS = 'staged'
FULL_DECODE = 'full decode'
NUM_CLASSES = DATA_SETS['imagenet'].num_classes
SHUFFLED_RECORDS = 256  # for both; on a small data set, a larger pool would stop reading at the end of each epoch
DECODED_FILES = 512  # the most JPEG files in memory for `full decode`
AHEAD = 2  # sets of batches prepared ahead; a turn starts with so many untimed batches, and two for those in progress


class TfData(InputPipeline):
    """The same work with tf.data: parallel reads, shuffle, parallel map, batch, prefetch; not deterministic."""

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        options: preprocessing.ImageOptions,
        parallel_calls: int,
        private_threads: int,
        fuse_map_and_batch: bool,
        normalize_in_map: bool,
    ) -> None:
        super().__init__()

        def example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label, boxes = preprocessing.parse_example(record, NUM_CLASSES, options.uses_boxes)
            draws = preprocessing.draw(1, options).of_image(0)
            image = preprocessing.preprocess(encoded, boxes, options, 0, draws)
            return preprocessing.normalize(image) if normalize_in_map else image, label

        settings = tf.data.Options()
        settings.deterministic = False
        settings.threading.private_threadpool_size = private_threads
        settings.experimental_optimization.map_and_batch_fusion = fuse_map_and_batch
        with tf.device('/cpu:0'):
            records = tf.data.Dataset.from_tensor_slices(list(shards.paths)).shuffle(len(shards.paths)).repeat()
            records = records.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
            records = records.shuffle(SHUFFLED_RECORDS)
            batches = records.map(example, num_parallel_calls=parallel_calls).batch(batch_size, drop_remainder=True)
            iterator = tf.data.make_initializable_iterator(batches.prefetch(AHEAD).with_options(settings))
            images, labels = iterator.get_next()
            self._batch = Batch(images if normalize_in_map else preprocessing.normalize(images), labels)
        self.initializers = [iterator.initializer]

    def tower_batch(self, tower: int) -> Batch:
        return self._batch


class FullDecode(InputPipeline):
    """Decodes whole JPEG files from memory on all cores, one thread each, and drops the pixels."""

    def __init__(self, jpeg_files: Sequence[bytes], batch_size: int, threads: int) -> None:
        super().__init__()
        settings = tf.data.Options()
        settings.deterministic = False
        settings.threading.private_threadpool_size = threads
        settings.threading.max_intra_op_parallelism = 1
        with tf.device('/cpu:0'):
            files = tf.data.Dataset.from_tensor_slices(list(jpeg_files)).repeat()
            batches = files.map(_decoded_pixel, num_parallel_calls=threads).batch(batch_size, drop_remainder=True)
            iterator = tf.data.make_initializable_iterator(batches.prefetch(AHEAD).with_options(settings))
            pixels = iterator.get_next()
            self._batch = Batch(pixels, pixels)
        self.initializers = [iterator.initializer]

    def tower_batch(self, tower: int) -> Batch:
        return self._batch


def _jpeg_files(shards: Shards) -> list[bytes]:
    """Returns the JPEG files of the first DECODED_FILES records."""
    found: list[bytes] = []
    for path in shards.paths:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            if len(found) == DECODED_FILES:
                return found
            (file,) = tf.train.Example.FromString(record).features.feature['image/encoded'].bytes_list.value
            found.append(file)
    return found


def _decoded_pixel(file: tf.Tensor) -> tf.Tensor:
    image = tf.raw_ops.DecodeJpeg(contents=file, channels=3, fancy_upscaling=False, dct_method='INTEGER_ACCURATE')
    return image[0, 0]


@dataclass(frozen=True)
class ImageCost:
    """Wall-clock and processor seconds per image."""

    wall_seconds: float
    processor_seconds: float


class Contestant:
    """A pipeline and its session, initialised and warmed up."""

    def __init__(self, make: Callable[[], InputPipeline], batch_size: int, threads: tuple[int, int]) -> None:
        self._batch_size = batch_size
        with tf.Graph().as_default() as graph:
            pipeline = make()
            step = [*pipeline.per_step_ops, *(tensor.op for tensor in vars(pipeline.tower_batch(0)).values())]
            inter, intra = threads
            config = tf.ConfigProto(inter_op_parallelism_threads=inter, intra_op_parallelism_threads=intra)
            self._session = tf.Session(graph=graph, config=config)
            self._session.run(pipeline.initializers)
            pipeline.warm_up(self._session)
            self._step = self._session.make_callable(step)

    def turns_of(self, batches: int) -> Callable[[int], ImageCost]:
        """Returns a function that takes a turn of so many batches, given the number of the round."""
        return lambda _: self.turn(batches)

    def turn(self, batches: int) -> ImageCost:
        """Takes a number of batches, and returns the cost of one image."""
        wait_until_idle()
        for _ in range(AHEAD + 2):
            self._step()
        wall, own = time.perf_counter(), time.process_time()
        for _ in range(batches):
            self._step()
        images = batches * self._batch_size
        return ImageCost((time.perf_counter() - wall) / images, (time.process_time() - own) / images)


def wait_until_idle() -> None:
    """Waits until the threads of this process have used less than 2 % of a processor for 50 ms."""
    interval = 0.05
    while True:
        before = time.process_time()
        time.sleep(interval)
        if time.process_time() - before < 0.02 * interval:
            return


def contestants(shards: Shards, batch_size: int) -> dict[str, Contestant]:
    """Returns our pipeline, tf.data with each setting, and decoding alone, by name."""
    options = preprocessing.ImageOptions(height=224, width=224, channels=3, training=True, seed=1)
    cores, files = len(os.sched_getaffinity(0)), _jpeg_files(shards)

    def staged() -> InputPipeline:
        devices, pool = ['/cpu:0'], SHUFFLED_RECORDS
        return RecordPipeline(InputParts(shards, devices, batch_size, NUM_CLASSES, options), pool_records=pool)

    def tf_data(calls: int, fuse: bool, normalize_in_map: bool) -> Contestant:
        return Contestant(
            lambda: TfData(shards, batch_size, options, calls, cores, fuse, normalize_in_map), batch_size, (0, 1)
        )

    return {
        OURS: Contestant(staged, batch_size, (0, 1)),
        'tf.data AUTOTUNE': tf_data(tf.data.AUTOTUNE, False, False),
        'tf.data 2 calls a core': tf_data(2 * cores, False, False),
        'tf.data fused': tf_data(2 * cores, True, False),
        'tf.data fused floats': tf_data(2 * cores, True, True),
        FULL_DECODE: Contestant(lambda: FullDecode(files, batch_size, cores), batch_size, (0, 1)),
    }


MEASURES = (
    Measure[ImageCost]('images/sec', lambda cost: 1 / cost.wall_seconds, is_paired=True, decimals=0),
    Measure[ImageCost](
        'CPU ms an image', lambda cost: 1000 * cost.processor_seconds, is_cost=True, is_paired=True, decimals=3
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--data_dir', required=True, help='folder with train-*-of-* shards')
    parser.add_argument('--batch_size', type=int, default=64)
    parser.add_argument('--batches_per_round', type=int, default=24, help='so that a turn takes over a second')
    add_flags(parser, rounds=15, max_repeats=8)
    args = parser.parse_args()
    try:
        shards = find_shards(args.data_dir, 'train')
    except UsageError as error:
        parser.error(str(error))
    pipelines = contestants(shards, args.batch_size)
    turns = take_turns(
        {name: pipeline.turns_of(args.batches_per_round) for name, pipeline in pipelines.items()},
        args.rounds,
        max_repeats=args.max_repeats,
        show=lambda cost: f'{1 / cost.wall_seconds:.0f} images/sec',
    )
    print(format_report(turns, MEASURES, [(OURS, name) for name in pipelines if name != OURS]))


if __name__ == '__main__':
    main()
