"""How evaluating processes share the validation images: each image once, resized by its number."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from inputs.data_sets import Arrays, find_shards
from inputs.validation import NO_IMAGE, Share, ValidationInput, array_examples, record_examples
from preprocessing import RESIZE_METHODS, ImageOptions
from tests.support.graphs import cpus, open_session
from tests.support.images import write_noise

pytestmark = pytest.mark.graph

# Neither divides the other, nor a batch of two towers.
NUM_VALIDATION, BATCH, SIZE = 23, 4, 28


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('data')
    write_noise(folder, NUM_VALIDATION)
    return folder


def labels_of(num_towers: int, share: Share) -> list[int]:
    """The labels that one process reads until no image is left; the pixels must fit the labels."""
    images = np.arange(NUM_VALIDATION, dtype=np.uint8)[:, None, None, None] * np.ones([1, 2, 2, 1], np.uint8)
    source = Arrays('validation', images, np.arange(NUM_VALIDATION, dtype=np.int32))
    options = ImageOptions(2, 2, 1, training=False)
    found: list[int] = []
    with tf.Graph().as_default(), open_session(num_towers) as session:
        examples = functools.partial(array_examples, source, options, share)
        pipeline = ValidationInput(cpus(num_towers), BATCH, examples)
        session.run(pipeline.initializers)
        batches = [pipeline.tower_batch(tower) for tower in range(num_towers)]
        while not found or found[-1] != NO_IMAGE:
            for batch in session.run([(batch.images, batch.labels) for batch in batches]):
                pixels, read = batch
                assert np.allclose(pixels[read >= 0, 0, 0, 0], read[read >= 0] / 127.5 - 1)
                found += read.tolist()
    return [label for label in found if label != NO_IMAGE]


@pytest.mark.parametrize(('num_processes', 'num_towers'), [(1, 1), (1, 3), (3, 2), (5, 1)])
def test_processes_share_the_images(num_processes: int, num_towers: int) -> None:
    shares = [labels_of(num_towers, Share(process, num_processes)) for process in range(num_processes)]
    assert sorted(label for share in shares for label in share) == list(range(NUM_VALIDATION))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_round_robin_resizes_an_image_by_its_number_in_every_process(data_dir: Path) -> None:
    shards = find_shards(str(data_dir), 'validation')
    pixels = np.random.default_rng(0).integers(0, 256, [6, 20, 20, 1], np.uint8)
    arrays = Arrays('validation', pixels, np.zeros(6, np.int32))

    def look(method: str, share: Share, num_records: int) -> tuple[list[Any], list[Any]]:
        options = ImageOptions(SIZE, SIZE, 3, training=False, resize_method=method)
        with tf.Graph().as_default(), open_session() as session:
            of_records = record_examples(shards, 1001, options, share).take(num_records)
            of_arrays = array_examples(arrays, replace(options, channels=1), share)
            found = []
            for examples in (of_records, of_arrays):
                iterator = tf.data.make_initializable_iterator(examples.batch(9))
                session.run(iterator.initializer)
                found.append(session.run(iterator.get_next()[0]))
        return found[0], found[1]

    of_methods = [look(method, Share(), 6) for method in RESIZE_METHODS[:-1]]
    whole, second = look('round_robin', Share(), 6), look('round_robin', Share(1, 2), 3)
    for kind in (0, 1):
        expected = np.array([of_methods[number % 4][kind][number] for number in range(6)])
        assert np.array_equal(whole[kind], expected)
        assert np.array_equal(second[kind], expected[1::2])
        assert not np.array_equal(whole[kind], of_methods[0][kind])


def test_a_share_may_end_early_or_repeat_images() -> None:
    assert labels_of(1, Share(num_examples=5)) == list(range(5))
    twice = sorted([*range(1, NUM_VALIDATION, 2), *range(0, NUM_VALIDATION, 2)])
    assert sorted(labels_of(2, Share(1, 2, 2 * NUM_VALIDATION))) == twice
