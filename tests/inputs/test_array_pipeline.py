"""Arrays become batches: every image once an epoch, with its label, in the order of the seed, shifted as published."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from inputs.array_pipeline import ArrayPipeline
from inputs.data_sets import Arrays
from inputs.pipeline import InputParts
from preprocessing import ImageOptions, shift_and_flip
from tests.support.graphs import cpus, open_session

pytestmark = pytest.mark.graph

COUNT = 23
RANDOM = np.random.default_rng(2)
# The first pixel tells which image it is.
IMAGES = RANDOM.integers(0, 256, [COUNT, 6, 6, 3], np.uint8)
IMAGES[:, 0, 0, 0] = np.arange(COUNT)
LABELS = (3 * np.arange(COUNT) % 10).astype(np.int32)
SOURCE = Arrays('train', IMAGES, LABELS)
AS_THEY_ARE = ImageOptions(height=6, width=6, channels=3, training=True, seed=5, augmentation='none')

Steps = list[list[tuple[np.ndarray, np.ndarray]]]


def steps_of(num_steps: int, batch_size: int, options: ImageOptions = AS_THEY_ARE, **more: Any) -> Steps:
    """Images and labels of each step and tower. Warms up twice, which must not matter."""
    num_towers, on_device = more.pop('num_towers', 1), more.pop('normalize_on_device', False)
    steps_before = more.pop('steps_before', 0)
    with tf.Graph().as_default(), open_session(num_cpus=num_towers) as session:
        pipeline = ArrayPipeline(
            InputParts(SOURCE, cpus(num_towers), batch_size, 10, options, normalize_on_device=on_device, **more)
        )
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        pipeline.warm_up(session, steps_before)
        batches = [pipeline.tower_batch(tower) for tower in range(num_towers)]
        fetches = [(batch.images, batch.labels) for batch in batches]
        return [session.run([fetches, pipeline.per_step_ops])[0] for _ in range(num_steps)]


def pixels(images: np.ndarray) -> np.ndarray:
    """Undoes the normalisation of images."""
    return np.rint((images + 1) * 127.5).astype(int)


def order_of(steps: Steps) -> list[int]:
    return [int(pixels(image)[0, 0, 0]) for step in steps for images, _ in step for image in images]


@pytest.mark.parametrize('on_device', [False, True])
@pytest.mark.parametrize('num_towers', [1, 2])
def test_images_arrive_as_they_are_with_their_labels(num_towers: int, on_device: bool) -> None:
    for step in steps_of(4, 5, num_towers=num_towers, normalize_on_device=on_device):
        for images, labels in step:
            assert (images.dtype, labels.dtype) == (np.float32, np.int32)
            chosen = pixels(images)[:, 0, 0, 0]
            np.testing.assert_array_equal(pixels(images), IMAGES[chosen])
            np.testing.assert_array_equal(labels, LABELS[chosen])


@pytest.mark.parametrize(('batch_size', 'num_towers'), [(10, 1), (3, 2), (60, 1)])
def test_every_image_comes_once_in_an_epoch_also_across_batches(batch_size: int, num_towers: int) -> None:
    num_steps = 6 * COUNT // (batch_size * num_towers) + 1
    order = order_of(steps_of(num_steps, batch_size, num_towers=num_towers))
    epochs = [order[start : start + COUNT] for start in range(0, 6 * COUNT, COUNT)]
    assert all(Counter(epoch) == Counter(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    # Neighbours in the files are no neighbours in an epoch.
    steps = [abs(a - b) for epoch in epochs for a, b in itertools.pairwise(epoch)]
    assert sum(step == 1 for step in steps) < len(steps) / 4


def test_the_seed_decides_the_order_and_the_shift_where_in_it_to_begin() -> None:
    order = order_of(steps_of(6, 8))
    assert order_of(steps_of(6, 8)) == order
    assert order_of(steps_of(6, 8, replace(AS_THEY_ARE, seed=6))) != order
    assert order_of(steps_of(4, 8, shift=0.5)) == order[COUNT // 2 :][:32]
    assert order_of(steps_of(4, 8, replace(AS_THEY_ARE, seed=-1)))


@pytest.mark.parametrize('changes', [{'augmentation': 'padded_crop'}, {'distortions': True}])
def test_resumed_training_sees_the_batches_of_uninterrupted_training(changes: dict[str, Any]) -> None:
    options = replace(AS_THEY_ARE, **changes)
    whole = steps_of(6, 8, options, shift=0.25, num_towers=2)
    for before in (1, 4):
        rest = steps_of(6 - before, 8, options, shift=0.25, num_towers=2, steps_before=before)
        np.testing.assert_array_equal([tower[0] for step in rest for tower in step],
                                      [tower[0] for step in whole[before:] for tower in step])  # fmt: skip


def shifted(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    height, width = image.shape[:2]
    window = np.pad(image, [(4, 4), (4, 4), (0, 0)])[top : top + height, left : left + width]
    return window[:, ::-1] if mirrored else window


def test_shifts_and_flips_are_those_of_numpy() -> None:
    tops, lefts, mirrored = range(9), [4, 8, 0, 1, 2, 3, 5, 6, 7], [True, False, False] * 3
    uniform = [
        ((top + 0.5) / 9, (left + 0.5) / 9, 0.4 if m else 0.6)
        for top, left, m in zip(tops, lefts, mirrored, strict=True)
    ]
    expected = [shifted(*each) for each in zip(IMAGES, tops, lefts, mirrored, strict=False)]
    with tf.Graph().as_default(), open_session() as session:
        found = session.run(shift_and_flip(tf.constant(IMAGES[:9]), tf.constant(uniform, tf.float32)))
    np.testing.assert_array_equal(found, expected)


def places_of(originals: np.ndarray) -> dict[bytes, list[tuple[int, int, int, bool]]]:
    """For the bytes of each shifted image: which original it is of, its top and left, and whether it is mirrored."""
    places = defaultdict(list)
    for place in itertools.product(range(len(originals)), range(9), range(9), (False, True)):
        places[shifted(originals[place[0]], *place[1:]).tobytes()].append(place)
    return places


def test_training_images_are_shifted_and_flipped_at_random() -> None:
    options = replace(AS_THEY_ARE, augmentation='padded_crop')
    steps = steps_of(3, COUNT, options)
    # At the corners almost nothing is left of an image this small, so that it could be any.
    images = [image for step in steps for batch, _ in step for image in pixels(batch) if np.count_nonzero(image) > 12]
    all_places = places_of(IMAGES)
    places = []
    for image in images:
        [place] = all_places[image.astype(np.uint8).tobytes()]
        places.append(place)
    assert len(places) > 60
    for values, least in ((1, 8), (2, 8), (3, 2)):
        assert len({place[values] for place in places}) >= least
    assert 0.3 < np.mean([place[3] for place in places]) < 0.7
    again = steps_of(3, COUNT, options)
    np.testing.assert_array_equal(again[2][0][0], steps[2][0][0])
    assert len({tuple(place[1:]) for place in places}) > 30, 'each image has a shift of its own'


def test_evaluation_images_are_not_shifted() -> None:
    options = replace(AS_THEY_ARE, augmentation='padded_crop', training=False)
    assert sorted(order_of(steps_of(1, COUNT, options))) == list(range(COUNT))


def test_images_are_resized_to_what_the_model_needs_and_distorted() -> None:
    double = replace(AS_THEY_ARE, height=12, width=12, resize_method='nearest')
    ((images, _),) = steps_of(1, 4, double)[0]
    chosen = pixels(images)[:, 0, 0, 0]
    np.testing.assert_array_equal(pixels(images), IMAGES[chosen].repeat(2, 1).repeat(2, 2))
    plain, distorted = (steps_of(1, 4, replace(AS_THEY_ARE, distortions=on))[0][0] for on in (False, True))
    np.testing.assert_array_equal(plain[1], distorted[1])
    assert 2 / 127.5 < np.abs(plain[0] - distorted[0]).mean() < 1


def test_the_graph_does_not_hold_the_images_and_does_not_grow_with_the_batch() -> None:
    def graph_of(count: int, batch_size: int) -> tf.Graph:
        source = Arrays('train', np.zeros([count, 32, 32, 3], np.uint8), np.zeros(count, np.int32))
        options = replace(AS_THEY_ARE, height=32, width=32, augmentation='padded_crop')
        with tf.Graph().as_default() as graph:
            ArrayPipeline(InputParts(source, cpus(1), batch_size, 10, options))
        return graph

    small, large = graph_of(10, 2), graph_of(1000, 200)
    assert large.as_graph_def().ByteSize() < small.as_graph_def().ByteSize() + 1000
    assert len(large.get_operations()) == len(small.get_operations())
