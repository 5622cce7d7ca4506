"""Arrays become batches: every image once an epoch, with its label, in the order of the seed,
shifted as published; staging areas hold one set.

DeviceInput and FeedInput give the same batches as ArrayPipeline.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from preprocessing import ImageOptions, Scale
from tests.inputs.pipeline_steps import step
from tests.support.graphs import cpus, evaluate, open_session
from tests.support.images import encoded, example, write_shard
from tf_cnn.inputs.array_order import shuffled_indices
from tf_cnn.inputs.array_pipeline import ArrayPipeline
from tf_cnn.inputs.data_sets import Arrays, find_shards
from tf_cnn.inputs.device_input import DeviceInput
from tf_cnn.inputs.feed_input import FeedInput
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.pipeline import InputConfig, WorkersInput
from tf_cnn.inputs.staged_input import HostBatch, StagedInput
from tf_cnn.inputs.synthetic import SyntheticInput
from tf_cnn.inputs.validation import Share, array_examples, read_images, record_examples

pytestmark = pytest.mark.graph


COUNT = 23
RANDOM = np.random.default_rng(2)
# The first pixel is the number of the image.
IMAGES = RANDOM.integers(0, 256, [COUNT, 6, 6, 3], np.uint8)
IMAGES[:, 0, 0, 0] = np.arange(COUNT)
LABELS = (3 * np.arange(COUNT) % 10).astype(np.int32)
SOURCE = Arrays('train', IMAGES, LABELS)
AS_THEY_ARE = ImageOptions(
    height=6, width=6, channels=3, training=True, seed=5, augmentation='none'
)
SHIFTED = replace(AS_THEY_ARE, augmentation='padded_crop', seed=-3)

Steps = list[list[tuple[np.ndarray, np.ndarray]]]


def steps_of(
    num_steps: int,
    batch_size: int,
    options: ImageOptions = AS_THEY_ARE,
    *,
    kind: Any = ArrayPipeline,
    num_towers: int = 1,
    before: int = 0,
    **parts: Any,
) -> Steps:
    """Returns images and labels of each step and tower. A second warm-up must change nothing."""
    with tf.Graph().as_default(), open_session(num_cpus=num_towers) as session:
        fixed = {'source': SOURCE, 'num_classes': 10, 'options': options, 'batch_size': batch_size}
        pipeline = kind(InputConfig(devices=cpus(num_towers), **{**fixed, **parts}))
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        pipeline.warm_up(session, before)
        return [step(session, pipeline, range(num_towers)) for _ in range(num_steps)]


def pixels(images: np.ndarray) -> np.ndarray:
    """Undoes the normalisation of images."""
    return np.rint((images + 1) * 127.5).astype(int)


def order_of(steps: Steps) -> list[int]:
    return [int(pixels(image)[0, 0, 0]) for step in steps for images, _ in step for image in images]


@pytest.mark.parametrize('on_device', [False, True])
@pytest.mark.parametrize(
    'options', [AS_THEY_ARE, replace(SHIFTED, training=False)], ids=['training', 'evaluation']
)
def test_images_arrive_as_they_are_with_their_labels(options, on_device):
    steps = steps_of(4, 5, options, num_towers=2, normalize_on_device=on_device)
    for images, labels in itertools.chain(*steps):
        assert (images.dtype, labels.dtype) == (np.float32, np.int32)
        numbers = pixels(images)[:, 0, 0, 0]
        np.testing.assert_array_equal(pixels(images), IMAGES[numbers])
        np.testing.assert_array_equal(labels, LABELS[numbers])


@pytest.mark.parametrize(
    ('num_workers', 'num_towers', 'batch_size'),
    [(1, 1, 60), (2, 1, 3), (1, 2, 3), (3, 2, 2), (4, 1, 9)],
)
def test_one_pass_of_all_workers_shows_each_image_once(num_workers, num_towers, batch_size):
    global_batch_size = num_workers * num_towers * batch_size
    num_steps = 2 * COUNT // global_batch_size + 1
    towers: dict[str, Any] = {'num_workers': num_workers, 'num_towers': num_towers}
    shares = [
        steps_of(num_steps, batch_size, worker=worker, **towers) for worker in range(num_workers)
    ]
    # In each step, the workers together take the batch of one worker.
    order = order_of([step for steps in zip(*shares, strict=True) for step in steps])
    assert Counter(order[:COUNT]) == Counter(order[COUNT : 2 * COUNT]) == Counter(range(COUNT))
    assert order == order_of(steps_of(num_steps, global_batch_size))
    other_seed = replace(AS_THEY_ARE, seed=6)
    assert order != order_of(steps_of(num_steps, global_batch_size, other_seed))


def orders_of(count: int, num_epochs: int) -> np.ndarray:
    """Returns the order of each epoch of this many images: [E, N]."""
    positions = np.arange(num_epochs * count, dtype=np.uint64)
    order = evaluate(lambda: shuffled_indices(tf.constant(positions), count, seed=7))
    return order.reshape(num_epochs, count)


@pytest.mark.parametrize('count', [*range(1, 18), 1797, 50_000])
def test_the_order_of_any_number_of_images_contains_each_once(count):
    for order in orders_of(count, 3):
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


# The grid of 103 has a last row of 4 instead of 11.
@pytest.mark.parametrize('count', [100, 103])
def test_every_image_is_as_likely_at_each_place_of_an_epoch_and_after_each_other_image(count):
    mean = 100
    orders = orders_of(count, mean * count)
    places = np.broadcast_to(np.arange(count), orders.shape)
    at_place, after = (
        np.bincount((first * count + second).ravel(), minlength=count**2).reshape(count, count)
        for first, second in ((places, orders), (orders[:, :-1], orders[:, 1:]))
    )
    for counts in (at_place, after[~np.eye(count, dtype=bool)]):
        # Six standard deviations of a Poisson distribution.
        assert np.abs(counts - mean).max() < 6 * mean**0.5
        assert counts.std() == pytest.approx(mean**0.5, rel=0.1)


@pytest.mark.parametrize('changes', [{'augmentation': 'padded_crop'}, {'distortions': True}])
def test_resumed_training_sees_the_batches_of_uninterrupted_training(changes):
    options = replace(AS_THEY_ARE, **changes)
    share: dict[str, Any] = {'worker': 1, 'num_workers': 3, 'num_towers': 2}
    whole = steps_of(6, 8, options, **share)
    np.testing.assert_equal(steps_of(2, 8, options, before=4, **share), whole[4:])


@pytest.mark.parametrize('kind', [ArrayPipeline, FeedInput])
def test_training_images_are_shifted_and_flipped_at_random_and_repeatably(kind):
    def shifted(image, y, x, mirrored):
        height, width = image.shape[:2]
        window = np.pad(image, [(4, 4), (4, 4), (0, 0)])[y : y + height, x : x + width]
        return window[:, ::-1] if mirrored else window

    # By the bytes of each shifted image: top, left, and whether it is mirrored.
    all_places = {
        shifted(image, *place).tobytes(): place
        for image in IMAGES
        for place in itertools.product(range(9), range(9), (False, True))
    }
    steps = steps_of(3, COUNT, SHIFTED, kind=kind)
    np.testing.assert_equal(steps_of(1, COUNT, SHIFTED, kind=kind, before=2), steps[2:])
    images = [image for [(images, _)] in steps for image in pixels(images).astype(np.uint8)]
    places = [all_places[image.tobytes()] for image in images]
    tops, lefts, mirrored = zip(*places, strict=True)
    assert {*tops} == {*lefts} == {*range(9)}
    assert 0.3 < np.mean(mirrored) < 0.7
    assert len({*places}) > 30, 'each image has a shift of its own'


def test_the_graph_does_not_hold_the_images_and_does_not_grow_with_the_batch():
    def graph_of(count: int, batch_size: int) -> tf.Graph:
        source = Arrays('train', np.zeros([count, 6, 6, 3], np.uint8), np.zeros(count, np.int32))
        with tf.Graph().as_default() as graph:
            ArrayPipeline(InputConfig(source, cpus(1), batch_size, 10, SHIFTED))
        return graph

    small, large = graph_of(10, 2), graph_of(1000, 200)
    assert large.as_graph_def().ByteSize() < small.as_graph_def().ByteSize() + 1000
    assert len(large.get_operations()) == len(small.get_operations())


# Python draws other shifts.
@pytest.mark.parametrize(
    ('kind', 'options'),
    [(DeviceInput, AS_THEY_ARE), (DeviceInput, SHIFTED), (FeedInput, AS_THEY_ARE)],
)
def test_images_in_memory_give_the_batches_of_arrays_bit_for_bit(kind, options):
    common: dict[str, Any] = {'options': options, 'num_towers': 2, 'worker': 1, 'num_workers': 3}
    expected = steps_of(7, 4, **common)
    common['kind'] = kind
    np.testing.assert_equal(steps_of(7, 4, **common), expected)
    resumed = steps_of(3, 4, before=4, normalize_on_device=True, **common)
    np.testing.assert_equal(resumed, expected[4:])


@pytest.mark.parametrize('kind', [DeviceInput, FeedInput])
def test_images_in_memory_may_have_another_scale(kind):
    options = replace(AS_THEY_ARE, scale=Scale(1.0, (10.0, 20.0, 30.0)))
    [[(plain, _)]], [[(scaled, _)]] = steps_of(1, 4), steps_of(1, 4, options, kind=kind)
    np.testing.assert_allclose(scaled, (plain + 1) * 127.5 - [10, 20, 30], atol=1e-4)


def test_without_a_source_each_step_feeds_the_same_random_images():
    first, second = steps_of(2, 4, kind=FeedInput, num_towers=2, source=None)
    np.testing.assert_equal(first, second)
    for images, labels in first:
        assert (images.dtype, images.shape, labels.dtype) == (np.float32, (4, 6, 6, 3), np.int32)
        assert -1 <= images.min() < -0.9
        assert 0.9 < images.max() < 1
        assert set(labels) <= set(range(10))
    assert not np.array_equal(first[0][0], first[1][0])


def test_several_workers_in_one_session_are_fed_their_own_batches():
    config = InputConfig(SOURCE, [], 4, 10, AS_THEY_ARE, num_workers=2)
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        shares = [
            FeedInput(replace(config, devices=[device], worker=worker))
            for worker, device in enumerate(cpus(2))
        ]
        pipeline = WorkersInput(shares, 1)
        pipeline.warm_up(session)
        steps = [step(session, pipeline, range(2)) for _ in range(2)]
    first, second = (order_of([[towers[worker]] for towers in steps]) for worker in range(2))
    assert not {*first} & {*second}


def read(source: Any, examples: Any, options: ImageOptions) -> Arrays:
    """Reads images for evaluation, in the size of the options, before the graph is built."""
    return read_images(source, lambda: examples(options), options, tf.ConfigProto())


EVALUATED = replace(AS_THEY_ARE, training=False)


def test_images_of_another_size_are_held_in_that_of_the_model():
    options = replace(EVALUATED, height=12, width=12, resize_method='nearest')
    arrays = read(SOURCE, lambda options: array_examples(SOURCE, options, Share()), options)
    np.testing.assert_array_equal(arrays.images, IMAGES.repeat(2, 1).repeat(2, 2))
    np.testing.assert_array_equal(arrays.labels, LABELS)
    assert read(SOURCE, lambda _: pytest.fail('nothing is read'), EVALUATED) is SOURCE


def test_records_are_decoded_once_in_their_order(tmp_path):
    colors = [(40 * number, 100, 200 - 30 * number) for number in range(5)]
    records = [
        example(encoded(Image.new('RGB', (7, 9), color)), label)
        for label, color in enumerate(colors)
    ]
    write_shard(tmp_path / shard_name('train', 0, 2), records[:2])
    write_shard(tmp_path / shard_name('train', 1, 2), records[2:])
    shards = find_shards(str(tmp_path), 'train')
    arrays = read(shards, lambda options: record_examples(shards, 10, options, Share()), EVALUATED)
    assert arrays.images.shape == (5, 6, 6, 3)
    np.testing.assert_allclose(arrays.images.mean(axis=(1, 2)), colors, atol=3)
    assert arrays.labels.tolist() == [0, 1, 2, 3, 4]


# ---- staged and synthetic batches ----------------------------------------------------------------


def numbered(devices: Sequence[str], first: int = 0) -> StagedInput:
    """Returns a pipeline that gives tower t in step k batches with the label 10 k + t."""
    sets = tf.data.make_initializable_iterator(
        tf.data.Dataset.range(first, first + 99), shared_name=f'sets_from_{first}'
    )

    def make_batches() -> list[HostBatch]:
        number = tf.cast(sets.get_next(), tf.int32)
        labels = [tf.fill([2], 10 * number + tower) for tower in range(len(devices))]
        return [(tf.cast(tf.reshape(label, [2, 1, 1, 1]), tf.float32), label) for label in labels]

    pipeline = StagedInput(devices, make_batches)
    pipeline.initializers.append(sets.initializer)
    return pipeline


@pytest.mark.parametrize('num_towers', [1, 3])
def test_every_staging_area_holds_one_set_and_sets_arrive_in_order(num_towers):
    with tf.Graph().as_default(), open_session(num_cpus=4) as session:
        pipeline = numbered(cpus(4)[1 : 1 + num_towers])
        sizes = [area.size() for area in (pipeline.host_area, *pipeline.device_areas)]
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        # The second time refills the areas: sets 0 and 1 are not used.
        pipeline.warm_up(session)
        for number in range(2, 8):
            assert {*session.run(sizes)} == {1}
            for tower, (images, labels) in enumerate(step(session, pipeline, range(num_towers))):
                assert labels.tolist() == [10 * number + tower] * 2
                assert images[:, 0, 0, 0].tolist() == labels.tolist()


def test_a_batch_is_on_the_device_of_its_tower():
    devices = cpus(3)[1:]
    with tf.Graph().as_default():
        for pipeline in (numbered(devices), SyntheticInput(replace(SYNTHETIC, devices=devices))):
            for tower, device in enumerate(devices):
                batch = pipeline.tower_batch(tower)
                assert device in batch.images.device
                assert device in batch.labels.device
                assert batch.images.shape.is_fully_defined()


def test_a_tower_that_sits_out_does_not_pile_up_batches():
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        pipeline = numbered(cpus(2))
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        for _ in range(3):
            step(session, pipeline, [0])
        assert session.run([area.size() for area in pipeline.device_areas]) == [1, 1]
        assert [labels[0] for _, labels in step(session, pipeline, [0, 1])] == [30, 31]


def test_pipelines_on_one_server_do_not_share_staging_areas():
    server = tf.train.Server.create_local_server()
    with contextlib.ExitStack() as sessions:
        runs = []
        for first in (0, 500):
            with tf.Graph().as_default():
                pipeline = numbered(['/job:localhost/task:0/cpu:0'], first)
                session = tf.Session(server.target)
            sessions.callback(session.close)
            session.run(pipeline.initializers)
            pipeline.warm_up(session)
            runs.append((session, pipeline))
        labels = [[step(*run, [0])[0][1][0] for run in runs] for _ in range(3)]
    assert labels == [[0, 5000], [10, 5010], [20, 5020]]


SYNTHETIC = InputConfig(None, cpus(2), 64, 10, ImageOptions(8, 8, 3, training=False))


def synthetic(seed: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """The images and labels of two towers in two steps."""
    with tf.Graph().as_default() as graph, open_session(num_cpus=2) as session:
        pipeline = SyntheticInput(replace(SYNTHETIC, seed=seed))
        assert not tf.global_variables()
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        graph.finalize()
        return [step(session, pipeline, [0, 1]) for _ in range(2)]


def test_synthetic_batches_stay_the_same_and_differ_between_towers_and_seeds():
    first, second = synthetic(seed=1)
    np.testing.assert_equal(first, second)
    np.testing.assert_equal(first, synthetic(seed=1)[0])
    [(images, labels), (other_images, other_labels)] = first
    assert (images != other_images).mean() > 0.99
    assert (labels != other_labels).any()
    assert (images != synthetic(seed=2)[0][0][0]).mean() > 0.99


def test_synthetic_images_are_normalised_and_have_every_label():
    images, labels = synthetic(seed=1)[0][0]
    assert (images.shape, images.dtype, labels.dtype) == ((64, 8, 8, 3), np.float32, np.int32)
    assert -1 <= images.min() < -0.99
    assert 0.99 < images.max() <= 1
    assert abs(images.mean()) < 0.05
    assert {*labels} == {*range(10)}
