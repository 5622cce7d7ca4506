"""Records become batches: each record once an epoch, with its label; only the shards are read; faults are raised."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from inputs.data_sets import Shards, check_shard_names, find_shards
from inputs.pipeline import InputParts
from inputs.record_pipeline import RecordPipeline
from preprocessing import ImageOptions
from records.layout import shard_name
from tests.support.graphs import cpus, open_session, step
from tests.support.images import encoded, example, write_shard
from tests.support.outputs import refused

pytestmark = pytest.mark.graph

NUM_CLASSES = 24
GREY_PER_LABEL = 10
RECORDS_PER_SHARD = 8
EVALUATION = ImageOptions(height=16, width=16, channels=3, training=False, seed=3)
TRAINING = ImageOptions(height=16, width=16, channels=3, training=True, seed=3)


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


def labels_of(shards: Shards, num_steps: int, batch_size: int, shift: float = 0.0, **reading: Any) -> list[list[int]]:
    """The labels of each step of one tower."""
    with tf.Graph().as_default(), open_session() as session:
        pipeline = RecordPipeline(
            InputParts(shards, cpus(1), batch_size, NUM_CLASSES, EVALUATION, normalize_on_device=True, shift=shift),
            **reading,
        )
        pipeline.warm_up(session)
        return [step(session, pipeline, [0])[0][1].tolist() for _ in range(num_steps)]


@pytest.mark.parametrize('normalize_on_device', [False, True])
@pytest.mark.parametrize('options', [EVALUATION, TRAINING], ids=['evaluation', 'training'])
def test_labels_arrive_with_their_own_images(data_dir: Path, options: ImageOptions, normalize_on_device: bool) -> None:
    shards = find_shards(str(data_dir), 'train')
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        pipeline = RecordPipeline(
            InputParts(shards, cpus(2), 5, NUM_CLASSES, options, normalize_on_device=normalize_on_device)
        )
        pipeline.warm_up(session)
        for _ in range(3):
            for images, labels in step(session, pipeline, [0, 1]):
                assert images.shape == (5, 16, 16, 3)
                assert (images.dtype, labels.dtype) == (np.float32, np.int32)
                expected = (GREY_PER_LABEL * labels / 127.5 - 1)[:, None, None, None]
                np.testing.assert_allclose(images, np.broadcast_to(expected, images.shape), atol=2 / 127.5)


@pytest.mark.parametrize('normalize_on_device', [False, True])
def test_staged_images_are_uint8_if_the_device_normalizes(data_dir: Path, normalize_on_device: bool) -> None:
    with tf.Graph().as_default() as graph:
        shards = find_shards(str(data_dir), 'train')
        RecordPipeline(InputParts(shards, cpus(1), 2, NUM_CLASSES, EVALUATION, normalize_on_device=normalize_on_device))
        staged = [op.inputs[0].dtype for op in graph.get_operations() if op.type == 'Stage']
    assert staged == [tf.uint8 if normalize_on_device else tf.float32] * 2


@pytest.mark.parametrize('options', [EVALUATION, replace(TRAINING, distortions=True)], ids=['evaluation', 'training'])
def test_one_op_reads_for_all_devices_and_one_op_makes_the_images_of_each(
    data_dir: Path, options: ImageOptions
) -> None:
    def types(batch_size: int) -> Counter[str]:
        with tf.Graph().as_default() as graph:
            shards = find_shards(str(data_dir), 'train')
            RecordPipeline(InputParts(shards, cpus(2), batch_size, NUM_CLASSES, options))
            return Counter(op.type for op in graph.get_operations())

    # As docs/architecture.md says, and so no op comes once for each image.
    assert types(8) == types(4)
    assert (types(8)['RecordInput'], types(8)['MapDefun']) == (1, 2)


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


def test_shards_without_any_record_are_refused_rather_than_waited_for(tmp_path: Path) -> None:
    write_shard(tmp_path / shard_name('train', 0, 1), [])
    with refused(f'--data_dir={tmp_path}', ' 1 ', 'train', 'records --input=DIR'):
        check_shard_names(find_shards(str(tmp_path), 'train'))


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


def test_a_folder_that_differs_from_another_one_by_a_comma_is_refused(tmp_path: Path) -> None:
    for folder in ('a,b', 'a_b'):
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / shard_name('train', 0, 1), [record(0)])
    assert labels_of(find_shards(str(tmp_path / 'a_b'), 'train'), 1, 1) == [[0]]
    with refused(f'--data_dir={tmp_path}/a,b', tmp_path / 'a_b'):
        check_shard_names(find_shards(str(tmp_path / 'a,b'), 'train'))


def _with_another_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def _with(bad: bytes) -> Callable[[Path], None]:
    return lambda path: write_shard(path, [*map(record, range(4)), bad])


@pytest.mark.parametrize(
    ('spoil', 'error', 'message'),
    # The words are TensorFlow's, or the names of ops and features.
    [
        (_with_another_bit, tf.errors.DataLossError, 'corrupted record'),
        (_with(record(NUM_CLASSES)), tf.errors.InvalidArgumentError, f'label_below_{NUM_CLASSES}'),
    ],
    ids=['checksum', 'label'],
)
def test_a_fault_of_the_data_is_raised(
    tmp_path: Path, spoil: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    path = tmp_path / shard_name('train', 0, 1)
    write_shard(path, map(record, range(4)))
    spoil(path)
    with pytest.raises(error, match=message):
        labels_of(find_shards(str(tmp_path), 'train'), 5, 2)
