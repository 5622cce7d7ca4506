"""Converts an image folder to TFRecord shards in ImageNet's layout.

TensorFlow is imported when writing starts.
"""

import contextlib
import functools
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tf_cnn.convert.config import RecordsOptions
from tf_cnn.convert.images import EncodedImage, encode_image
from tf_cnn.convert.output import publish_shards, unfinished_folder
from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.inputs.framing import FRAME_BYTES
from tf_cnn.inputs.layout import ImageFolder, SourceImage, SubsetInfo
from tf_cnn.system.atomic import sync
from tf_cnn.system.errors import RunError
from tf_cnn.system.parallel import ordered_map, process_pool


@dataclass
class WriteSummary:
    """What write_shards wrote and left out; sizes has the distinct (height, width) in pixels.

    num_first_of_several: the images of files with further pictures, which are not written.
    """

    num_bytes: int = 0
    num_passed_through: int = 0
    num_reencoded: int = 0
    num_first_of_several: int = 0
    num_left_out: int = 0
    records_of_class: Counter[int] = field(default_factory=Counter)
    sizes: set[tuple[int, int]] = field(default_factory=set)

    @property
    def num_records(self) -> int:
        return self.num_passed_through + self.num_reencoded

    def subset_info(self, num_shards: int) -> SubsetInfo:
        height, width = next(iter(self.sizes)) if len(self.sizes) == 1 else (None, None)
        return SubsetInfo(images=self.num_records, shards=num_shards, height=height, width=width)


def _serialize_example(
    tf: Any, image: SourceImage, encoded: EncodedImage, class_name: str, label: int
) -> bytes:
    """Returns a serialized tf.train.Example with the features of ImageNet's TFRecords."""
    values: dict[str, int | bytes] = {
        'image/encoded': encoded.jpeg,
        'image/format': b'JPEG',
        'image/class/label': label,
        'image/class/text': class_name.encode(),
        'image/filename': os.fsencode(image.path),
        'image/height': encoded.height,
        'image/width': encoded.width,
        'image/channels': 3,
        'image/colorspace': b'RGB',
    }
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        if isinstance(value, int)
        else tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        for name, value in values.items()
    }
    # The same input must give the same bytes, and the maps of protobuf have no order otherwise.
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(
        deterministic=True
    )


# Long, to show in order what stays hidden until all of it is on disk.
def write_shards(
    folder: ImageFolder,
    images_by_subset: Mapping[str, Sequence[SourceImage]],
    num_shards: Mapping[str, int],
    labels: tuple[str, ...],
    options: RecordsOptions,
    count_image: Callable[[], None],
    report: Callable[[str], None],
) -> dict[str, WriteSummary]:
    """Writes labels.txt, dataset.json, and the shards of each subset with its images, shuffled.

    options.seed determines the order. options.num_processes processes decode and encode images;
    this process writes the shards. They stay in hidden folders until all are complete and on disk.
    Calls count_image for each image, and report for each image that is left out.
    """
    assert options.output
    output = Path(options.output)
    order = [
        image
        for subset_images in images_by_subset.values()
        for image in _shuffle(subset_images, options.seed)
    ]
    num_processes = min(options.num_processes, len(order))
    encode = functools.partial(encode_image, jpeg_quality=options.jpeg_quality)
    summaries = {subset: WriteSummary() for subset in images_by_subset}
    try:
        with contextlib.ExitStack() as stack:
            # The shards of each subset in order, in a hidden folder.
            shards_by_subset: dict[str, list[Path]] = {}
            for subset in images_by_subset:
                temporary_folder = stack.enter_context(unfinished_folder(output, subset, report))
                shards_by_subset[subset] = [
                    temporary_folder / f'{shard:05d}' for shard in range(num_shards[subset])
                ]
            pool = stack.enter_context(process_pool(num_processes))
            paths = (os.path.join(folder.root, image.path) for image in order)
            images = zip(order, ordered_map(pool, num_processes, encode, paths), strict=True)
            # The decoding processes work while this process imports TensorFlow.
            import_tensorflow()
            import tensorflow.compat.v1 as tf

            for subset, shards in shards_by_subset.items():
                summary, num_images = summaries[subset], len(images_by_subset[subset])
                for shard, path in enumerate(shards):
                    begin, end = (num_images * edge // len(shards) for edge in (shard, shard + 1))
                    records_before = summary.num_records
                    try:
                        shard_images = itertools.islice(images, end - begin)
                        _write_shard(
                            tf, path, shard_images, folder, options, summary, count_image, report
                        )
                    except tf.errors.OpError as error:
                        raise RunError(
                            f'--output={output}: {subset} shard {shard} was not written: '
                            f'{error.message}'
                        ) from error
                    if summary.num_records == records_before:
                        raise RunError(
                            f'--input={folder.root}: no image of {subset} shard {shard} could '
                            'be decoded, and a shard cannot be empty; nothing was written; use '
                            'fewer --shards'
                        )
            info = {
                subset: summary.subset_info(num_shards[subset])
                for subset, summary in summaries.items()
            }
            publish_shards(shards_by_subset, info, labels, output)
    except BrokenProcessPool as error:
        raise RunError(
            f'--input={folder.root}: a decoding process died, most likely because memory ran out; '
            f'use fewer than --num_processes={options.num_processes}'
        ) from error
    except OSError as error:
        raise RunError(f'--output={options.output}: {error}') from error
    return summaries


def _shuffle(images: Sequence[SourceImage], seed: int) -> list[SourceImage]:
    order = list(images)
    random.Random(seed).shuffle(order)
    return order


def _write_shard(
    tf: Any,
    path: Path,
    images: Iterable[tuple[SourceImage, EncodedImage | str]],
    folder: ImageFolder,
    options: RecordsOptions,
    summary: WriteSummary,
    count_image: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    num_bytes = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, encoded in images:
            count_image()
            if isinstance(encoded, str):
                summary.num_left_out += 1
                report(f'left out {image.path}: {encoded}')
                continue
            label = image.class_index + options.first_label
            example = _serialize_example(
                tf, image, encoded, folder.classes[image.class_index], label
            )
            writer.write(example)
            num_bytes += len(example) + FRAME_BYTES
            summary.records_of_class[image.class_index] += 1
            summary.sizes.add((encoded.height, encoded.width))
            summary.num_passed_through += encoded.passed_through
            summary.num_reencoded += not encoded.passed_through
            summary.num_first_of_several += encoded.is_first_of_several
    sync(path)
    # On a full disk the calls above may have raised no error, so check before reporting success.
    if (disk_bytes := path.stat().st_size) != num_bytes:
        raise RunError(
            f'--output={options.output}: a shard has {disk_bytes:,} bytes on the disk instead of '
            f'{num_bytes:,}; make room for it, and check the disk'
        )
    summary.num_bytes += num_bytes
