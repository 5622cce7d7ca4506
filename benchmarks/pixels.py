"""What --distortions cost and --scaled_decode saves: preprocessing alone, in one process, in turns.

    python benchmarks/pixels.py distortions --data_dir=DIR
    python benchmarks/pixels.py large_pictures

The ways take turns as in all comparisons, see benchmarks/README.md.

`distortions` compares no change of colours with changes in YIQ and in HSV, in the pipeline of records as training uses
it. `large_pictures` makes photographs of 12 megapixels, keeps the files in memory, and compares three ways to bring
them to the size of a model: decoding the whole picture, cutting and resizing it; decoding the window only, as the
program does; and decoding it at a scale. The last line is what no scale saves: reading the codes of the whole picture.
"""

import argparse
import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

import preprocessing
from benchmarks.input_pipeline import MEASURES, NUM_CLASSES, Cost
from benchmarks.sample_photographs import SOURCES, source_path
from benchmarks.standings import format_report
from benchmarks.turns import add_flags, take_turns
from errors import UsageError
from inputs.data_sets import Shards, find_shards
from inputs.each_image import for_each_image
from inputs.record_pipeline import RecordPipeline

# Turns one file into one image: encoded, its position in the batch, its random numbers.
Way = Callable[[tf.Tensor, tf.Tensor, preprocessing.Draws | None], tf.Tensor]
TRAINING = preprocessing.ImageOptions(height=224, width=224, channels=3, training=True, seed=1)
Step = Callable[[], Any]
NO_BOXES = np.zeros([1, 0, 4], np.float32)
# Of large pictures. Enlarged twice, a small photograph is about as sharp as those of cameras with so many pixels.
WIDTH, HEIGHT, ENLARGED = 4000, 3000, 2


def compare(steps: Mapping[str, Step], num_images: int, untimed: int, args: argparse.Namespace) -> None:
    """Prints images/sec and processor time of an image, and the ratios to those of the first step.

    Args:
      steps: each makes that many images.
      untimed: how many steps begin each turn without being timed, since others had a part in them.
    """

    def turns_of(step: Step) -> Callable[[int], Cost]:
        return lambda _: timed(step, num_images, untimed, args.batches)

    contestants = {name: turns_of(step) for name, step in steps.items()}
    first, *others = steps
    turns = take_turns(contestants, args.rounds, max_repeats=args.max_repeats)
    print(format_report(turns, MEASURES, [(name, first) for name in others]))


def timed(step: Step, num_images: int, untimed: int, batches: int) -> Cost:
    """Returns the costs of an image, from several steps after those that are untimed."""
    for _ in range(untimed):
        step()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(batches):
        step()
    num_images *= batches
    return Cost((time.perf_counter() - wall) / num_images, (time.process_time() - processor) / num_images)


def start(way: Way, files: Sequence[bytes], options: preprocessing.ImageOptions) -> Step:
    """Returns a function that makes an image of each file, each on one thread."""
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        fed = tf.placeholder(tf.string, [len(files)])
        kept = tf.Variable(fed, use_resource=True)
        arguments = [tf.identity(kept), tf.range(len(files), dtype=tf.int64)]
        if options.training:
            arguments += preprocessing.draw(len(files), options)
        [images] = for_each_image(
            lambda file, position, *drawn: [way(file, position, preprocessing.Draws(*drawn) if drawn else None)],
            arguments,
        )
        session = tf.Session(graph=graph, config=tf.ConfigProto(use_per_session_threads=True))
        session.run(kept.initializer, {fed: files})
        return session.make_callable(images.op)


def start_pipeline(shards: Shards, options: preprocessing.ImageOptions, batch_size: int) -> Step:
    """Returns a function that takes a batch of the pipeline of records, and lets it prepare others."""
    with tf.Graph().as_default() as graph:
        pipeline = RecordPipeline(shards, ['/cpu:0'], batch_size, NUM_CLASSES, options, normalize_on_device=False)
        batch = pipeline.tower_batch(0)
        session = tf.Session(graph=graph, config=tf.ConfigProto(use_per_session_threads=True))
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        return session.make_callable([*pipeline.per_step_ops, batch.images.op, batch.labels.op])


def large_picture(name: str, megabytes: float, *, progressive: bool) -> bytes:
    """A JPEG file of 4000x3000 pixels: a photograph, enlarged and mirrored, of the quality nearest to that size."""
    with Image.open(source_path(name)) as file:
        source = file.convert('RGB')
    tile = np.asarray(source.resize((ENLARGED * source.width, ENLARGED * source.height), Image.Resampling.LANCZOS))
    tile = tile[:HEIGHT, :WIDTH]
    missing = (0, HEIGHT - tile.shape[0]), (0, WIDTH - tile.shape[1]), (0, 0)
    picture = Image.fromarray(np.pad(tile, missing, mode='symmetric'))

    def encode(quality: int) -> bytes:
        file = io.BytesIO()
        picture.save(file, 'JPEG', quality=quality, progressive=progressive)
        return file.getvalue()

    return min(map(encode, range(60, 100, 5)), key=lambda encoded: abs(len(encoded) - 1e6 * megabytes))


def preprocessed(options: preprocessing.ImageOptions) -> Way:
    """As the program does it."""
    return lambda file, position, draws: preprocessing.preprocess(file, tf.constant(NO_BOXES), options, position, draws)


def from_whole(options: preprocessing.ImageOptions) -> Way:
    """The whole picture is decoded, cut and resized."""

    def way(file: tf.Tensor, position: tf.Tensor, draws: preprocessing.Draws | None) -> tf.Tensor:
        whole = tf.image.decode_jpeg(file, channels=options.channels, fancy_upscaling=False)
        if options.uses_boxes:
            assert draws
            window = preprocessing.random_window(tf.shape(whole), tf.constant(NO_BOXES), draws.window_seeds)
        else:
            window = preprocessing.central_window(tf.shape(whole), options)
        y, x, height, width = tf.unstack(window)
        cropped = tf.image.crop_to_bounding_box(whole, y, x, height, width)
        return preprocessing.resize_and_distort(cropped, options, position, draws)

    return way


def codes_alone(file: tf.Tensor, position: tf.Tensor, draws: preprocessing.Draws | None) -> tf.Tensor:
    """The decoder reads all codes of the file, for one pixel in the lowest row."""
    del position, draws
    pixel = tf.raw_ops.DecodeAndCropJpeg(contents=file, crop_window=[(HEIGHT - 1) // 8, 0, 1, 1], ratio=8, channels=3)
    return tf.ensure_shape(pixel, [1, 1, 3])


def distortions(args: argparse.Namespace) -> None:
    """Compares the pipeline of records, in training, without and with distortions."""
    shards = find_shards(args.data_dir, 'train')
    settings: dict[str, dict[str, Any]] = {
        'no distortions': {},
        '--distortions': {'distortions': True},
        '--nodistort_color_in_yiq': {'distortions': True, 'in_yiq': False},
    }
    steps = {
        name: start_pipeline(shards, replace(TRAINING, **changes), args.batch_size)
        for name, changes in settings.items()
    }
    compare(steps, args.batch_size, 4, args)


def large_pictures(args: argparse.Namespace) -> None:
    """Compares the ways to decode pictures of 12 megapixels, for evaluations and for training."""
    names = list(SOURCES)[: args.batch_size]
    files = [large_picture(name, args.megabytes, progressive=args.progressive) for name in names]
    size = sum(map(len, files)) / len(files) / 1e6
    print(f'{len(files)} photographs of {WIDTH}x{HEIGHT} pixels, {size:.1f} MB on average')
    for training in (False, True):
        options = replace(TRAINING, training=training, resize_method=args.resize_method)
        print(f'\n{"random windows of training" if training else "the central 87.5 % of evaluations"}')
        ways = {
            'the whole': from_whole(options),
            'the window': preprocessed(options),
            '--scaled_decode': preprocessed(replace(options, scaled_decode=True)),
            'reading all codes': codes_alone,
        }
        steps = {name: start(way, files, options) for name, way in ways.items()}
        compare(steps, len(files), 1, args)


def main() -> None:
    parser = argparse.ArgumentParser(description='What --distortions cost and --scaled_decode saves.')
    common = argparse.ArgumentParser(add_help=False)
    add_flags(common, rounds=9, max_repeats=4)
    modes = parser.add_subparsers(dest='mode', required=True)
    colors = modes.add_parser('distortions', parents=[common], help='changes of colours')
    colors.add_argument('--data_dir', required=True, help='folder with train-*-of-* shards')
    colors.add_argument('--batch_size', type=int, default=64)
    colors.add_argument('--batches', type=int, default=12, help='of a turn')
    colors.set_defaults(run=distortions)
    large = modes.add_parser('large_pictures', parents=[common], help='ways to decode pictures of 12 megapixels')
    large.add_argument('--batch_size', type=int, default=4, help=f'pictures, at most {len(SOURCES)}')
    large.add_argument('--batches', type=int, default=4, help='of a turn')
    large.add_argument('--megabytes', type=float, default=3.0, help='size of a file')
    large.add_argument('--progressive', action='store_true', help='write progressive files')
    large.add_argument('--resize_method', choices=preprocessing.RESIZE_METHODS, default='bilinear')
    large.set_defaults(run=large_pictures)
    args = parser.parse_args()
    try:
        args.run(args)
    except (UsageError, FileNotFoundError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
