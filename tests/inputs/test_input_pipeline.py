"""Staged and synthetic batches: in order, on their devices, each staging area holding one set."""

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from preprocessing import ImageOptions
from tests.support.graphs import cpus, open_session, step
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.staged_input import HostBatch, StagedInput
from tf_cnn.inputs.synthetic import SyntheticInput

pytestmark = pytest.mark.graph


class Source:
    """Host batches that are numbered: set k of tower t has the label 10 k + t. number is the last
    k.
    """

    def __init__(self, num_towers: int, first: int = 0) -> None:
        self._num_towers = num_towers
        self._made = tf.Variable(
            first - 1, use_resource=True, collections=[], name=f'made_from_{first}'
        )
        self.initializer = self._made.initializer
        self.number = self._made.read_value()

    def __call__(self) -> list[HostBatch]:
        number = tf.identity(self._made.assign_add(1))
        labels = [tf.fill([2], 10 * number + tower) for tower in range(self._num_towers)]
        return [(tf.cast(tf.reshape(label, [2, 1, 1, 1]), tf.float32), label) for label in labels]


def sizes(session: Any, pipeline: StagedInput) -> set[int]:
    return set(session.run([area.size() for area in (pipeline.host_area, *pipeline.device_areas)]))


@pytest.mark.parametrize('num_towers', [1, 3])
def test_every_staging_area_holds_one_set_and_sets_arrive_in_order(num_towers: int) -> None:
    towers = range(num_towers)
    with tf.Graph().as_default(), open_session(num_cpus=4) as session:
        source = Source(num_towers)
        pipeline = StagedInput(cpus(4)[1 : 1 + num_towers], source)
        session.run(source.initializer)
        # The second time refills the areas: sets 0 and 1 are not used.
        for first in (0, 2):
            pipeline.warm_up(session)
            assert sizes(session, pipeline) == {1}
            # One set is on the host, one on the devices.
            assert session.run(source.number) == first + 1
        for number in range(2, 8):
            for tower, (images, labels) in enumerate(step(session, pipeline, towers)):
                assert labels.tolist() == [10 * number + tower] * 2
                assert images[:, 0, 0, 0].tolist() == labels.tolist()
            assert sizes(session, pipeline) == {1}
            assert session.run(source.number) == number + 2


def test_a_batch_is_on_the_device_of_its_tower() -> None:
    devices = cpus(3)[1:]
    with tf.Graph().as_default(), open_session(num_cpus=3) as session:
        source = Source(2)
        synthetic = InputConfig(None, devices, 2, 10, ImageOptions(4, 4, 3, training=False))
        for pipeline in (StagedInput(devices, source), SyntheticInput(synthetic)):
            for tower, device in enumerate(devices):
                batch = pipeline.tower_batch(tower)
                assert device in batch.images.device
                assert device in batch.labels.device
                assert batch.images.shape.is_fully_defined()
        session.run(pipeline.initializers)
        for image in session.run([pipeline.tower_batch(tower).images for tower in range(2)]):
            assert image.shape == (2, 4, 4, 3)


def test_a_tower_that_sits_out_does_not_pile_up_batches() -> None:
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        source = Source(2)
        pipeline = StagedInput(cpus(2), source)
        session.run(source.initializer)
        pipeline.warm_up(session)
        for _ in range(3):
            step(session, pipeline, [0])
        assert session.run([area.size() for area in pipeline.device_areas]) == [1, 1]
        assert [labels[0] for _, labels in step(session, pipeline, [0, 1])] == [30, 31]


def test_pipelines_on_one_server_do_not_share_staging_areas() -> None:
    server = tf.train.Server.create_local_server()
    with contextlib.ExitStack() as sessions:
        runs = []
        for first in (0, 500):
            with tf.Graph().as_default():
                source = Source(1, first)
                pipeline = StagedInput(['/job:localhost/task:0/cpu:0'], source)
                session = tf.Session(server.target)
            sessions.callback(session.close)
            session.run(source.initializer)
            pipeline.warm_up(session)
            runs.append((session, pipeline))
        seen = [[step(*run, [0])[0][1][0] for run in runs] for _ in range(3)]
    assert seen == [[0, 5000], [10, 5010], [20, 5020]]


def synthetic(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The images and labels of two towers in two steps."""
    with tf.Graph().as_default() as graph, open_session(num_cpus=2) as session:
        pipeline = SyntheticInput(
            InputConfig(None, cpus(2), 64, 10, ImageOptions(8, 8, 3, training=False), seed)
        )
        assert not tf.global_variables()
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        graph.finalize()
        return [*step(session, pipeline, [0, 1]), *step(session, pipeline, [0, 1])]


def test_synthetic_batches_are_normalized_stay_the_same_and_differ_between_towers_and_seeds() -> (
    None
):
    first, other, *again = synthetic(seed=1)
    for before, after in zip((first, other), again, strict=True):
        np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])
    assert (first[0] != other[0]).mean() > 0.99
    assert (first[1] != other[1]).any()
    np.testing.assert_array_equal(first[0], synthetic(seed=1)[0][0])
    assert (first[0] != synthetic(seed=2)[0][0]).mean() > 0.99
    images, labels = first
    assert (images.dtype, labels.dtype) == (np.float32, np.int32)
    assert -1 <= images.min() < -0.99
    assert 0.99 < images.max() <= 1
    assert abs(images.mean()) < 0.05
    assert set(labels) == set(range(10))
