"""tf.data gives the images that RecordInput gives: each record once an epoch, in an order that the seed decides."""

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import preprocessing
from inputs.data_sets import Arrays, Shards, find_shards
from inputs.pipeline import InputParts
from inputs.record_pipeline import RecordPipeline
from inputs.tf_data_pipeline import TfDataPipeline, preprocess_numbered
from inputs.tf_data_settings import TfDataSettings
from inputs.validation import Share, array_examples, record_examples
from preprocessing import ImageOptions, Scale
from records.layout import shard_name
from tests.support.graphs import cpus, open_session, step
from tests.support.images import encoded, example, write_shard

pytestmark = pytest.mark.graph

NUM_CLASSES = 24
EVALUATION = ImageOptions(height=16, width=16, channels=3, training=False, seed=3)
TRAINING = replace(EVALUATION, training=True)
MEANS = Scale(1.0, (123.68, 116.78, 103.94))
RANDOM = np.random.default_rng(4)
# A picture by its label.
FILES = [encoded(RANDOM.integers(0, 256, [24, 32, 3], np.uint8), quality=95) for _ in range(NUM_CLASSES)]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards with the labels 0 to 7, 8 to 15, 16 to 23, in a folder whose name is no glob."""
    folder = tmp_path_factory.mktemp('data') / r'train [1-3]*? \{a,b}'
    folder.mkdir()
    for shard in range(3):
        labels = range(8 * shard, 8 * shard + 8)
        write_shard(folder / shard_name('train', shard, 3), (example(FILES[label], label) for label in labels))
    return folder


@pytest.fixture
def shards(data_dir: Path) -> Shards:
    return find_shards(str(data_dir), 'train')


def steps_of(
    shards: Shards,
    num_steps: int,
    batch_size: int,
    options: ImageOptions = EVALUATION,
    *,
    num_towers: int = 1,
    pipeline: type[Any] = TfDataPipeline,
    **more: Any,
) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """The images and labels of each tower in each step."""
    pool = {name: more.pop(name) for name in ('pool_records', 'readers') if name in more}
    with tf.Graph().as_default(), open_session(num_cpus=num_towers) as session:
        built = pipeline(InputParts(shards, cpus(num_towers), batch_size, NUM_CLASSES, options, **more), **pool)
        session.run(built.initializers)
        built.warm_up(session)
        return [step(session, built, range(num_towers)) for _ in range(num_steps)]


def test_functions_are_not_rewritten(shards: Shards) -> None:
    # AutoGraph takes seconds for them at the start, and writes each one to the temporary folder.
    arrays = Arrays('validation', np.zeros([2, 8, 8, 3], np.uint8), np.zeros([2], np.int32))
    with tf.Graph().as_default():
        TfDataPipeline(InputParts(shards, cpus(1), 4, NUM_CLASSES, TRAINING, shift=0.4))
        record_examples(shards, NUM_CLASSES, EVALUATION, Share())
        array_examples(arrays, EVALUATION, Share())
    rewritten = [module for name, module in sys.modules.items() if name.startswith('__autograph_generated_file')]
    # Those of other tests may be gone with their temporary folders.
    texts = [path.read_text() for module in rewritten if (path := Path(str(module.__file__))).exists()]
    assert not [text for text in texts if 'preprocessing' in text or 'first' in text]


def labels_in(steps: Sequence[list[tuple[np.ndarray, np.ndarray]]]) -> list[int]:
    return [label for towers in steps for _, labels in towers for label in labels.tolist()]


def images_by_label(steps: Sequence[list[tuple[np.ndarray, np.ndarray]]]) -> dict[int, np.ndarray]:
    return {
        label: image
        for towers in steps
        for images, labels in towers
        for image, label in zip(images, labels.tolist(), strict=True)
    }


@pytest.mark.parametrize(('on_device', 'scale'), [(True, Scale()), (False, MEANS)])
def test_images_are_those_of_record_input(shards: Shards, on_device: bool, scale: Scale) -> None:
    options = replace(EVALUATION, scale=scale)
    both = [
        images_by_label(steps_of(shards, 4, 3, options, num_towers=2, pipeline=pipeline, normalize_on_device=on_device))
        for pipeline in (TfDataPipeline, RecordPipeline)
    ]
    assert {len(found) for found in both} == {NUM_CLASSES}
    for label, image in both[0].items():
        assert (image.dtype, image.shape) == (np.float32, (16, 16, 3))
        np.testing.assert_array_equal(image, both[1][label])


@pytest.mark.parametrize('more', [{'distortions': True}, {'augmentation': 'padded_crop'}, {'augmentation': 'none'}])
def test_training_images_change_at_random_and_are_decided_by_the_seed_alone(shards: Shards, more: Any) -> None:
    options = replace(TRAINING, **more)
    epochs = steps_of(shards, 6, 4, options, num_towers=2)
    again = steps_of(shards, 3, 4, options, num_towers=2)
    for of_step, of_other in zip(epochs, again, strict=False):
        np.testing.assert_equal(of_step, of_other)
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
            draws = preprocessing.draw(1, options, seeds=tf.constant([options.seed, position], tf.int64)).of_image(0)
            expected = preprocessing.preprocess(tf.constant(FILES[0]), no_boxes, options, position, draws)
            found, wanted = session.run([numbered, expected], {number: position})
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize('pool_records', [1, 7])
@pytest.mark.parametrize(
    'settings',
    [
        TfDataSettings(),
        TfDataSettings(cycle_length=1),
        TfDataSettings(caches=True),
        TfDataSettings(prefetched_shards=2),
    ],
    ids=['default', 'one shard at a time', 'cached', 'shards ahead'],
)
def test_every_record_comes_once_in_an_epoch_also_across_batches(
    shards: Shards, settings: TfDataSettings, pool_records: int | None
) -> None:
    flat = labels_in(steps_of(shards, 12, 10, tf_data=settings, pool_records=pool_records))
    epochs = [flat[start : start + NUM_CLASSES] for start in range(0, len(flat), NUM_CLASSES)]
    assert len(epochs) == 5
    assert all(Counter(epoch) == Counter(range(NUM_CLASSES)) for epoch in epochs)
    if pool_records != 1:
        assert len({tuple(epoch) for epoch in epochs}) == 5
    assert flat == labels_in(steps_of(shards, 12, 10, tf_data=settings, pool_records=pool_records))


def test_a_sloppy_order_has_every_record_too(shards: Shards) -> None:
    settings = TfDataSettings(sloppy=True, prefetched_batches=0, private_threads=2)
    assert sorted(labels_in(steps_of(shards, 3, 8, tf_data=settings))) == list(range(NUM_CLASSES))


def test_workers_begin_at_different_shards(shards: Shards) -> None:
    settings = TfDataSettings(cycle_length=1)
    firsts = [labels_in(steps_of(shards, 1, 8, shift=w / 3, tf_data=settings, pool_records=1)) for w in range(3)]
    assert sorted(itertools.chain(*firsts)) == list(range(NUM_CLASSES))


def test_one_record_can_stand_for_all(shards: Shards) -> None:
    assert len(set(labels_in(steps_of(shards, 3, 8, tf_data=TfDataSettings(repeats_one=True))))) == 1


def test_cached_records_are_read_once(tmp_path: Path) -> None:
    for settings, is_read_again in ((TfDataSettings(caches=True), False), (TfDataSettings(), True)):
        path = tmp_path / shard_name('train', 0, 1)
        write_shard(path, [example(FILES[label], label) for label in range(4)])
        with tf.Graph().as_default(), open_session() as session:
            shards = find_shards(str(tmp_path), 'train')
            pipeline = TfDataPipeline(InputParts(shards, cpus(1), 4, NUM_CLASSES, EVALUATION, tf_data=settings))
            session.run(pipeline.initializers)
            pipeline.warm_up(session)
            path.unlink()
            if is_read_again:
                with pytest.raises(tf.errors.NotFoundError, match=path.name):
                    [step(session, pipeline, [0]) for _ in range(20)]
            else:
                steps = [step(session, pipeline, [0]) for _ in range(20)]
                assert all(sorted(labels_in([each])) == [0, 1, 2, 3] for each in steps)


def constant_inputs(graph: tf.Graph, kind: str, index: int) -> list[int]:
    """The value of an input of each op of a type; -1 if tf.data chooses it."""
    return [int(tf.get_static_value(op.inputs[index])) for op in graph.get_operations() if op.type == kind]


@pytest.mark.parametrize('num_towers', [1, 2])
def test_buffers_and_threads_are_those_of_the_settings(shards: Shards, num_towers: int) -> None:
    settings = TfDataSettings(
        cycle_length=2, prefetched_shards=3, prefetched_batches=5, batches_per_device=4, private_threads=7
    )
    prefetches, options = [], []
    for each in (settings, replace(settings, prefetched_batches=0, private_threads=None)):
        with tf.Graph().as_default() as graph:
            TfDataPipeline(InputParts(shards, cpus(num_towers), 2, NUM_CLASSES, EVALUATION, tf_data=each))
        ops = graph.get_operations()
        prefetches.append(constant_inputs(graph, 'PrefetchDataset', 1))
        options += [op.get_attr('serialized_options') for op in ops if op.type == 'OptionsDataset']
        [interleave] = [op for op in ops if op.type.startswith('LegacyParallelInterleave')]
        # The cycle, the block, the records and the shards that are read ahead.
        assert [tf.get_static_value(number) for number in interleave.inputs[-4:]][::3] == [2, 3]
    assert prefetches == [[5, 4 * num_towers], [4 * num_towers]]
    with_threads, without = options
    assert b'\x07' in with_threads
    assert b'\x07' not in without


@pytest.mark.parametrize(
    ('bad', 'error', 'message'),
    [
        (example(FILES[0], NUM_CLASSES), tf.errors.InvalidArgumentError, 'indices'),
        (None, tf.errors.DataLossError, 'truncated record'),
    ],
    ids=['label', 'truncated'],
)
def test_a_fault_of_the_data_is_raised(tmp_path: Path, bad: bytes | None, error: type[Exception], message: str) -> None:
    path = tmp_path / shard_name('train', 0, 1)
    write_shard(path, [*(example(FILES[label], label) for label in range(4)), *([bad] if bad else [])])
    if bad is None:
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(error, match=message):
        steps_of(find_shards(str(tmp_path), 'train'), 5, 2)
