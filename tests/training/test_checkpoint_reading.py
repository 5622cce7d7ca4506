"""Finding the latest checkpoint, also after a kill at any moment; restoring checkpoints of other
runs and programs.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import cpus, open_session
from tests.support.images import flip_a_bit
from tests.support.outputs import check_line, failed
from tests.support.runs import values_in
from tests.training.number_model import DATA, files_of, open_model
from tf_cnn.graph.variables import Variable, create_variable
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint
from tf_cnn.training.checkpoints import Checkpointer, Slice, full_slice

pytestmark = pytest.mark.graph


def test_the_state_file_names_the_latest_checkpoint(tmp_path, model):
    assert latest_checkpoint(str(tmp_path / 'missing')) is None
    assert latest_checkpoint(str(tmp_path)) is None
    for step in (20, 10):
        model.save(1, step)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-10')
    moved = tmp_path.rename(tmp_path.with_name('moved'))
    assert latest_checkpoint(str(moved)) == str(moved / 'model.ckpt-10')


@pytest.mark.parametrize(
    'state',
    [
        None,
        '',
        'nonsense: {',
        'model_checkpoint_path: "model.ckpt-40"',
        'model_checkpoint_path: "model.ckpt-30"',
    ],
)
def test_the_newest_complete_checkpoint_is_the_latest_if_the_state_file_names_none(
    tmp_path, model, state
):
    for step in (9, 10):
        model.save(1, step)
    for missing_file in ('30.index', f'40.{DATA}', '50.index', '50.data-00000-of-00002'):
        shutil.copy(tmp_path / 'model.ckpt-10.index', tmp_path / f'model.ckpt-{missing_file}')
    (tmp_path / 'checkpoint').unlink()
    if state is not None:
        (tmp_path / 'checkpoint').write_text(state)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-10')
    model.save(3, 11)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-11')


def test_the_step_is_the_end_of_the_name():
    assert checkpoint_step('some-5/model.ckpt-120') == 120
    with failed('some-5/model', 'model.ckpt-100'):
        checkpoint_step('some-5/model')


def test_a_checkpoint_that_the_state_file_names_in_another_folder_is_not_deleted(tmp_path):
    elsewhere, here = tmp_path / 'elsewhere', tmp_path / 'here'
    for folder in (elsewhere, here):
        folder.mkdir()
        # Both have the same name; the state file names one of them.
        with open_model(folder) as model:
            model.save(1, step=1)
    (here / 'checkpoint').write_text(f'model_checkpoint_path: "{elsewhere}/model.ckpt-1"')
    assert latest_checkpoint(str(here)) == f'{elsewhere}/model.ckpt-1'
    with open_model(here, max_to_keep=1) as model:
        for step in (2, 3):
            model.save(step, step)
    assert set(os.listdir(here)) == files_of('model.ckpt-1', 'model.ckpt-3')
    assert set(os.listdir(elsewhere)) == files_of('model.ckpt-1')


class Killed(BaseException):
    """Stands for a kill: no code under test handles it."""


class Killer:
    """Raises Killed before the n-th operation on files, which Python's audit hooks report."""

    def __init__(self) -> None:
        self.operations_left: int | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.operations_left is not None and event.startswith(('open', 'os.', 'shutil.')):
            self.operations_left -= 1
            if self.operations_left < 0:
                raise Killed


# One for all tests, since an audit hook cannot be removed.
KILLER = Killer()


@pytest.mark.long
@pytest.mark.parametrize('step', [4, 5], ids=['the_same_step', 'the_next_step'])
def test_a_kill_before_any_operation_leaves_a_whole_checkpoint(tmp_path, step):
    outcomes: list[int] = []
    was_killed = True
    with open_model(tmp_path, 2, max_to_keep=1) as model, open_model(tmp_path) as reader:

        def restored() -> int:
            latest = latest_checkpoint(str(tmp_path))
            assert latest is not None
            reader.set_number(0)
            reader.checkpointer.restore(reader.session, latest)
            return reader.number()

        while was_killed:
            model.save(1, step=4)
            model.set_number(2)
            KILLER.operations_left, was_killed = len(outcomes), False
            try:
                model.checkpointer.save(model.session, step)
            except Killed:
                was_killed = True
            finally:
                KILLER.operations_left = None
            outcomes.append(restored())
            # TensorFlow reads only the state file, and ignores a checkpoint without an index.
            by_tensorflow = tf.train.latest_checkpoint(str(tmp_path))
            assert by_tensorflow == latest_checkpoint(str(tmp_path)) or (
                by_tensorflow is None and step == 4
            )
            # The next saving tidies up.
            model.save(3, step=6)
            assert restored() == 3
            assert set(os.listdir(tmp_path)) == files_of('model.ckpt-6')
    assert set(outcomes[:-1]) == {1, 2}
    assert outcomes == sorted(outcomes)


# The rows and columns of the slices of a variable [6, 4].
SPANS = {
    'whole': [(slice(0, 6), slice(0, 4))],
    'rows': [(slice(start, end), slice(0, 4)) for start, end in ((0, 1), (1, 4), (4, 6))],
    'columns': [(slice(0, 6), slice(0, 3)), (slice(0, 6), slice(3, 4))],
    'blocks': [
        (slice(0, 2), slice(0, 4)),
        (slice(2, 6), slice(0, 1)),
        (slice(2, 6), slice(1, 4)),
    ],
}


@pytest.mark.parametrize('written', ['whole', 'rows', 'columns'])
@pytest.mark.parametrize('read', SPANS)
def test_any_slices_read_what_other_slices_wrote(tmp_path, written, read):
    values = np.random.default_rng(0).normal(size=[6, 4]).astype(np.float32)

    def create(scope: str, spans: list[tuple[slice, slice]]) -> tuple[list[Variable], Checkpointer]:
        variables = [
            create_variable('t', values[span].shape, scope=f'{scope}{i}', device=cpus(3)[i])
            for i, span in enumerate(spans)
        ]
        slices = [
            Slice(variable, (rows.start, columns.start), (6, 4))
            for variable, (rows, columns) in zip(variables, spans, strict=True)
        ]
        return variables, Checkpointer(str(tmp_path), {'t': slices}, '/cpu:0', 1)

    with tf.Graph().as_default(), open_session(3) as session:
        sources, writer = create('written', SPANS[written])
        targets, reader = create('read', SPANS[read])
        for variable, span in zip(sources, SPANS[written], strict=True):
            session.run(variable.assign(tf.constant(values[span])))
        prefix = writer.save(session, 1)
        np.testing.assert_array_equal(values_in(prefix)['t'], values)
        reader.restore(session, prefix)
        for variable, span in zip(targets, SPANS[read], strict=True):
            np.testing.assert_array_equal(session.run(variable.value), values[span])


def test_checkpoints_of_tensorflows_saver_are_restored_and_ours_by_it(tmp_path):
    with tf.Graph().as_default(), open_session() as session:
        theirs = tf.get_variable(
            'theirs',
            [6, 4],
            use_resource=True,
            partitioner=tf.fixed_size_partitioner(3),
            initializer=tf.ones_initializer(),
        )
        ours = create_variable('ours', [6, 4], scope='v', device='/cpu:0')
        saver = tf.train.Saver({'table': theirs}, sharded=True, save_relative_paths=True)
        checkpointer = Checkpointer(str(tmp_path), {'table': [full_slice(ours)]}, '/cpu:0', 2)
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


def test_a_checkpoint_of_another_model_is_refused_with_the_variables_that_differ(tmp_path, model):
    prefix = model.save(1, step=1)
    shapes: dict[str, tuple[list[int], tf.DType]] = {
        'global_step': ([], tf.int32),
        'net/kernel': ([40, 50], tf.float32),
        'net/bias': ([3], tf.float16),
        **{f'net/{name}/momentum': ([1], tf.float32) for name in 'abcde'},
    }
    with tf.Graph().as_default(), open_session() as session:
        slices = {
            name: [full_slice(create_variable(name, shape, scope='v', device='', dtype=dtype))]
            for name, (shape, dtype) in shapes.items()
        }
        other = Checkpointer(str(tmp_path), slices, '/cpu:0', 1)
        with failed(prefix) as caught:
            other.restore(session, prefix)
    missing = ('net/a/momentum', 'net/b/momentum', 'net/c/momentum')
    line = check_line(
        caught.value, *missing, '2', 'net/table', 'net/kernel', '[50, 40]', '[40, 50]'
    )
    check_line(line, 'global_step', 'int64 []', 'int32 []')
    # Long lists are cut, and variables that fit are not named.
    for name in ('net/d/momentum', 'net/e/momentum', 'net/bias'):
        assert name not in line


@pytest.mark.parametrize('fault', ['damaged', 'cut short', 'empty', 'gone'])
@pytest.mark.parametrize('suffix', ['index', DATA])
def test_a_checkpoint_that_cannot_be_read_is_named_and_changes_nothing(model, suffix, fault):
    prefix = model.save(1, step=1)
    model.set_number(2)
    file = Path(f'{prefix}.{suffix}')
    if fault == 'damaged':
        flip_a_bit(file)
    elif fault == 'gone':
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2 if fault == 'cut short' else 0)
    with failed(f'{prefix}.{suffix[:4]}', f'remove {prefix}.*', 'no other checkpoint'):
        model.checkpointer.restore(model.session, prefix)
    assert model.number() == 2


def test_the_files_of_a_damaged_checkpoint_are_named_and_the_one_that_is_read_without_them(
    tmp_path, model
):
    older, newest = (model.save(step, step) for step in (9, 10))
    data = Path(f'{newest}.{DATA}')
    os.truncate(data, 10)
    with failed(data, f'remove {newest}.*', f'then {older} is the newest'):
        model.checkpointer.restore(model.session, newest)
    for file in tmp_path.glob(f'{Path(newest).name}.*'):
        file.unlink()
    assert latest_checkpoint(str(tmp_path)) == older
