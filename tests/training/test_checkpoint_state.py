"""Which checkpoint is the latest: as the state file says, as the files say, and after a kill at any moment."""

import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import DATA, Model, cpus, files_of, open_model, open_session, restored
from tests.support.outputs import failed
from training.checkpoint_files import latest_checkpoint, step_of

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Model, Any]]:
    with open_model(tmp_path) as model_and_session:
        yield model_and_session


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
    [None, '', 'nonsense: {', 'model_checkpoint_path: "model.ckpt-40"', 'model_checkpoint_path: "model.ckpt-30"'],
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
    assert step_of('some-5/model.ckpt-120') == 120
    with failed('some-5/model', 'model.ckpt-100'):
        step_of('some-5/model')


def test_a_checkpoint_that_the_state_file_names_in_another_folder_is_not_deleted(tmp_path: Path) -> None:
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

    EVENTS = frozenset(
        {
            'open',
            'os.link',
            'os.mkdir',
            'os.remove',
            'os.rename',
            'os.rmdir',
            'os.listdir',
            'os.scandir',
            'shutil.rmtree',
        }
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


@pytest.mark.parametrize('step', [4, 5], ids=['the_same_step', 'the_next_step'])
def test_a_kill_before_any_operation_leaves_a_whole_checkpoint(tmp_path: Path, killer: Killer, step: int) -> None:
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
                # TensorFlow knows the state file alone, and that a checkpoint without an index is none.
                by_tensorflow = tf.train.latest_checkpoint(str(tmp_path))
                assert by_tensorflow == latest_checkpoint(str(tmp_path)) or (by_tensorflow is None and step == 4)
                # The next saving tidies up.
                model.save(session, 3, step=6)
                assert restored(tmp_path) == 3
                assert set(os.listdir(tmp_path)) == files_of('model.ckpt-6')
    assert set(outcomes) == {1, 2}
    assert outcomes == sorted(outcomes)


def save_for_ever(folder: str, saved: Any) -> None:
    """Restores the latest checkpoint, and then saves each step twice, until the process is killed."""
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
        while True:
            try:
                last = receive.recv()
            except EOFError:
                break
        assert restored(tmp_path) in (last, last + 1)
    with tf.Graph().as_default(), open_session(2) as session:
        model = Model(tmp_path, cpus(2), max_to_keep=1)
        model.save(session, 1, step=1000)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1000')
