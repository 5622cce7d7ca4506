"""Which checkpoint is the latest, also after a kill at any moment; and restoring what other runs
and programs wrote.
"""

import contextlib
import multiprocessing
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import DATA, Model, cpus, damage, files_of, open_session, restored
from tests.support.outputs import check_line, failed
from tf_cnn.graph.variables import create_variable
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint
from tf_cnn.training.checkpoints import Checkpointer, Slice, full_slice

pytestmark = pytest.mark.graph


def test_latest_is_what_the_state_file_names(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    assert latest_checkpoint(str(tmp_path / 'missing')) is None
    assert latest_checkpoint(str(tmp_path)) is None
    model.save(session, 1, 20)
    model.save(session, 2, 10)
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
def test_latest_is_the_newest_complete_one_if_the_state_file_does_not_tell(
    tmp_path: Path, opened: tuple[Model, Any], state: str | None
) -> None:
    model, session = opened
    model.save(session, 1, 9)
    model.save(session, 2, 10)
    shutil.copy(tmp_path / 'model.ckpt-10.index', tmp_path / 'model.ckpt-30.index')
    shutil.copy(tmp_path / f'model.ckpt-10.{DATA}', tmp_path / f'model.ckpt-40.{DATA}')
    for suffix in ('index', 'data-00000-of-00002'):
        shutil.copy(tmp_path / 'model.ckpt-10.index', tmp_path / f'model.ckpt-50.{suffix}')
    (tmp_path / 'checkpoint').unlink()
    if state is not None:
        (tmp_path / 'checkpoint').write_text(state)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-10')
    model.save(session, 3, 11)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-11')


def test_the_step_is_the_end_of_the_name() -> None:
    assert checkpoint_step('some-5/model.ckpt-120') == 120
    with failed('some-5/model', 'model.ckpt-100'):
        checkpoint_step('some-5/model')


def test_a_checkpoint_that_the_state_file_names_in_another_folder_is_not_deleted(
    tmp_path: Path,
) -> None:
    with tf.Graph().as_default(), open_session() as session:
        elsewhere, here = tmp_path / 'elsewhere', tmp_path / 'here'
        elsewhere.mkdir()
        here.mkdir()
        prefix = Model(elsewhere, cpus(1)).save(session, 1, 1)
        (here / 'checkpoint').write_text(f'model_checkpoint_path: "{prefix}"')
        assert latest_checkpoint(str(here)) == prefix
        # Of the same name, and not the one that is named.
        for suffix in ('index', DATA):
            shutil.copy(f'{prefix}.{suffix}', here)
        model = Model(here, cpus(1), max_to_keep=1)
        for step in (2, 3):
            model.save(session, step, step)
        assert set(os.listdir(here)) == files_of('model.ckpt-1', 'model.ckpt-3')
        assert set(os.listdir(elsewhere)) == files_of('model.ckpt-1')


class Killed(BaseException):
    """Stands for a kill: no code under test handles it."""


class Killer:
    """Raises Killed before the n-th operation on files, which Python's audit hooks report."""

    EVENTS = (
        *(
            'open',
            'os.link',
            'os.mkdir',
            'os.remove',
            'os.rename',
            'os.rmdir',
            'os.listdir',
            'os.scandir',
        ),
        'shutil.rmtree',
    )

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.left is None or event not in self.EVENTS:
            return
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.fixture(scope='module')
def killer() -> Killer:
    # One for all tests, since an audit hook cannot be removed.
    return Killer()


@pytest.mark.long
@pytest.mark.parametrize('step', [4, 5], ids=['the_same_step', 'the_next_step'])
def test_a_kill_before_any_operation_leaves_a_whole_checkpoint(
    tmp_path: Path, killer: Killer, step: int
) -> None:
    outcomes = []
    with tf.Graph().as_default():
        model = Model(tmp_path, cpus(2), max_to_keep=1)
        with open_session(2) as session:
            for operations in range(1000):
                model.save(session, 1, step=4)
                session.run(model.set, {model.number: 2})
                killer.left = operations
                try:
                    model.checkpointer.save(session, step)
                except Killed:
                    pass
                else:
                    break
                finally:
                    killer.left = None
                outcomes.append(restored(tmp_path))
                # TensorFlow knows the state file alone, and that a checkpoint without an index is
                # none.
                by_tensorflow = tf.train.latest_checkpoint(str(tmp_path))
                assert by_tensorflow == latest_checkpoint(str(tmp_path)) or (
                    by_tensorflow is None and step == 4
                )
                # The next saving tidies up.
                model.save(session, 3, step=6)
                assert restored(tmp_path) == 3
                assert set(os.listdir(tmp_path)) == files_of('model.ckpt-6')
    assert set(outcomes) == {1, 2}
    assert outcomes == sorted(outcomes)


def save_for_ever(folder: str, saved: Any) -> None:
    """Restores the latest checkpoint, and then saves each step twice, until the process is
    killed.
    """
    with tf.Graph().as_default(), open_session(2) as session:
        model = Model(Path(folder), cpus(2), max_to_keep=2)
        latest = latest_checkpoint(folder)
        if latest:
            model.checkpointer.restore(session, latest)
        else:
            session.run(model.set, {model.number: 0})
        while True:
            session.run(model.add)
            number = model.number_in(session)
            model.checkpointer.save(session, number // 2)
            saved.send(number)


@pytest.mark.long
def test_a_kill_9_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    # Forks of a process that has imported TensorFlow, and done nothing with it.
    processes = multiprocessing.get_context('forkserver')
    processes.set_forkserver_preload(['tensorflow.compat.v1'])
    moments, last = random.Random(5), 0
    for _ in range(5):
        receive, send = processes.Pipe(duplex=False)
        process = processes.Process(target=save_for_ever, args=(str(tmp_path), send))
        process.start()
        send.close()
        for _ in range(moments.randint(1, 5)):
            assert receive.poll(60)
            last = receive.recv()
        # Some moment of the savings that follow.
        process.join(moments.uniform(0, 0.03))
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                last = receive.recv()
        assert restored(tmp_path) in (last, last + 1)
    with tf.Graph().as_default(), open_session(2) as session:
        model = Model(tmp_path, cpus(2), max_to_keep=1)
        model.save(session, 1, step=1000)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1000')


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
            Slice(
                create_variable('t', shape, scope=f'{how}{number}', device=cpus(3)[number]),
                offset,
                (6, 4),
            )
            for number, (offset, shape) in enumerate(spans[how])
        ]

    def part(piece: Slice) -> np.ndarray:
        return values[
            tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.variable.shape, strict=True))
        ]

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
        checkpointer = Checkpointer(str(tmp_path), {'table': [full_slice(ours)]}, '/cpu:0', 2)
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
        other = Checkpointer(
            str(tmp_path), {name: [full_slice(v)] for name, v in variables.items()}, '/cpu:0', 1
        )
        with failed(prefix) as caught:
            other.restore(other_session, prefix)
        missing = ('net/a/momentum', 'net/b/momentum', 'net/c/momentum')
        check_line(caught.value, *missing, '2', 'net/table', 'net/kernel', '[50, 40]', '[40, 50]')
        check_line(caught.value, 'global_step', 'int64 []', 'int32 []')
        # Long lists are cut; what fits is not named.
        assert all(
            name not in str(caught.value)
            for name in ('net/d/momentum', 'net/e/momentum', 'net/bias')
        )


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
