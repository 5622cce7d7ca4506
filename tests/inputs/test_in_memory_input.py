"""Batches from images in memory, gathered on the device or fed by Python, are those of the pipeline of arrays."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from inputs.array_pipeline import ArrayPipeline
from inputs.data_sets import Arrays, find_shards
from inputs.device_input import DeviceInput
from inputs.feed_input import FeedInput
from inputs.pipeline import InputParts, InputPipeline, WorkersInput
from inputs.validation import Share, array_examples, read_images, record_examples
from preprocessing import ImageOptions, Scale
from records.layout import shard_name
from tests.support.graphs import cpus, open_session
from tests.support.images import encoded, example, write_shard

pytestmark = pytest.mark.graph

COUNT = 23
RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.integers(0, 256, [COUNT, 6, 6, 3], np.uint8)
# The first pixel tells which image it is.
IMAGES[:, 0, 0, 0] = np.arange(COUNT)
SOURCE = Arrays('train', IMAGES, (3 * np.arange(COUNT) % 10).astype(np.int32))
AS_THEY_ARE = ImageOptions(height=6, width=6, channels=3, training=True, seed=5, augmentation='none')
SHIFTED = replace(AS_THEY_ARE, augmentation='padded_crop', seed=-3)

Steps = list[list[tuple[np.ndarray, np.ndarray]]]


def steps_of(kind: Any, num_steps: int, options: ImageOptions, *, before: int = 0, **parts: Any) -> Steps:
    """Images and labels of each step and of each of two towers. Warms up twice, which must not matter."""

    def make(devices: list[str]) -> InputPipeline:
        return kind(
            InputParts(devices=devices, batch_size=4, num_classes=10, options=options, **{'source': SOURCE, **parts})
        )

    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        pipeline = make(cpus(2))
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        pipeline.warm_up(session, before)
        return run_steps(pipeline, session, num_steps)


def run_steps(pipeline: InputPipeline, session: tf.Session, num_steps: int) -> Steps:
    fetches = [(batch.images, batch.labels) for batch in (pipeline.tower_batch(0), pipeline.tower_batch(1))]
    step = session.make_callable([fetches, pipeline.per_step_ops], feed_list=pipeline.fed)
    return [step(*pipeline.feeds())[0] for _ in range(num_steps)]


def check_equal(found: Steps, expected: Steps) -> None:
    for part in (0, 1):
        np.testing.assert_array_equal(
            [tower[part] for step in found for tower in step], [tower[part] for step in expected for tower in step]
        )


@pytest.mark.parametrize('on_device', [False, True])
@pytest.mark.parametrize('options', [AS_THEY_ARE, SHIFTED], ids=['as they are', 'shifted'])
def test_the_device_gathers_the_batches_of_arrays_bit_for_bit(options: ImageOptions, on_device: bool) -> None:
    expected = steps_of(ArrayPipeline, 7, options, shift=0.25)
    check_equal(steps_of(DeviceInput, 7, options, shift=0.25, normalize_on_device=on_device), expected)
    check_equal(steps_of(DeviceInput, 3, options, shift=0.25, before=4), expected[4:])


@pytest.mark.parametrize('on_device', [False, True])
def test_python_feeds_the_batches_of_arrays_bit_for_bit(on_device: bool) -> None:
    expected = steps_of(ArrayPipeline, 7, AS_THEY_ARE, shift=0.25)
    check_equal(steps_of(FeedInput, 7, AS_THEY_ARE, shift=0.25, normalize_on_device=on_device), expected)
    check_equal(steps_of(FeedInput, 3, AS_THEY_ARE, shift=0.25, before=4), expected[4:])


def test_python_shifts_and_flips_each_image_at_random_and_repeatably() -> None:
    steps = steps_of(FeedInput, 40, SHIFTED)
    check_equal(steps_of(FeedInput, 1, SHIFTED, before=39), steps[39:])
    shifts = set()
    for images, labels in (tower for step in steps for tower in step):
        for image, label in zip(np.rint((images + 1) * 127.5).astype(np.uint8), labels, strict=True):
            places = [
                (number, top, left, flips)
                for number in np.flatnonzero(SOURCE.labels == label)
                for top in range(9)
                for left in range(9)
                for flips in (1, -1)
                if np.array_equal(
                    np.pad(IMAGES[number], [(4, 4), (4, 4), (0, 0)])[top : top + 6, left : left + 6][:, ::flips], image
                )
            ]
            assert places
            shifts |= {place[1:] for place in places} if len(places) == 1 else set()
    assert len(shifts) > 60


def test_another_scale_is_that_of_the_options() -> None:
    scale = Scale(1.0, (10.0, 20.0, 30.0))
    plain, scaled = (steps_of(DeviceInput, 1, replace(AS_THEY_ARE, scale=each))[0][0][0] for each in (Scale(), scale))
    np.testing.assert_allclose((plain + 1) * 127.5 - [10, 20, 30], scaled, atol=1e-4)
    check_equal(
        steps_of(FeedInput, 1, replace(AS_THEY_ARE, scale=scale)),
        steps_of(DeviceInput, 1, replace(AS_THEY_ARE, scale=scale)),
    )


def test_without_a_source_each_step_feeds_the_same_random_images() -> None:
    first, second = steps_of(FeedInput, 2, AS_THEY_ARE, source=None)
    check_equal([first], [second])
    for images, labels in first:
        assert (images.dtype, images.shape, labels.dtype) == (np.float32, (4, 6, 6, 3), np.int32)
        assert -1 <= images.min() < -0.9
        assert 0.9 < images.max() < 1
        assert set(labels) <= set(range(10))
    assert not np.array_equal(first[0][0], first[1][0])


def test_several_workers_in_one_session_are_fed_their_own_batches() -> None:
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        shares = [
            FeedInput(InputParts(SOURCE, [device], 4, 10, AS_THEY_ARE, shift=number / 2))
            for number, device in enumerate(cpus(2))
        ]
        pipeline = WorkersInput(shares, 1)
        pipeline.warm_up(session)
        steps = run_steps(pipeline, session, 2)
    order = [int(label) for step in steps for label in step[0][1]]
    assert order != [int(label) for step in steps for label in step[1][1]]


def test_images_of_another_size_are_held_in_that_of_the_model() -> None:
    with tf.Graph().as_default():
        options = replace(AS_THEY_ARE, height=12, width=12, resize_method='nearest', training=False)
        arrays = read_images(SOURCE, lambda: array_examples(SOURCE, options, Share()), options, tf.ConfigProto())
    np.testing.assert_array_equal(arrays.images, IMAGES.repeat(2, 1).repeat(2, 2))
    np.testing.assert_array_equal(arrays.labels, SOURCE.labels)
    same = replace(options, height=6, width=6)
    assert read_images(SOURCE, lambda: pytest.fail('nothing is read'), same, tf.ConfigProto()) is SOURCE


def test_records_are_decoded_once_in_their_order(tmp_path: Any) -> None:
    colors = [(40 * number, 100, 200 - 30 * number) for number in range(5)]
    records = [example(encoded(np.full([9, 7, 3], color, np.uint8)), label) for label, color in enumerate(colors)]
    for number, part in enumerate((records[:2], records[2:])):
        write_shard(tmp_path / shard_name('train', number, 2), part)
    source, options = find_shards(str(tmp_path), 'train'), replace(AS_THEY_ARE, training=False)
    arrays = read_images(source, lambda: record_examples(source, 10, options, Share()), options, tf.ConfigProto())
    assert arrays.images.shape == (5, 6, 6, 3)
    np.testing.assert_allclose(arrays.images.mean(axis=(1, 2)), colors, atol=3)
    assert arrays.labels.tolist() == [0, 1, 2, 3, 4]
