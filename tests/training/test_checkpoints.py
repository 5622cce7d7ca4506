"""Checkpoints: what TensorFlow reads of them, what a kill leaves, which are kept, and what a wrong one is told as."""

import contextlib
import fcntl
import multiprocessing
import os
import random
import resource
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracles import OPTIMIZERS
from sessions import cpus, open_session

from errors import RunError
from training.checkpoints import Checkpointer, Slice, step_of, whole
from training.variables import Variable, create_variable

pytestmark = pytest.mark.graph

DATA = 'data-00000-of-00001'


class Model:
    """Variables on some devices, all of whose values are the same number, in the current graph.

    kernel and bias are whole; table [6, 4] has two rows on the first device and four on the last.
    """

    def __init__(self, folder: Path, devices: Sequence[str], writer: str = '/cpu:0', max_to_keep: int = 5) -> None:
        first, last = devices[0], devices[-1]
        step = create_variable('global_step', [], scope='v', device=first, dtype=tf.int64)
        kernel = create_variable('kernel', [50, 40], scope='v', device=last)
        bias = create_variable('bias', [3], scope='v', device=first, dtype=tf.float16)
        top = create_variable('table', [2, 4], scope='top', device=first)
        bottom = create_variable('table', [4, 4], scope='bottom', device=last)
        self.slices = {
            'global_step': [whole(step)],
            'net/kernel': [whole(kernel)],
            'net/bias': [whole(bias)],
            'net/table': [Slice(top, (0, 0), (6, 4)), Slice(bottom, (2, 0), (6, 4))],
        }
        self.variables = [step, kernel, bias, top, bottom]
        self.number = tf.placeholder(tf.int64, [])
        self.set = tf.group(*(v.assign(tf.fill(v.shape, tf.cast(self.number, v.value.dtype))) for v in self.variables))
        self.add = tf.group(*(v.assign(v.value + tf.cast(1, v.value.dtype)) for v in self.variables))
        self.checkpointer = Checkpointer(str(folder), self.slices, writer, max_to_keep)

    def save(self, session: tf.Session, number: int, step: int) -> str:
        session.run(self.set, {self.number: number})
        return self.checkpointer.save(session, step)

    def number_in(self, session: tf.Session) -> int:
        """The number that all variables hold."""
        values = session.run([variable.value for variable in self.variables])
        (number,) = {int(number) for value in values for number in np.unique(np.float64(value))}
        return number


@pytest.fixture(name='opened')
def open_model(tmp_path: Path) -> Iterator[tuple[Model, Any]]:
    """A model on two devices that keeps two checkpoints in tmp_path, and a session of it."""
    with tf.Graph().as_default():
        model = Model(tmp_path, cpus(2), max_to_keep=2)
        tf.get_default_graph().finalize()
        with open_session(2) as session:
            yield model, session


def restored(folder: Path) -> int:
    """The number in the latest checkpoint, read into variables that lie elsewhere and have no value yet."""
    latest = Checkpointer.latest(str(folder))
    assert latest is not None
    with tf.Graph().as_default(), open_session() as session:
        model = Model(folder, cpus(1))
        model.checkpointer.restore(session, latest)
        return model.number_in(session)


def files_of(*names: str) -> set[str]:
    """All that a folder with these checkpoints holds."""
    return {'checkpoint', *(f'{name}.{suffix}' for name in names for suffix in ('index', DATA))}


def refusal(match: str) -> Any:
    """Expects a fault in one line."""
    return pytest.raises(RunError, match=rf'\A[^\n]*{match}[^\n]*\Z')


def test_tensorflow_reads_what_was_saved(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    prefix = model.save(session, 7, step=30)
    assert prefix == str(tmp_path / 'model.ckpt-30')
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-30')
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix == Checkpointer.latest(str(tmp_path))
    assert tf.train.list_variables(prefix) == [
        ('global_step', []),
        ('net/bias', [3]),
        ('net/kernel', [50, 40]),
        ('net/table', [6, 4]),
    ]
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor('global_step') == 7
    # It is kept in 16 bits. A run in which it is not reads it, too.
    assert reader.get_variable_to_dtype_map()['net/bias'] == tf.float32
    for name in ('net/bias', 'net/kernel', 'net/table'):
        assert np.all(np.float32(reader.get_tensor(name)) == 7)


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
def test_training_goes_on_with_an_optimizers_slots(tmp_path: Path, name: str) -> None:
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
            latest = Checkpointer.latest(str(tmp_path))
            assert latest == str(tmp_path / 'model.ckpt-1')
            checkpointer.restore(session, latest)
            np.testing.assert_array_equal(session.run(ours.value), np.ones([6, 4]))
            session.run(ours.assign(tf.fill([6, 4], 5.0)))
            saver.restore(session, checkpointer.save(session, 1))
            np.testing.assert_array_equal(session.run(theirs.as_tensor()), np.full([6, 4], 5.0))
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1')


def test_the_last_checkpoints_are_kept_those_of_earlier_runs_count_and_others_stay(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
    model, session = opened
    for step in (10, 20):
        model.save(session, step, step)
    # The next run; it starts over, so that its steps are smaller.
    kept_by_hand = [f'model.ckpt-10-best.{suffix}' for suffix in ('index', DATA)]
    for suffix in ('index', DATA):
        shutil.copy(tmp_path / f'model.ckpt-10.{suffix}', tmp_path / f'model.ckpt-10-best.{suffix}')
    with tf.Graph().as_default(), open_session() as next_session:
        run = Model(tmp_path, cpus(1), max_to_keep=2)
        run.save(next_session, 5, 5)
        assert set(os.listdir(tmp_path)) == files_of('model.ckpt-20', 'model.ckpt-5') | set(kept_by_hand)
        run.save(next_session, 6, 6)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-5', 'model.ckpt-6') | set(kept_by_hand)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.all_model_checkpoint_paths == [str(tmp_path / 'model.ckpt-5'), str(tmp_path / 'model.ckpt-6')]


def test_a_checkpoint_that_the_state_file_names_in_another_folder_is_not_deleted(tmp_path: Path) -> None:
    with tf.Graph().as_default(), open_session() as session:
        elsewhere, here = tmp_path / 'elsewhere', tmp_path / 'here'
        elsewhere.mkdir()
        here.mkdir()
        prefix = Model(elsewhere, cpus(1)).save(session, 1, 1)
        (here / 'checkpoint').write_text(f'model_checkpoint_path: "{prefix}"')
        assert Checkpointer.latest(str(here)) == prefix
        # Of the same name, and not the one that is named.
        for suffix in ('index', DATA):
            shutil.copy(f'{prefix}.{suffix}', here)
        model = Model(here, cpus(1), max_to_keep=1)
        for step in (2, 3):
            model.save(session, step, step)
        assert set(os.listdir(here)) == files_of('model.ckpt-1', 'model.ckpt-3')
        assert set(os.listdir(elsewhere)) == files_of('model.ckpt-1')


def test_a_step_is_saved_again_with_the_same_and_with_other_values(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    inodes = []
    for number in (1, 1, 2):
        model.save(session, 9, step=3)
        inodes.append(os.stat(f'{model.save(session, number, step=4)}.{DATA}').st_ino)
        assert restored(tmp_path) == number
        assert set(os.listdir(tmp_path)) == files_of('model.ckpt-3', 'model.ckpt-4')
    # Those who read a checkpoint do not have it taken away for an equal one.
    assert inodes[0] == inodes[1]


def test_a_damaged_checkpoint_is_saved_again(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    damage(Path(f'{model.save(session, 1, step=3)}.{DATA}'))
    model.save(session, 1, step=3)
    assert restored(tmp_path) == 1


def test_file_systems_without_links_do(
    tmp_path: Path, opened: tuple[Model, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*paths: object) -> None:
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(os, 'link', no_link)
    model, session = opened
    for number in (1, 2):
        model.save(session, number, step=3)
        assert restored(tmp_path) == number
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-3')


class Killed(BaseException):
    """Stands for a kill: nothing of the code under test goes on after it."""


class Killer:
    """Ends the code under test before its n-th operation on files, as Python's audit hooks tell of them."""

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
    # One for all tests: audit hooks stay for ever.
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
                assert by_tensorflow == Checkpointer.latest(str(tmp_path)) or (by_tensorflow is None and step == 4)
                # The next saving tidies up.
                model.save(session, 3, step=6)
                assert restored(tmp_path) == 3
                assert set(os.listdir(tmp_path)) == files_of('model.ckpt-6')
    assert set(outcomes) == {1, 2}
    assert outcomes == sorted(outcomes)


def save_for_ever(folder: str, saved: Any) -> None:
    """What the process does that is killed: goes on from the latest checkpoint, and saves each step twice."""
    with tf.Graph().as_default(), open_session(2) as session:
        model = Model(Path(folder), cpus(2), max_to_keep=2)
        latest = Checkpointer.latest(folder)
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


def test_saving_goes_on_beside_steps_of_another_thread(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    session.run(model.set, {model.number: 0})
    done = threading.Event()

    def run_steps() -> int:
        steps = 0
        while not done.is_set():
            session.run(model.add)
            steps += 1
        return steps

    with ThreadPoolExecutor() as threads:
        stepper = threads.submit(run_steps)
        savings = [threads.submit(model.checkpointer.save, session, step) for step in range(10)]
        try:
            for saving in savings:
                saving.result(60)
        finally:
            done.set()
        steps = stepper.result(60)
    latest = Checkpointer.latest(str(tmp_path))
    assert latest is not None
    assert 0 <= tf.train.load_checkpoint(latest).get_tensor('global_step') <= steps
    assert len(os.listdir(tmp_path)) == len(files_of('one', 'another'))


def test_what_changes_while_it_is_saved_is_given_up(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    model.save(session, 3, step=1)
    session.run(model.set, {model.number: 8})
    with refusal('model.ckpt-2 was given up'):
        model.checkpointer.save(session, 2, lambda: False)
    assert restored(tmp_path) == 3
    model.checkpointer.save(session, 2, lambda: True)
    assert restored(tmp_path) == 8


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(('localhost', 0)) for _ in range(count)]
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


def test_a_worker_writes_what_parameter_servers_hold(tmp_path: Path) -> None:
    ports = free_ports(3)
    cluster = {
        'ps': [f'localhost:{port}' for port in ports[:2]],
        'worker': [f'localhost:{ports[2]}'],
    }
    servers = [
        tf.train.Server(cluster, job_name=job, task_index=index)
        for job, tasks in cluster.items()
        for index in range(len(tasks))
    ]
    with tf.Graph().as_default():
        model = Model(tmp_path, ['/job:ps/task:0/cpu:0', '/job:ps/task:1/cpu:0'], '/job:worker/task:0/cpu:0')
        with tf.Session(servers[-1].target) as session:
            prefix = model.save(session, 4, step=1)
            session.run(model.set, {model.number: 9})
            model.checkpointer.restore(session, prefix)
            assert model.number_in(session) == 4
            with file_size_limit(1000), refusal(f'--train_dir={tmp_path}: .* cannot be written .*; File too large'):
                model.checkpointer.save(session, 2)
            assert restored(tmp_path) == 4
            damage(Path(f'{prefix}.{DATA}'))
            with refusal(f'{prefix}.{DATA}: it cannot be read .*Checksum does not match'):
                model.checkpointer.restore(session, prefix)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Files cannot grow beyond that many bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def damage(file: Path) -> None:
    """Changes a byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def test_latest_is_what_the_state_file_names(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    assert Checkpointer.latest(str(tmp_path / 'missing')) is None
    assert Checkpointer.latest(str(tmp_path)) is None
    model.save(session, 1, 20)
    model.save(session, 2, 10)
    assert Checkpointer.latest(str(tmp_path)) == str(tmp_path / 'model.ckpt-10')
    moved = tmp_path.rename(tmp_path.with_name('moved'))
    assert Checkpointer.latest(str(moved)) == str(moved / 'model.ckpt-10')


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
    assert Checkpointer.latest(str(tmp_path)) == str(tmp_path / 'model.ckpt-10')
    model.save(session, 3, 11)
    assert Checkpointer.latest(str(tmp_path)) == str(tmp_path / 'model.ckpt-11')


def test_the_step_is_the_end_of_the_name() -> None:
    assert step_of('some-5/model.ckpt-120') == 120
    with refusal('some-5/model: its name does not tell the step'):
        step_of('some-5/model')


def test_a_checkpoint_of_another_model_is_told_with_what_differs(tmp_path: Path, opened: tuple[Model, Any]) -> None:
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
        with pytest.raises(RunError) as told:
            other.restore(other_session, prefix)
        assert str(told.value) == (
            f'{prefix}: this checkpoint is of another model or optimizer: '
            'missing: net/a/momentum, net/b/momentum, net/c/momentum and 2 more; left over: net/table; '
            'of another shape or type: global_step (int64 [], here int32 []), '
            'net/kernel (float32 [50, 40], here float32 [40, 50]); '
            'give the flags it was written with, or another folder; '
            f'all that it holds: tf_cnn_benchmarks checkpoint {prefix}'
        )
        assert list(other_session.run(bias.value)) == [0, 0, 0]


def test_what_tells_how_a_run_computed_may_be_there_or_not(tmp_path: Path) -> None:
    """Whether it is in the checkpoint or in the run: two that have it hand it on, others leave it as it is."""

    def go_on(has_it: bool, prefix: str | None, step: int) -> tuple[str, int]:
        """The checkpoint that such a run makes of another, and what its variable was before."""
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
    with refusal(rf'{prefix}\.{suffix[:4]}.*: it cannot be read \(.+\); restore another checkpoint'):
        model.checkpointer.restore(session, prefix)
    assert model.number_in(session) == 2


def test_a_full_disk_is_told_and_takes_no_earlier_checkpoint(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    model.save(session, 1, 1)
    for step in (1, 2):
        with file_size_limit(1000), refusal(f'--train_dir={tmp_path}: .*model.ckpt-{step} .*; File too large'):
            model.save(session, 2, step)
        assert restored(tmp_path) == 1
    model.save(session, 3, 3)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1', 'model.ckpt-3')


@pytest.mark.parametrize(
    ('folder', 'reason'),
    [('gone', 'No such file or directory'), ('file', 'Not a directory'), ('/sys', 'Operation not permitted|denied')],
)
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, folder: str, reason: str) -> None:
    (tmp_path / 'file').touch()
    with tf.Graph().as_default():
        model = Model(tmp_path / folder, cpus(1))
        with (
            open_session() as session,
            refusal(
                rf'--train_dir={tmp_path / folder}: the checkpoint .*/model\.ckpt-1 cannot be written \(({reason})'
            ),
        ):
            model.save(session, 1, 1)
    assert not (tmp_path / 'gone').exists()


def test_two_runs_do_not_save_into_one_folder_at_a_time(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    other_run = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other_run, fcntl.LOCK_EX)
    with refusal(f'--train_dir={tmp_path}: another run is saving a checkpoint there'):
        model.save(session, 1, 1)
    os.close(other_run)
    model.save(session, 1, 1)


def test_a_fault_of_the_session_is_not_told_as_one_of_the_folder(opened: tuple[Model, Any]) -> None:
    model, session = opened
    with pytest.raises(tf.errors.FailedPreconditionError):
        model.checkpointer.save(session, 1)
