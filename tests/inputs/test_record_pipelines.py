"""RecordInput and tf.data make batches of records: each record once an epoch, with its label;
faults are raised.

tf.data gives the same images as RecordInput, in an order that the seed decides.
"""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from preprocessing import ImageOptions, Scale, draw_random_numbers, preprocess
from tests.inputs.pipeline_steps import step
from tests.support.graphs import cpus, evaluate, open_session
from tests.support.images import NO_BOXES, encoded, example, write_shard
from tf_cnn.inputs.catalog import RECORD_INPUT, TF_DATA, pipeline_row_for
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.inputs.data_sets import Arrays, Shards, find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.pipeline_stages import DECODE, PARSE, STAGES, TRANSFER
from tf_cnn.inputs.record_pipeline import RecordPipeline
from tf_cnn.inputs.tf_data_pipeline import TfDataPipeline, image_random_numbers

pytestmark = pytest.mark.graph

NUM_CLASSES = 24
EVALUATION = ImageOptions(height=16, width=16, channels=3, training=False, seed=3)
TRAINING = replace(EVALUATION, training=True)
RANDOM = np.random.default_rng(4)
# Files by label.
FILES = [
    encoded(RANDOM.integers(0, 256, [24, 32, 3], np.uint8), quality=95) for _ in range(NUM_CLASSES)
]
RECORDS = [example(file, label) for label, file in enumerate(FILES)]
BOTH = pytest.mark.parametrize('pipeline', [RecordPipeline, TfDataPipeline])

Steps = list[list[tuple[np.ndarray, np.ndarray]]]


@pytest.fixture(scope='module')
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Three shards with the labels 0 to 7, 8 to 15, 16 to 23, in a folder named like a glob."""
    folder = tmp_path_factory.mktemp('data') / r'train [1-3]*? \{a,b}'
    folder.mkdir()
    for shard in range(3):
        write_shard(folder / shard_name('train', shard, 3), RECORDS[8 * shard : 8 * shard + 8])
    return find_shards(str(folder), 'train')


def steps_of(
    shards: Shards,
    num_steps: int,
    batch_size: int,
    options: ImageOptions = EVALUATION,
    *,
    num_towers: int = 1,
    pipeline: type[Any] = TfDataPipeline,
    reading: dict[str, int] | None = None,
    **more: Any,
) -> Steps:
    """Returns the images and labels of each tower in each step. `reading` are arguments of the
    pipeline besides its config.
    """
    config = InputConfig(shards, cpus(num_towers), batch_size, NUM_CLASSES, options, **more)
    with tf.Graph().as_default(), open_session(num_cpus=num_towers) as session:
        inputs = pipeline(config, **(reading or {}))
        session.run(inputs.initializers)
        inputs.warm_up(session)
        return [step(session, inputs, range(num_towers)) for _ in range(num_steps)]


def labels_in(steps: Steps) -> list[int]:
    return [label for towers in steps for _, labels in towers for label in labels.tolist()]


@pytest.fixture(scope='module')
def pixels() -> np.ndarray:
    """Returns the image of each label, [NUM_CLASSES, H, W, C] uint8."""
    options = replace(TRAINING, augmentation='none', scaled_decode=True)
    return np.stack(
        evaluate(lambda: [preprocess(tf.constant(file), NO_BOXES, options, 0) for file in FILES])
    )


@BOTH
@pytest.mark.parametrize(
    ('scale', 'normalize_on_device'),
    [
        (Scale(), False),
        (Scale(1.0, (123.68, 116.78, 103.94)), False),
        (Scale(1.0, (123.68, 116.78, 103.94)), True),
    ],
)
def test_labels_arrive_with_their_own_images(shards, pixels, pipeline, normalize_on_device, scale):
    options = replace(TRAINING, augmentation='none', scale=scale, scaled_decode=True)
    expected = pixels * scale.factor - np.array(scale.offsets)
    more: dict[str, Any] = {'pipeline': pipeline, 'normalize_on_device': normalize_on_device}
    steps = steps_of(shards, 4, 3, options, num_towers=2, **more)
    assert {*labels_in(steps)} == {*range(NUM_CLASSES)}
    for images, labels in itertools.chain(*steps):
        assert (images.dtype, labels.dtype) == (np.float32, np.int32)
        np.testing.assert_allclose(images, expected[labels], atol=1e-5)


@pytest.mark.parametrize('on_device', [False, True])
def test_bytes_are_staged_if_the_device_normalises_them(shards, on_device):
    config = InputConfig(shards, cpus(2), 4, NUM_CLASSES, EVALUATION)
    with tf.Graph().as_default() as graph:
        RecordPipeline(replace(config, normalize_on_device=on_device))
    staged = {op.inputs[0].dtype for op in graph.get_operations() if op.type == 'Stage'}
    assert staged == {tf.uint8 if on_device else tf.float32}


def epochs_of(labels: list[int]) -> list[list[int]]:
    """Splits labels into epochs, and asserts that each has every record once."""
    epochs = [labels[start : start + NUM_CLASSES] for start in range(0, len(labels), NUM_CLASSES)]
    assert all(Counter(epoch) == Counter(range(NUM_CLASSES)) for epoch in epochs)
    return epochs


# A pool of one record, one that is smaller than the data, and one that is never full.
@pytest.mark.parametrize('reading', [{'pool_records': 1, 'readers': 1}, {'pool_records': 7}, {}])
def test_every_record_comes_once_in_an_epoch_of_record_input(shards, reading):
    steps = steps_of(shards, 12, 10, pipeline=RecordPipeline, reading=reading)
    epochs = epochs_of(labels_in(steps))
    assert any(epoch != epochs[0] for epoch in epochs)


@pytest.mark.parametrize(
    ('pool_records', 'flags'),
    [
        (1, {}),
        (7, {}),
        (7, {'datasets_parallel_interleave_cycle_length': 1}),
        (7, {'datasets_use_caching': True}),
        (7, {'datasets_parallel_interleave_prefetch': 2}),
    ],
)
def test_every_record_comes_once_in_an_epoch_of_tf_data_and_the_order_is_repeatable(
    shards, pool_records, flags
):
    reading, tf_data = {'pool_records': pool_records}, PipelineConfig(**flags)
    labels, again = (
        labels_in(steps_of(shards, 12, 10, reading=reading, tf_data=tf_data)) for _ in range(2)
    )
    epochs = epochs_of(labels)
    assert pool_records == 1 or len({tuple(epoch) for epoch in epochs}) == 5
    assert labels == again


@pytest.mark.parametrize(
    ('pipeline', 'reading'),
    [(RecordPipeline, {'pool_records': 1, 'readers': 1}), (TfDataPipeline, {'pool_records': 1})],
)
def test_workers_begin_at_different_shards(shards, pipeline, reading):
    one_at_a_time = PipelineConfig(datasets_parallel_interleave_cycle_length=1)
    more: dict[str, Any] = {'pipeline': pipeline, 'reading': reading, 'tf_data': one_at_a_time}
    firsts = [steps_of(shards, 1, 8, worker=n, num_workers=3, **more)[0] for n in range(3)]
    assert sorted(labels_in(firsts)) == list(range(NUM_CLASSES))


@pytest.mark.parametrize(
    'more', [{'distortions': True}, {'augmentation': 'padded_crop'}, {'augmentation': 'none'}]
)
def test_training_images_of_tf_data_change_at_random_and_are_decided_by_the_seed_alone(
    shards, more
):
    options = replace(TRAINING, **more)
    epochs = steps_of(shards, 6, 4, options, num_towers=2)
    np.testing.assert_equal(steps_of(shards, 3, 4, options, num_towers=2), epochs[:3])
    other_seed = steps_of(shards, 3, 4, replace(options, seed=8), num_towers=2)
    assert labels_in(other_seed) != labels_in(epochs[:3])
    first, second = (
        {image.tobytes() for images, _ in itertools.chain(*epoch) for image in images}
        for epoch in (epochs[:3], epochs[3:])
    )
    changed = len(second - first)
    assert changed == 0 if more.get('augmentation') == 'none' else changed > NUM_CLASSES / 2


def test_the_number_of_an_image_decides_what_its_position_in_a_batch_decides():
    options = replace(TRAINING, resize_method='round_robin', distortions=True)
    arguments = FILES[0], NO_BOXES, options
    for position in range(4):
        with tf.Graph().as_default(), open_session() as session:
            seeds = tf.constant([options.seed, position], tf.int64)
            draws = draw_random_numbers(1, options, seeds=seeds).of_image(0)
            number = tf.constant(position, tf.int64)
            numbered = preprocess(*arguments, number, image_random_numbers(number, options))
            placed = preprocess(*arguments, position, draws)
            np.testing.assert_array_equal(*session.run([numbered, placed]))


def test_a_sloppy_order_has_every_record(shards):
    sloppy = PipelineConfig(
        datasets_sloppy_parallel_interleave=True,
        datasets_use_prefetch=False,
        datasets_num_private_threads=2,
    )
    epochs_of(labels_in(steps_of(shards, 3, 8, tf_data=sloppy)))


def test_one_record_can_stand_for_all(shards):
    repeated = PipelineConfig(datasets_repeat_cached_sample=True)
    assert len({*labels_in(steps_of(shards, 3, 8, tf_data=repeated))}) == 1


def test_cached_records_are_read_once(tmp_path):
    path = tmp_path / shard_name('train', 0, 1)
    write_shard(path, RECORDS[:4])
    config = InputConfig(
        find_shards(str(tmp_path), 'train'),
        cpus(1),
        4,
        NUM_CLASSES,
        EVALUATION,
        tf_data=PipelineConfig(datasets_use_caching=True),
    )
    with tf.Graph().as_default(), open_session() as session:
        pipeline = TfDataPipeline(config)
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        path.unlink()
        # Without the cache, the file would be missing in the second epoch.
        for _ in range(20):
            assert sorted(labels_in([step(session, pipeline, [0])])) == [0, 1, 2, 3]


def test_buffers_and_threads_follow_the_settings(shards):
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
    # The inputs are the cycle, the block, and the numbers of records and shards to read ahead.
    assert [tf.get_static_value(number) for number in interleave.inputs[-4:]][::3] == [2, 3]


# ---- pipelines that end after a stage ------------------------------------------------------------


def write(folder: Path, record: bytes) -> Shards:
    write_shard(folder / shard_name('train', 0, 1), [record] * 24)
    return find_shards(str(folder), 'train')


def run(source: Shards | Arrays, name: str, last_stage: str) -> list[str]:
    """Takes two steps of a pipeline that ends after a stage; returns the types of the ops that a
    step runs last.
    """
    config = InputConfig(source, cpus(2), 4, NUM_CLASSES, TRAINING, last_stage=last_stage)
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        pipeline = resolve_name(pipeline_row_for(source, name).pipeline)(config)
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        for _ in range(2):
            session.run(pipeline.per_step_ops)
        return [op.type for op in pipeline.per_step_ops]


@pytest.mark.parametrize('name', [RECORD_INPUT, TF_DATA])
@pytest.mark.parametrize(
    ('failing', 'record'), [(PARSE, b'\xff' * 40), (DECODE, example(FILES[0][:200], 1))]
)
def test_a_fault_shows_in_the_stage_that_meets_it_and_not_before(name, failing, record, tmp_path):
    shards = write(tmp_path, record)
    for stage in itertools.takewhile(lambda stage: stage != failing, STAGES):
        run(shards, name, stage)
    with pytest.raises((tf.errors.DataLossError, tf.errors.InvalidArgumentError)):
        run(shards, name, failing)


@pytest.mark.parametrize('name', [RECORD_INPUT, TF_DATA, 'arrays'])
def test_each_stage_runs_for_several_towers_and_only_the_last_one_stages(name, tmp_path):
    source: Shards | Arrays = write(tmp_path, RECORDS[1])
    if name == 'arrays':
        source = Arrays('train', np.zeros([8, 20, 20, 3], np.uint8), np.zeros(8, np.int32))
    stages = pipeline_row_for(source, name).stages
    assert [stage for stage in stages if 'Stage' in run(source, name, stage)] == [TRANSFER]
