"""Records and JPEGs that are damaged at random, with right checksums: none ends the process, and
the check finds all that fail training.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from preprocessing import ImageOptions, draw_random_numbers, parse_example, preprocess
from tests.support.images import encoded, example, write_shard
from tf_cnn.inputs.shard_check import check_shards

pytestmark = [pytest.mark.graph, pytest.mark.long]

NUM_CLASSES = 10
Random = np.random.Generator
# Every block of the image has details.
PHOTOGRAPH = np.random.default_rng(4).integers(0, 256, [24, 30, 3], np.uint8)
JPEGS = (
    encoded(PHOTOGRAPH, quality=30),
    encoded(PHOTOGRAPH, progressive=True),
    encoded(PHOTOGRAPH, subsampling=0, restart_marker_blocks=2),
    encoded(PHOTOGRAPH, optimize=True),
    encoded(Image.fromarray(PHOTOGRAPH).convert('L')),
    encoded(Image.fromarray(PHOTOGRAPH).convert('CMYK')),
)


def record_of(jpeg: bytes) -> bytes:
    """Returns an Example with its features in a fixed order, so that a seed always gives the same
    damage.
    """
    record = example(jpeg, 3, [(0.1, 0.2, 0.7, 0.8)])
    return bytes(tf.train.Example.FromString(record).SerializeToString(deterministic=True))


def with_flipped_bits(random: Random, data: bytes, places: Sequence[int]) -> bytes:
    changed = bytearray(data)
    for place in random.choice(places, size=1 + random.integers(3), replace=False):
        changed[place] ^= 1 << int(random.integers(8))
    return bytes(changed)


def damaged(random: Random, data: bytes) -> bytes:
    """Returns the data with flipped bits, cut, or with a few bytes zeroed, inserted, removed or
    copied.
    """
    while True:
        at, other = (int(place) for place in random.integers(len(data) - 9, size=2))
        few = int(random.integers(1, 9))
        changed = (
            with_flipped_bits(random, data, range(len(data))),
            data[: at + 1],
            data[:at] + bytes(8) + data[at + 8 :],
            data[:at] + random.bytes(few) + data[at:],
            data[: at + 1] + data[at + 1 + few :],
            data[:at] + data[other : other + 8] + data[at + 8 :],
        )[random.integers(6)]
        if changed != data:
            return changed


def damaged_record(random: Random) -> bytes:
    """Returns a record with damage around its image, anywhere, in the first markers of its image,
    or in its image.
    """
    jpeg = JPEGS[random.integers(len(JPEGS))]
    record = record_of(jpeg)
    start = record.index(jpeg)
    match random.integers(4):
        case 0:
            around = [*range(start), *range(start + len(jpeg), len(record))]
            return with_flipped_bits(random, record, around)
        case 1:
            return damaged(random, record)
        case 2:
            return record_of(with_flipped_bits(random, jpeg, range(200)))
    return record_of(damaged(random, jpeg))


def failures(records: Sequence[bytes]) -> Iterator[str]:
    """Yields why the ops of a training or of an evaluating run fail; '' if both succeed."""
    with tf.Graph().as_default(), tf.Session() as session:
        record = tf.placeholder(tf.string, [])
        fetches = []
        for training in (True, False):
            options = ImageOptions(8, 8, 3, training=training)
            image, label, boxes = parse_example(record, NUM_CLASSES, options.uses_boxes)
            draws = draw_random_numbers(1, options).of_image(0)
            fetches.append([preprocess(image, boxes, options, 0, draws), label])
        run = session.make_callable(fetches, feed_list=[record])
        for data in records:
            try:
                run(data)
                yield ''
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                yield str(error)


def test_damaged_inputs_crash_nothing_and_the_check_finds_all_that_fail_training(tmp_path):
    random = np.random.default_rng(5)
    records = [damaged_record(random) for _ in range(200)]
    write_shard(tmp_path / 'records', records)
    checks = check_shards([str(tmp_path / 'records')], NUM_CLASSES)
    counts: Counter[str] = Counter()
    for number, (check, failure) in enumerate(zip(checks, failures(records), strict=True)):
        # Training may accept an image with a fault, since it decodes only a part.
        assert check.fault or not failure, f'record {number}: {failure}'
        counts[check.fault.kind if check.fault else 'good'] += 1
    assert counts['good'] > 0.1 * len(records), 'heavy damage finds only what is found first'
    assert len(counts) > 6
