"""Restoring checkpoints: from other slices, models, precisions and programs, and from damaged files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import DATA, Model, cpus, damage, files_of, open_model, open_session
from tests.support.oracles import OPTIMIZERS
from tests.support.outputs import check_line, failed
from training.checkpoint_files import latest_checkpoint
from training.checkpoints import Checkpointer, Slice, whole
from training.variables import Variable, create_variable

pytestmark = pytest.mark.graph


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Model, Any]]:
    with open_model(tmp_path) as model_and_session:
        yield model_and_session


@pytest.mark.parametrize('written', ['whole', 'rows', 'columns'])
@pytest.mark.parametrize('read', ['whole', 'rows', 'columns', 'blocks'])
def test_any_slices_read_what_other_slices_wrote(tmp_path: Path, written: str, read: str) -> None:
    values = np.random.default_rng(0).normal(size=[6, 4]).astype(np.float32)
    spans = {
        'whole': [((0, 0), (6, 4))],
        'rows': [((0, 0), (1, 4)), ((1, 0), (3, 4)), ((4, 0), (2, 4))],
        'columns': [((0, 0), (6, 3)), ((0, 3), (6, 1))],
        'blocks': [((0, 0), (2, 4)), ((2, 0), (4, 1)), ((2, 1), (4, 3))],
    }

    def slices(how: str) -> list[Slice]:
        return [
            Slice(create_variable('t', shape, scope=f'{how}{number}', device=cpus(3)[number]), offset, (6, 4))
            for number, (offset, shape) in enumerate(spans[how])
        ]

    def part(piece: Slice) -> np.ndarray:
        return values[tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.variable.shape, strict=True))]

    with tf.Graph().as_default():
        writers, readers = slices(written), slices(read)
        writing = Checkpointer(str(tmp_path), {'t': writers}, '/cpu:0', 1)
        reading = Checkpointer(str(tmp_path), {'t': readers}, '/cpu:0', 1)
        with open_session(3) as session:
            session.run([piece.variable.assign(part(piece)) for piece in writers])
            prefix = writing.save(session, 1)
            np.testing.assert_array_equal(tf.train.load_checkpoint(prefix).get_tensor('t'), values)
            reading.restore(session, prefix)
            for piece in readers:
                np.testing.assert_array_equal(session.run(piece.variable.value), part(piece))


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_training_resumes_with_the_slots_of_the_optimizer(tmp_path: Path, name: str) -> None:
    gradients = np.random.default_rng(1).normal(size=[6, 3, 2]).astype(np.float32)

    def train(first: int, last: int, prefix: str | None) -> tuple[str, list[np.ndarray]]:
        with tf.Graph().as_default():
            device = cpus(2)[1]
            variables = [create_variable('kernel', [3, 2], scope='v', device=device)]
            initializers = [variables[0].assign(tf.ones([3, 2]))]

            def make_slot(variable: Variable, slot: str, fill: float) -> Variable:
                made = create_variable(f'{variable.name}/{slot}', variable.shape, scope='v', device=device)
                initializers.append(made.assign(tf.fill(made.shape, fill)))
                variables.append(made)
                return made

            step, gradient = tf.placeholder(tf.int64, []), tf.placeholder(tf.float32, [3, 2])
            with tf.device(device):
                apply = OPTIMIZERS[name].ours.applier(tf.constant(0.1), step, make_slot)(variables[0], gradient)
            checkpointer = Checkpointer(str(tmp_path), {v.name: [whole(v)] for v in variables}, '/cpu:0', 5)
            with open_session(2) as session:
                if prefix:
                    checkpointer.restore(session, prefix)
                else:
                    session.run(initializers)
                for number in range(first, last):
                    session.run(apply, {step: number, gradient: gradients[number]})
                return checkpointer.save(session, last), session.run([v.value for v in variables])

    expected = train(0, 6, None)[1]
    middle, half = train(0, 3, None)
    assert len(tf.train.list_variables(middle)) == len(half) == len(expected)
    np.testing.assert_array_equal(train(3, 6, middle)[1], expected)


def test_checkpoints_of_tensorflows_saver_are_restored_and_ours_by_it(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        theirs = tf.get_variable(
            'theirs',
            [6, 4],
            use_resource=True,
            partitioner=tf.fixed_size_partitioner(3),
            initializer=tf.ones_initializer(),
        )
        ours = create_variable('ours', [6, 4], scope='v', device='/cpu:0')
        saver = tf.train.Saver({'table': theirs}, sharded=True, save_relative_paths=True)
        checkpointer = Checkpointer(str(tmp_path), {'table': [whole(ours)]}, '/cpu:0', 2)
        with open_session() as session:
            session.run(tf.global_variables_initializer())
            saver.save(session, str(tmp_path / 'model.ckpt'), 1, write_meta_graph=False)
            latest = latest_checkpoint(str(tmp_path))
            assert latest == str(tmp_path / 'model.ckpt-1')
            checkpointer.restore(session, latest)
            np.testing.assert_array_equal(session.run(ours.value), np.ones([6, 4]))
            session.run(ours.assign(tf.fill([6, 4], 5.0)))
            saver.restore(session, checkpointer.save(session, 1))
            np.testing.assert_array_equal(session.run(theirs.as_tensor()), np.full([6, 4], 5.0))
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1')


def test_a_checkpoint_of_another_model_is_refused_with_the_variables_that_differ(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
    model, session = opened
    prefix = model.save(session, 1, 1)
    with tf.Graph().as_default(), open_session() as other_session:
        shapes: dict[str, tuple[list[int], tf.DType]] = {
            'global_step': ([], tf.int32),
            'net/kernel': ([40, 50], tf.float32),
            'net/bias': ([3], tf.float16),
            **{f'net/{name}/momentum': ([1], tf.float32) for name in ('a', 'b', 'c', 'd', 'e')},
        }
        variables = {
            name: create_variable(name, shape, scope='v', device='/cpu:0', dtype=dtype)
            for name, (shape, dtype) in shapes.items()
        }
        other = Checkpointer(str(tmp_path), {name: [whole(v)] for name, v in variables.items()}, '/cpu:0', 1)
        bias = variables['net/bias']
        other_session.run(bias.assign(tf.zeros([3], tf.float16)))
        with failed(prefix, f'tf_cnn_benchmarks checkpoint {prefix}') as caught:
            other.restore(other_session, prefix)
        missing = ('net/a/momentum', 'net/b/momentum', 'net/c/momentum')
        check_line(caught.value, *missing, '2', 'net/table', 'net/kernel', '[50, 40]', '[40, 50]')
        check_line(caught.value, 'global_step', 'int64 []', 'int32 []')
        # Long lists are cut; what fits is not named.
        assert all(name not in str(caught.value) for name in ('net/d/momentum', 'net/e/momentum', 'net/bias'))
        assert list(other_session.run(bias.value)) == [0, 0, 0]


def test_optional_run_state_may_be_in_a_checkpoint_or_not(tmp_path: Path) -> None:
    """A run takes the loss scale of a checkpoint if both have one; else its own stays as it is."""

    def go_on(has_it: bool, prefix: str | None, step: int) -> tuple[str, int]:
        """The checkpoint that such a run saves after it restored another, and the scale that it restored."""
        with tf.Graph().as_default(), open_session() as session:
            variable = create_variable('v', [2], scope='v', device='/cpu:0')
            scale = create_variable('loss_scale/scale', [], scope='v', device='/cpu:0', dtype=tf.int64)
            slices = {'v': [whole(variable)]} | ({'loss_scale/scale': [whole(scale)]} if has_it else {})
            checkpointer = Checkpointer(str(tmp_path), slices, '/cpu:0', 9)
            session.run([variable.assign(tf.zeros([2])), scale.assign(tf.constant(1, tf.int64))])
            if prefix:
                checkpointer.restore(session, prefix)
            found = int(session.run(scale.value))
            session.run([variable.assign(tf.ones([2])), scale.assign(tf.constant(found + 10, tf.int64))])
            return checkpointer.save(session, step), found

    with_it, _ = go_on(True, None, 1)
    without_it, _ = go_on(False, None, 2)
    assert go_on(True, with_it, 3)[1] == 11
    assert go_on(True, without_it, 4)[1] == 1
    assert go_on(False, with_it, 5)[1] == 1
    assert [name for name, _ in tf.train.list_variables(with_it)] == ['loss_scale/scale', 'v']
    assert [name for name, _ in tf.train.list_variables(without_it)] == ['v']


@pytest.mark.parametrize('fault', ['damaged', 'cut short', 'empty', 'gone'])
@pytest.mark.parametrize('suffix', ['index', DATA])
def test_a_checkpoint_that_cannot_be_read_is_named_and_changes_nothing(
    opened: tuple[Model, Any], suffix: str, fault: str
) -> None:
    model, session = opened
    prefix = model.save(session, 1, 1)
    session.run(model.set, {model.number: 2})
    file = Path(f'{prefix}.{suffix}')
    if fault == 'damaged':
        damage(file)
    elif fault == 'gone':
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2 if fault == 'cut short' else 0)
    with failed(f'{prefix}.{suffix[:4]}'):
        model.checkpointer.restore(session, prefix)
    assert model.number_in(session) == 2
