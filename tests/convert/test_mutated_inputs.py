"""Shards, records and JPEGs that are damaged at random: none ends the process, and what fails
training is a fault.

A quarter of the inputs are shards; the others are records with right checksums.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

import preprocessing
from tests.support.images import encoded, example, write_shard
from tf_cnn.inputs.shard_check import check_shards

pytestmark = [pytest.mark.graph, pytest.mark.long]

NUM_CLASSES = 10
# How many inputs, and the seed of their damages.
SMALL, LARGE = (200, 5), (10_000, 6)
Random = np.random.Generator


def photograph(height: int = 24, width: int = 30) -> np.ndarray:
    """An image whose every block has details."""
    return np.random.default_rng(4).integers(0, 256, [height, width, 3], np.uint8)


JPEGS = (
    encoded(photograph(), quality=30),
    encoded(photograph(), progressive=True),
    encoded(photograph(), subsampling=0, restart_marker_blocks=2),
    encoded(photograph(40, 16), optimize=True),
    encoded(Image.fromarray(photograph()).convert('L')),
    encoded(Image.fromarray(photograph()).convert('CMYK')),
)


def in_order(record: bytes) -> bytes:
    """The Example with its features in the same order in every process, so that a seed gives the
    same damage.
    """
    return bytes(tf.train.Example.FromString(record).SerializeToString(deterministic=True))


def with_flipped_bits(random: Random, data: bytes, places: Sequence[int]) -> bytes:
    changed = bytearray(data)
    for place in random.choice(places, size=1 + random.integers(3), replace=False):
        changed[place] ^= 1 << int(random.integers(8))
    return bytes(changed)


def damaged(random: Random, data: bytes) -> bytes:
    """Other data: with flipped bits, cut, or with a few bytes that are zeros, new, missing or
    copied from elsewhere.
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
    """A record that is damaged around its image, anywhere, among the first markers of its image, or
    in its image.
    """
    jpeg = JPEGS[random.integers(len(JPEGS))]
    record = in_order(example(jpeg, 3, [(0.1, 0.2, 0.7, 0.8)]))
    start = record.index(jpeg)
    around = [*range(start), *range(start + len(jpeg), len(record))]
    match random.integers(4):
        case 0:
            return with_flipped_bits(random, record, around)
        case 1:
            return damaged(random, record)
        case 2:
            return example(with_flipped_bits(random, jpeg, range(200)), 3)
    return example(damaged(random, jpeg), 3)


def write_inputs(folder: Path, num_inputs: int, seed: int) -> tuple[list[Path], Path, list[bytes]]:
    """Writes the damaged shards, and one shard of the damaged records; returns them and these
    records.
    """
    random = np.random.default_rng(seed)
    good = [
        in_order(example(jpeg, label, [(0.1, 0.2, 0.7, 0.8)])) for label, jpeg in enumerate(JPEGS)
    ]
    write_shard(folder / 'whole', good)
    whole = (folder / 'whole').read_bytes()
    # Cut between two records, a shard would be whole.
    whole_ones = [whole[:end] for end in np.cumsum([0, *(len(record) + 16 for record in good)])]
    shards = [folder / f'shard_{number}' for number in range(num_inputs // 4)]
    for shard in shards:
        while (changed := damaged(random, whole)) in whole_ones:
            pass
        shard.write_bytes(changed)
    records = [damaged_record(random) for _ in range(num_inputs - len(shards))]
    write_shard(folder / 'records', records)
    return shards, folder / 'records', records


def failures(records: Sequence[bytes]) -> list[str]:
    """Of each record why the ops of a training or of an evaluating run fail; '' if both succeed."""
    with tf.Graph().as_default() as graph:
        record = tf.placeholder(tf.string, [])
        fetches = []
        for training in (True, False):
            options = preprocessing.ImageOptions(8, 8, 3, training=training)
            image, label, boxes = preprocessing.parse_example(
                record, NUM_CLASSES, options.uses_boxes
            )
            draws = preprocessing.draw_random_numbers(1, options).of_image(0) if training else None
            fetches.append([preprocessing.preprocess(image, boxes, options, 0, draws), label])
    found = [''] * len(records)
    with tf.Session(graph=graph) as session:
        run = session.make_callable(fetches, feed_list=[record])
        for number, data in enumerate(records):
            try:
                run(data)
            except (tf.errors.OpError, UnicodeDecodeError) as error:
                found[number] = str(error)
    return found


@pytest.mark.parametrize(
    ('num_inputs', 'seed'),
    [SMALL, pytest.param(*LARGE, marks=pytest.mark.all_modes)],
    ids=['200', '10000'],
)
def test_damaged_inputs_end_no_process_and_all_that_fails_training_is_found(
    num_inputs: int, seed: int, tmp_path: Path
) -> None:
    shards, of_records, records = write_inputs(tmp_path, num_inputs, seed)
    checked = list(check_shards([str(of_records)], NUM_CLASSES))
    assert len(checked) == len(records)
    counts: Counter[str] = Counter()
    for number, (found, failure) in enumerate(zip(checked, failures(records), strict=True)):
        # The other way round need not be: training decodes a part of an image only.
        assert found.fault or not failure, f'seed {seed}, record {number}: {failure}'
        counts[found.fault.kind if found.fault else 'good'] += 1
    for number, shard in enumerate(shards):
        first = next(
            (found.fault for found in check_shards([str(shard)], NUM_CLASSES, 1) if found.fault),
            None,
        )
        assert first, f'seed {seed}, shard {number}: no fault'
        counts[f'shard {first.kind}'] += 1
    print(f'{num_inputs} inputs of seed {seed}: {dict(counts.most_common())}')
    assert counts['good'] > 0.1 * len(records), (
        'damage that is too heavy finds only what is found first'
    )
    assert len(counts) > 8
