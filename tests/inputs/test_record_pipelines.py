"""Records become batches by RecordInput and by tf.data: each record once an epoch, with its label;
faults are raised.

tf.data gives the images that RecordInput gives, in an order that the seed decides.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import preprocessing
from preprocessing import ImageOptions, Scale
from tests.support.graphs import cpus, open_session, step
from tests.support.images import encoded, example, flip_a_bit, write_shard
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.inputs.data_sets import Shards, find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.record_pipeline import RecordPipeline
from tf_cnn.inputs.tf_data_pipeline import TfDataPipeline, preprocess_numbered

pytestmark = pytest.mark.graph

NUM_CLASSES = 24
GREY_PER_LABEL = 10
EVALUATION = ImageOptions(height=16, width=16, channels=3, training=False, seed=3)
TRAINING = replace(EVALUATION, training=True)
MEANS = Scale(1.0, (123.68, 116.78, 103.94))
RANDOM = np.random.default_rng(4)
# A picture by its label.
FILES = [
    encoded(RANDOM.integers(0, 256, [24, 32, 3], np.uint8), quality=95) for _ in range(NUM_CLASSES)
]
BOTH = pytest.mark.parametrize('pipeline', [RecordPipeline, TfDataPipeline])

Steps = list[list[tuple[np.ndarray, np.ndarray]]]


def record(label: int) -> bytes:
    return example(FILES[label % NUM_CLASSES], label)


def grey_record(label: int) -> bytes:
    """An image whose grey tells its label."""
    return example(
        encoded(np.full([24, 32, 3], GREY_PER_LABEL * label, np.uint8), quality=95), label
    )


def write_shards(folder: Path, make: Callable[[int], bytes]) -> Shards:
    """Three shards with the labels 0 to 7, 8 to 15, 16 to 23, in a folder whose name is no glob."""
    folder = folder / r'train [1-3]*? \{a,b}'
    folder.mkdir()
    for shard in range(3):
        write_shard(
            folder / shard_name('train', shard, 3), map(make, range(8 * shard, 8 * shard + 8))
        )
    return find_shards(str(folder), 'train')


@pytest.fixture(scope='module')
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return write_shards(tmp_path_factory.mktemp('data'), record)


def steps_of(
    shards: Shards,
    num_steps: int,
    batch_size: int,
    options: ImageOptions = EVALUATION,
    *,
    num_towers: int = 1,
    pipeline: type[Any] = TfDataPipeline,
    **more: Any,
) -> Steps:
    """The images and labels of each tower in each step."""
    pool = {name: more.pop(name) for name in ('pool_records', 'readers') if name in more}
    with tf.Graph().as_default(), open_session(num_cpus=num_towers) as session:
        built = pipeline(
            InputConfig(shards, cpus(num_towers), batch_size, NUM_CLASSES, options, **more), **pool
        )
        session.run(built.initializers)
        built.warm_up(session)
        return [step(session, built, range(num_towers)) for _ in range(num_steps)]


def labels_in(steps: Steps) -> list[int]:
    return [label for towers in steps for _, labels in towers for label in labels.tolist()]


def images_by_label(steps: Steps) -> dict[int, np.ndarray]:
    batches = [batch for towers in steps for batch in towers]
    return {
        label: image
        for images, labels in batches
        for image, label in zip(images, labels.tolist(), strict=True)
    }


@pytest.mark.parametrize('normalize_on_device', [False, True])
@pytest.mark.parametrize('options', [EVALUATION, TRAINING], ids=['evaluation', 'training'])
def test_labels_arrive_with_their_own_images(
    tmp_path: Path, options: ImageOptions, normalize_on_device: bool
) -> None:
    shards, on_device = write_shards(tmp_path, grey_record), normalize_on_device
    steps = steps_of(
        shards, 3, 5, options, num_towers=2, pipeline=RecordPipeline, normalize_on_device=on_device
    )
    for images, labels in itertools.chain(*steps):
        assert images.shape == (5, 16, 16, 3)
        assert (images.dtype, labels.dtype) == (np.float32, np.int32)
        expected = (GREY_PER_LABEL * labels / 127.5 - 1)[:, None, None, None]
        np.testing.assert_allclose(images, np.broadcast_to(expected, images.shape), atol=2 / 127.5)


@pytest.mark.parametrize(('on_device', 'scale'), [(True, Scale()), (False, MEANS)])
def test_images_of_tf_data_are_those_of_record_input(
    shards: Shards, on_device: bool, scale: Scale
) -> None:
    options = replace(EVALUATION, scale=scale, scaled_decode=on_device, height=8, width=8)
    both = [
        images_by_label(
            steps_of(
                shards,
                4,
                3,
                options,
                num_towers=2,
                pipeline=pipeline,
                normalize_on_device=on_device,
            )
        )
        for pipeline in (TfDataPipeline, RecordPipeline)
    ]
    assert {len(found) for found in both} == {NUM_CLASSES}
    for label, image in both[0].items():
        assert (image.dtype, image.shape) == (np.float32, (8, 8, 3))
        np.testing.assert_array_equal(image, both[1][label])


@pytest.mark.parametrize('normalize_on_device', [False, True])
@pytest.mark.parametrize(
    'options', [EVALUATION, replace(TRAINING, distortions=True)], ids=['evaluation', 'training']
)
def test_one_op_reads_for_all_devices_and_one_op_makes_the_images_of_each(
    shards: Shards, options: ImageOptions, normalize_on_device: bool
) -> None:
    def ops(batch_size: int) -> list[tf.Operation]:
        with tf.Graph().as_default() as graph:
            parts = InputConfig(shards, cpus(2), batch_size, NUM_CLASSES, options)
            RecordPipeline(replace(parts, normalize_on_device=normalize_on_device))
            return graph.get_operations()

    # As docs/architecture.md says, and so no op comes once for each image.
    types, of_half = (Counter(op.type for op in ops(batch_size)) for batch_size in (8, 4))
    assert types == of_half
    assert (types['RecordInput'], types['MapDefun']) == (1, 2)
    # Bytes are staged if the device normalises them.
    staged = {op.inputs[0].dtype for op in ops(8) if op.type == 'Stage'}
    assert staged == {tf.uint8 if normalize_on_device else tf.float32}


# With RecordInput: a pool of one record, one smaller than the data, and one that is never full.
@pytest.mark.parametrize(
    ('pipeline', 'reading'),
    [
        *(
            (RecordPipeline, reading)
            for reading in ({'pool_records': 1, 'readers': 1}, {'pool_records': 7}, {})
        ),
        *(
            (TfDataPipeline, {'pool_records': pool_records, 'tf_data': settings})
            for pool_records in (1, 7)
            for settings in (
                PipelineConfig(),
                PipelineConfig(datasets_parallel_interleave_cycle_length=1),
                PipelineConfig(datasets_use_caching=True),
                PipelineConfig(datasets_parallel_interleave_prefetch=2),
            )
        ),
    ],
)
def test_every_record_comes_once_in_an_epoch_also_across_batches(
    shards: Shards, pipeline: Any, reading: dict[str, Any]
) -> None:
    flat = labels_in(steps_of(shards, 12, 10, pipeline=pipeline, **reading))
    epochs = [flat[start : start + NUM_CLASSES] for start in range(0, len(flat), NUM_CLASSES)]
    assert len(epochs) == 5
    assert all(Counter(epoch) == Counter(range(NUM_CLASSES)) for epoch in epochs)
    if pipeline is RecordPipeline:
        assert len({tuple(epoch) for epoch in epochs}) > 1
        return
    if reading['pool_records'] != 1:
        assert len({tuple(epoch) for epoch in epochs}) == 5
    assert flat == labels_in(steps_of(shards, 12, 10, **reading))


@BOTH
def test_workers_begin_at_different_shards(shards: Shards, pipeline: Any) -> None:
    one_at_a_time: dict[str, Any] = {
        'tf_data': PipelineConfig(datasets_parallel_interleave_cycle_length=1)
    }
    if pipeline is RecordPipeline:
        one_at_a_time = {'readers': 1}
    firsts = [
        steps_of(
            shards,
            1,
            8,
            worker=worker,
            num_workers=3,
            pool_records=1,
            pipeline=pipeline,
            **one_at_a_time,
        )
        for worker in range(3)
    ]
    assert sorted(labels_in([*itertools.chain(*firsts)])) == list(range(NUM_CLASSES))


@pytest.mark.parametrize(
    'more', [{'distortions': True}, {'augmentation': 'padded_crop'}, {'augmentation': 'none'}]
)
def test_training_images_of_tf_data_change_at_random_and_are_decided_by_the_seed_alone(
    shards: Shards, more: Any
) -> None:
    options = replace(TRAINING, **more)
    epochs = steps_of(shards, 6, 4, options, num_towers=2)
    np.testing.assert_equal(steps_of(shards, 3, 4, options, num_towers=2), epochs[:3])
    first, second = images_by_label(epochs[:3]), images_by_label(epochs[3:])
    changed = sum(not np.array_equal(first[label], second[label]) for label in first)
    assert changed == 0 if more.get('augmentation') == 'none' else changed > NUM_CLASSES / 2
    other_seed = steps_of(shards, 3, 4, replace(options, seed=8), num_towers=2)
    assert labels_in(other_seed) != labels_in(epochs[:3])


@pytest.mark.parametrize('method', ['bilinear', 'round_robin'])
def test_the_number_of_an_image_decides_what_its_position_in_a_batch_decides(method: str) -> None:
    options = replace(TRAINING, resize_method=method, distortions=True)
    with tf.Graph().as_default(), open_session() as session:
        no_boxes = tf.zeros([1, 0, 4])
        number = tf.placeholder(tf.int64, [])
        numbered = preprocess_numbered(tf.constant(FILES[0]), no_boxes, options, number)
        for position in range(4):
            draws = preprocessing.draw_random_numbers(
                1, options, seeds=tf.constant([options.seed, position], tf.int64)
            ).of_image(0)
            expected = preprocessing.preprocess(
                tf.constant(FILES[0]), no_boxes, options, position, draws
            )
            found, wanted = session.run([numbered, expected], {number: position})
            np.testing.assert_array_equal(found, wanted)


def test_a_sloppy_order_has_every_record_and_one_record_can_stand_for_all(shards: Shards) -> None:
    sloppy = PipelineConfig(
        datasets_sloppy_parallel_interleave=True,
        datasets_use_prefetch=False,
        datasets_num_private_threads=2,
    )
    assert sorted(labels_in(steps_of(shards, 3, 8, tf_data=sloppy))) == list(range(NUM_CLASSES))
    assert (
        len(
            set(
                labels_in(
                    steps_of(
                        shards, 3, 8, tf_data=PipelineConfig(datasets_repeat_cached_sample=True)
                    )
                )
            )
        )
        == 1
    )


def test_cached_records_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / shard_name('train', 0, 1)
    write_shard(path, map(record, range(4)))
    parts = InputConfig(find_shards(str(tmp_path), 'train'), cpus(1), 4, NUM_CLASSES, EVALUATION)
    with tf.Graph().as_default(), open_session() as session:
        pipeline = TfDataPipeline(replace(parts, tf_data=PipelineConfig(datasets_use_caching=True)))
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        path.unlink()
        # Without the cache, the file would be missing in the second epoch.
        assert all(
            sorted(labels_in([step(session, pipeline, [0])])) == [0, 1, 2, 3] for _ in range(20)
        )


def test_buffers_and_threads_are_those_of_the_settings(shards: Shards) -> None:
    settings = PipelineConfig(
        datasets_parallel_interleave_cycle_length=2,
        datasets_parallel_interleave_prefetch=3,
        datasets_prefetch_buffer_size=5,
        multi_device_iterator_max_buffer_size=4,
        datasets_num_private_threads=7,
    )
    with tf.Graph().as_default() as graph:
        TfDataPipeline(InputConfig(shards, cpus(2), 2, NUM_CLASSES, EVALUATION, tf_data=settings))
    ops = graph.get_operations()
    prefetches = [
        int(tf.get_static_value(op.inputs[1])) for op in ops if op.type == 'PrefetchDataset'
    ]
    assert prefetches == [5, 4 * 2]
    [options] = [op.get_attr('serialized_options') for op in ops if op.type == 'OptionsDataset']
    assert b'\x07' in options
    [interleave] = [op for op in ops if op.type.startswith('LegacyParallelInterleave')]
    # The cycle, the block, the records and the shards that are read ahead.
    assert [tf.get_static_value(number) for number in interleave.inputs[-4:]][::3] == [2, 3]


def test_only_the_shards_are_read(tmp_path: Path) -> None:
    for name, label in [
        (shard_name('train', 0, 4), 0),
        (shard_name('train', 2, 4), 2),
        (shard_name('validation', 0, 4), 3),
        ('train-00000-of-00003.old', 4),
    ]:
        write_shard(tmp_path / name, [record(label)])
    write_shard(tmp_path / shard_name('train', 3, 4), [])
    shards = find_shards(str(tmp_path), 'train')
    write_shard(tmp_path / shard_name('train', 1, 4), [record(1)])  # too late
    assert set(labels_in(steps_of(shards, 6, 2, pipeline=RecordPipeline))) == {0, 2}


@BOTH
@pytest.mark.parametrize(
    ('spoil', 'error', 'message'),
    # The words are TensorFlow's, or the names of ops and features.
    [
        (flip_a_bit, tf.errors.DataLossError, 'corrupted record'),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-5]),
            tf.errors.DataLossError,
            'truncated record',
        ),
        (
            lambda path: write_shard(path, map(record, [0, 1, 2, NUM_CLASSES])),
            tf.errors.InvalidArgumentError,
            f'label_below_{NUM_CLASSES}|indices',
        ),
    ],
    ids=['checksum', 'truncated', 'label'],
)
def test_a_fault_of_the_data_is_raised(
    tmp_path: Path,
    pipeline: Any,
    spoil: Callable[[Path], object],
    error: type[Exception],
    message: str,
) -> None:
    path = tmp_path / shard_name('train', 0, 1)
    write_shard(path, map(record, range(4)))
    spoil(path)
    with pytest.raises(error, match=message):
        steps_of(find_shards(str(tmp_path), 'train'), 5, 2, pipeline=pipeline)
