"""Staged and synthetic batches: in order, on their devices, each staging area holding one set."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from preprocessing import ImageOptions
from tests.inputs.pipeline_steps import step
from tests.support.graphs import cpus, open_session
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.staged_input import HostBatch, StagedInput
from tf_cnn.inputs.synthetic import SyntheticInput

pytestmark = pytest.mark.graph


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
