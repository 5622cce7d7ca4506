"""Batches arrive in order, on their devices, with their labels; records come once an epoch; faults are raised."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from examples import encoded, example, write_shard
from sessions import cpus, open_session

from data_sets import Shards, find_shards, shard_name
from errors import UsageError
from input_pipeline import HostBatch, InputPipeline, RecordPipeline, StagedInput, SyntheticInput, shard_pattern
from preprocessing import ImageOptions

pytestmark = pytest.mark.graph

NUM_CLASSES = 24
GREY_PER_LABEL = 10
RECORDS_PER_SHARD = 8
EVALUATION = ImageOptions(height=16, width=16, channels=3, training=False, seed=3)
TRAINING = ImageOptions(height=16, width=16, channels=3, training=True, seed=3)


def step(session: Any, pipeline: InputPipeline, towers: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The images and labels that a model would get in a step."""
    batches = [pipeline.tower_batch(tower) for tower in towers]
    fetched = session.run([*pipeline.per_step_ops, *((batch.images, batch.labels) for batch in batches)])
    return fetched[len(pipeline.per_step_ops) :]


class Source:
    """Host batches that say which ones they are: set k of tower t has the label 10 k + t."""

    def __init__(self, num_towers: int, first: int = 0) -> None:
        self._num_towers = num_towers
        self._made = tf.Variable(first - 1, use_resource=True, collections=[], name=f'made_from_{first}')
        self.initializer = self._made.initializer

    def __call__(self) -> list[HostBatch]:
        number = tf.identity(self._made.assign_add(1))
        labels = [tf.fill([2], 10 * number + tower) for tower in range(self._num_towers)]
        return [(tf.cast(tf.reshape(label, [2, 1, 1, 1]), tf.float32), label) for label in labels]


class Watched:
    """A session that notes what all staging areas hold after every run."""

    def __init__(self, session: Any, pipeline: StagedInput) -> None:
        self.session = session
        self._graph = session.graph
        self.areas = [pipeline.host_area, *pipeline.device_areas]
        self.sizes = [area.size() for area in self.areas]
        # The label of each tower in the oldest set; asked for only where there is one.
        gets = [op for op in self._graph.get_operations() if op.type == 'Unstage']
        self.oldest = []
        for area, get in zip(self.areas, gets, strict=True):
            with tf.device(area.device):
                tensors = tf.raw_ops.StagePeek(
                    index=0, dtypes=get.get_attr('dtypes'), shared_name=get.get_attr('shared_name')
                )
                self.oldest.append([tensor[0] for tensor in tensors[1::2]])
        self.held: list[list[list[int]]] = []

    def run(self, fetches: Any) -> Any:
        result = self.session.run(fetches)
        sizes = self.session.run(self.sizes)
        assert max(sizes) <= 1
        self.held.append(
            [self.session.run(labels) if size else [] for size, labels in zip(sizes, self.oldest, strict=True)]
        )
        return result


@pytest.mark.parametrize('num_towers', [1, 3])
def test_every_staging_area_holds_one_set_and_sets_arrive_in_order(num_towers: int) -> None:
    towers = range(num_towers)

    def held(on_host: int | None, on_devices: int | None) -> list[list[int]]:
        host = [] if on_host is None else [10 * on_host + tower for tower in towers]
        return [host, *([] if on_devices is None else [10 * on_devices + tower] for tower in towers)]

    with tf.Graph().as_default(), open_session(num_cpus=4) as session:
        source = Source(num_towers)
        pipeline = StagedInput(cpus(4)[1 : 1 + num_towers], source)
        watched = Watched(session, pipeline)
        session.run(source.initializer)
        pipeline.warm_up(watched)
        assert watched.held == [held(None, None), held(0, None), held(1, 0)]
        for number in range(6):
            for tower, (images, labels) in enumerate(step(watched, pipeline, towers)):
                assert labels.tolist() == [10 * number + tower] * 2
                assert images[:, 0, 0, 0].tolist() == labels.tolist()
            assert watched.held[-1] == held(number + 2, number + 1)


def test_a_batch_is_on_the_device_of_its_tower() -> None:
    devices = cpus(3)[1:]
    with tf.Graph().as_default(), open_session(num_cpus=3) as session:
        source = Source(2)
        for pipeline in (StagedInput(devices, source), SyntheticInput(devices, 2, 4, 4, 3, 10)):
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


def test_warming_up_again_starts_anew() -> None:
    with tf.Graph().as_default(), open_session() as session:
        source = Source(1)
        pipeline = StagedInput(cpus(1), source)
        watched = Watched(session, pipeline)
        session.run(source.initializer)
        pipeline.warm_up(session)
        step(session, pipeline, [0])
        pipeline.warm_up(watched)
        assert watched.held == [[[], []], [[30], []], [[40], [30]]]


def test_pipelines_on_one_server_do_not_meet() -> None:
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


def test_an_error_of_the_source_is_raised_by_a_step() -> None:
    def breaking() -> list[HostBatch]:
        [(images, labels)] = source()
        return [(tf.check_numerics(images / tf.cast(labels[0] < 30, tf.float32), 'source is dry'), labels)]

    with tf.Graph().as_default(), open_session() as session:
        source = Source(1)
        pipeline = StagedInput(cpus(1), breaking)
        session.run(source.initializer)
        pipeline.warm_up(session)
        step(session, pipeline, [0])
        with pytest.raises(tf.errors.InvalidArgumentError, match='source is dry'):
            step(session, pipeline, [0])


def synthetic(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two towers, two steps."""
    with tf.Graph().as_default() as graph, open_session(num_cpus=2) as session:
        pipeline = SyntheticInput(cpus(2), 64, 8, 8, 3, 10, seed)
        assert not tf.global_variables()
        assert not tf.trainable_variables()
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        graph.finalize()
        return [*step(session, pipeline, [0, 1]), *step(session, pipeline, [0, 1])]


def test_synthetic_batches_stay_the_same_and_differ_between_towers_and_seeds() -> None:
    first, other, *again = synthetic(seed=1)
    for before, after in zip((first, other), again, strict=True):
        np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])
    assert (first[0] != other[0]).mean() > 0.99
    assert (first[1] != other[1]).any()
    np.testing.assert_array_equal(first[0], synthetic(seed=1)[0][0])
    assert (first[0] != synthetic(seed=2)[0][0]).mean() > 0.99


def test_synthetic_images_are_normalized_and_labels_name_every_class() -> None:
    images, labels = synthetic(seed=0)[0]
    assert (images.dtype, labels.dtype) == (np.float32, np.int32)
    assert -1 <= images.min() < -0.99
    assert 0.99 < images.max() <= 1
    assert abs(images.mean()) < 0.05
    assert set(labels) == set(range(10))


def record(label: int) -> bytes:
    """An image whose grey tells its label."""
    return example(encoded(np.full([24, 32, 3], GREY_PER_LABEL * label, np.uint8), quality=95), label)


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards with the labels 0 to 7, 8 to 15, 16 to 23, in a folder whose name is no glob."""
    folder = tmp_path_factory.mktemp('data') / r'train [1-3]*? \{a,b}'
    folder.mkdir()
    for shard in range(3):
        labels = range(RECORDS_PER_SHARD * shard, RECORDS_PER_SHARD * (shard + 1))
        write_shard(folder / shard_name('train', shard, 3), map(record, labels))
    return folder


def labels_of(shards: Shards, num_steps: int, batch_size: int, **reading: Any) -> list[list[int]]:
    """The labels of each step of one tower."""
    with tf.Graph().as_default(), open_session() as session:
        pipeline = RecordPipeline(
            shards, cpus(1), batch_size, NUM_CLASSES, EVALUATION, normalize_on_device=True, **reading
        )
        pipeline.warm_up(session)
        return [step(session, pipeline, [0])[0][1].tolist() for _ in range(num_steps)]


@pytest.mark.parametrize('normalize_on_device', [False, True])
@pytest.mark.parametrize('options', [EVALUATION, TRAINING], ids=['evaluation', 'training'])
def test_labels_arrive_with_their_own_images(data_dir: Path, options: ImageOptions, normalize_on_device: bool) -> None:
    shards = find_shards(str(data_dir), 'train')
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        pipeline = RecordPipeline(shards, cpus(2), 5, NUM_CLASSES, options, normalize_on_device=normalize_on_device)
        pipeline.warm_up(session)
        for _ in range(3):
            for images, labels in step(session, pipeline, [0, 1]):
                assert images.shape == (5, 16, 16, 3)
                assert (images.dtype, labels.dtype) == (np.float32, np.int32)
                expected = (GREY_PER_LABEL * labels / 127.5 - 1)[:, None, None, None]
                np.testing.assert_allclose(images, np.broadcast_to(expected, images.shape), atol=2 / 127.5)


@pytest.mark.parametrize('normalize_on_device', [False, True])
def test_what_travels_is_uint8_if_the_device_normalizes(data_dir: Path, normalize_on_device: bool) -> None:
    with tf.Graph().as_default() as graph:
        RecordPipeline(
            find_shards(str(data_dir), 'train'),
            cpus(1),
            2,
            NUM_CLASSES,
            EVALUATION,
            normalize_on_device=normalize_on_device,
        )
        staged = [op.inputs[0].dtype for op in graph.get_operations() if op.type == 'Stage']
    assert staged == [tf.uint8 if normalize_on_device else tf.float32] * 2


@pytest.mark.parametrize('options', [EVALUATION, replace(TRAINING, distortions=True)], ids=['evaluation', 'training'])
def test_what_starts_a_step_does_not_grow_with_the_batch(data_dir: Path, options: ImageOptions) -> None:
    def sources(batch_size: int) -> int:
        with tf.Graph().as_default() as graph:
            shards = find_shards(str(data_dir), 'train')
            RecordPipeline(shards, cpus(1), batch_size, NUM_CLASSES, options, normalize_on_device=False)
            return sum(not op.inputs for op in graph.get_operations())

    # Ops without inputs run first, on one core.
    assert sources(8) == sources(4)


# A pool of one record, one smaller than the data, and one that is never full.
@pytest.mark.parametrize('reading', [{'pool_records': 1, 'readers': 1}, {'pool_records': 7, 'readers': 2}, {}])
def test_every_record_comes_once_in_an_epoch_also_across_batches(data_dir: Path, reading: dict[str, int]) -> None:
    steps = labels_of(find_shards(str(data_dir), 'train'), 12, 10, **reading)
    flat = list(itertools.chain(*steps))
    epochs = [flat[start : start + NUM_CLASSES] for start in range(0, len(flat), NUM_CLASSES)]
    assert all(Counter(epoch) == Counter(range(NUM_CLASSES)) for epoch in epochs)
    assert len(epochs) == 5
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_workers_begin_at_different_shards(data_dir: Path) -> None:
    shards = find_shards(str(data_dir), 'train')
    firsts = [
        labels_of(shards, 1, RECORDS_PER_SHARD, shift=worker / 3, pool_records=1, readers=1)[0] for worker in range(3)
    ]
    assert sorted(itertools.chain(*firsts)) == list(range(NUM_CLASSES))


def test_an_empty_shard_among_others_gives_no_record(data_dir: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / shard_name('train', 0, 2), [])
    write_shard(tmp_path / shard_name('train', 1, 2), map(record, range(4)))
    assert sorted(labels_of(find_shards(str(tmp_path), 'train'), 1, 4)[0]) == [0, 1, 2, 3]


def test_shards_without_any_record_are_wrong_use_instead_of_endless_waiting(tmp_path: Path) -> None:
    write_shard(tmp_path / shard_name('train', 0, 1), [])
    with pytest.raises(UsageError, match=rf'--data_dir={tmp_path}.*1 train shards hold no record'):
        shard_pattern(find_shards(str(tmp_path), 'train'))


def test_only_the_shards_are_read(tmp_path: Path) -> None:
    for name, label in [
        (shard_name('train', 0, 3), 0),
        (shard_name('train', 2, 3), 2),
        (shard_name('validation', 0, 3), 3),
        ('train-00000-of-00003.old', 4),
    ]:
        write_shard(tmp_path / name, [record(label)])
    shards = find_shards(str(tmp_path), 'train')
    write_shard(tmp_path / shard_name('train', 1, 3), [record(1)])  # too late
    assert set(itertools.chain(*labels_of(shards, 6, 2))) == {0, 2}


@pytest.mark.parametrize(
    'folder', ['plain', 'a b', 'a,b', '[1]', 'a*', 'what?', 'back\\slash', '{a,b}', '~', '$HOME', 'é']
)
def test_the_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    for shard in range(2):
        write_shard(tmp_path / folder / shard_name('train', shard, 2), [record(shard)])
    assert sorted(labels_of(find_shards(str(tmp_path / folder), 'train'), 1, 2)[0]) == [0, 1]


def test_a_folder_in_the_current_one_is_found(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_dir)
    assert len(labels_of(find_shards('.', 'train'), 1, 4)[0]) == 4


def test_folders_that_only_differ_by_a_comma_are_told(tmp_path: Path) -> None:
    for folder in ('a,b', 'a_b'):
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / shard_name('train', 0, 1), [record(0)])
    assert labels_of(find_shards(str(tmp_path / 'a_b'), 'train'), 1, 1) == [[0]]
    with pytest.raises(UsageError, match=r'a,b: TensorFlow cannot tell it from .*a_b because of its comma'):
        shard_pattern(find_shards(str(tmp_path / 'a,b'), 'train'))


def _without_last_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _with_another_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def _with(bad: bytes) -> Callable[[Path], None]:
    return lambda path: write_shard(path, [*map(record, range(4)), bad])


@pytest.mark.parametrize(
    ('spoil', 'error', 'message'),
    [
        (_without_last_bytes, tf.errors.DataLossError, 'truncated record'),
        (_with_another_bit, tf.errors.DataLossError, 'corrupted record'),
        (_with(example(None, 1)), tf.errors.InvalidArgumentError, 'image/encoded'),
        (_with(example(encoded(np.zeros([8, 8, 3], np.uint8), 'PNG'), 1)), tf.errors.InvalidArgumentError, 'JPEG'),
        (_with(record(NUM_CLASSES)), tf.errors.InvalidArgumentError, f'label_below_{NUM_CLASSES}'),
        (_with(b'text'), tf.errors.InvalidArgumentError, 'parse'),
    ],
    ids=['truncated', 'checksum', 'no image', 'PNG', 'label', 'no example'],
)
def test_a_fault_of_the_data_is_raised(
    tmp_path: Path, spoil: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    path = tmp_path / shard_name('train', 0, 1)
    write_shard(path, map(record, range(4)))
    spoil(path)
    with pytest.raises(error, match=message):
        labels_of(find_shards(str(tmp_path), 'train'), 5, 2)
