"""Saving checkpoints: what TensorFlow reads of them, which are kept, and what happens when a folder
is at fault.
"""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import (
    DATA,
    Model,
    cpus,
    damage,
    file_size_limit,
    files_of,
    open_session,
    restored,
)
from tests.support.outputs import failed
from tf_cnn.launch.hosts import reserve_addresses
from tf_cnn.training.checkpoint_files import READY_FOLDER, UNFINISHED_FOLDER, latest_checkpoint

pytestmark = pytest.mark.graph


def test_tensorflow_reads_what_was_saved(tmp_path: Path, opened: tuple[Model, Any]) -> None:
    model, session = opened
    prefix = model.save(session, 7, step=30)
    assert prefix == str(tmp_path / 'model.ckpt-30')
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-30')
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix == latest_checkpoint(str(tmp_path))
    assert tf.train.list_variables(prefix) == [
        ('global_step', []),
        ('net/bias', [3]),
        ('net/kernel', [50, 40]),
        ('net/table', [6, 4]),
    ]
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor('global_step') == 7
    # The variable is of 16 bits; the checkpoint has 32, which every run can read.
    assert reader.get_variable_to_dtype_map()['net/bias'] == tf.float32
    for name in ('net/bias', 'net/kernel', 'net/table'):
        assert np.all(np.float32(reader.get_tensor(name)) == 7)


def test_only_the_last_checkpoints_of_all_runs_are_kept_and_no_other_file_is_deleted(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
    model, session = opened
    for step in (10, 20):
        model.save(session, step, step)
    # The next run starts anew, so that its steps are smaller.
    kept_by_hand = [f'model.ckpt-10-best.{suffix}' for suffix in ('index', DATA)]
    for suffix in ('index', DATA):
        shutil.copy(tmp_path / f'model.ckpt-10.{suffix}', tmp_path / f'model.ckpt-10-best.{suffix}')
    with tf.Graph().as_default(), open_session() as next_session:
        run = Model(tmp_path, cpus(1), max_to_keep=2)
        run.save(next_session, 5, 5)
        assert set(os.listdir(tmp_path)) == files_of('model.ckpt-20', 'model.ckpt-5') | set(
            kept_by_hand
        )
        run.save(next_session, 6, 6)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-5', 'model.ckpt-6') | set(kept_by_hand)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.all_model_checkpoint_paths == [
        str(tmp_path / 'model.ckpt-5'),
        str(tmp_path / 'model.ckpt-6'),
    ]


@pytest.mark.parametrize('stage', [UNFINISHED_FOLDER, READY_FOLDER])
@pytest.mark.parametrize('is_link', [False, True])
def test_saving_removes_no_stage_that_is_a_link_or_holds_other_files(
    tmp_path: Path, opened: tuple[Model, Any], stage: str, is_link: bool
) -> None:
    model, session = opened
    kept = tmp_path / ('elsewhere' if is_link else stage)
    kept.mkdir()
    (kept / ('twin' if is_link else 'notes')).write_text('mine')
    for file in ('model.ckpt-3.index', 'model.ckpt-3.data-00000-of-00001'):
        (kept / file).write_text('mine')
    if is_link:
        (tmp_path / stage).symlink_to(kept)
    with failed(f'--train_dir={tmp_path}', str(tmp_path / stage)):
        model.save(session, 7, step=30)
    assert {file.read_text() for file in kept.iterdir()} == {'mine'}
    assert len(list(kept.iterdir())) == 3


def test_a_step_is_saved_again_with_the_same_and_with_other_values(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
    model, session = opened
    inodes = []
    for number in (1, 1, 2):
        model.save(session, 9, step=3)
        inodes.append(os.stat(f'{model.save(session, number, step=4)}.{DATA}').st_ino)
        assert restored(tmp_path) == number
        assert set(os.listdir(tmp_path)) == files_of('model.ckpt-3', 'model.ckpt-4')
    # A checkpoint is not replaced by an equal one while somebody may be reading it; a damaged one
    # is.
    assert inodes[0] == inodes[1]
    damage(tmp_path / f'model.ckpt-4.{DATA}')
    model.save(session, 2, step=4)
    assert restored(tmp_path) == 2


def test_checkpoints_are_saved_on_a_file_system_without_links(
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


def test_saving_goes_on_beside_steps_of_another_thread(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
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
    latest = latest_checkpoint(str(tmp_path))
    assert latest is not None
    assert 0 <= tf.train.load_checkpoint(latest).get_tensor('global_step') <= steps
    assert len(os.listdir(tmp_path)) == len(files_of('one', 'another'))


def test_a_checkpoint_whose_variables_change_while_it_is_saved_is_given_up(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
    model, session = opened
    model.save(session, 3, step=1)
    session.run(model.set, {model.number: 8})
    with failed('model.ckpt-2'):
        model.checkpointer.save(session, 2, lambda: False)
    assert restored(tmp_path) == 3


def test_a_worker_writes_what_parameter_servers_hold(tmp_path: Path) -> None:
    with reserve_addresses(3) as [*ps, worker]:
        cluster = {'ps': ps, 'worker': [worker]}
        tasks = [('ps', 0), ('ps', 1), ('worker', 0)]
        *_, server = servers = [
            tf.train.Server(cluster, job_name=job, task_index=index) for job, index in tasks
        ]
    assert len(servers) == 3
    with tf.Graph().as_default():
        model = Model(
            tmp_path, ['/job:ps/task:0/cpu:0', '/job:ps/task:1/cpu:0'], '/job:worker/task:0/cpu:0'
        )
        with tf.Session(server.target) as session:
            prefix = model.save(session, 4, step=1)
            session.run(model.set, {model.number: 9})
            model.checkpointer.restore(session, prefix)
            assert model.number_in(session) == 4
            with failed(f'--train_dir={tmp_path}', 'File too large'), file_size_limit(1000):
                model.checkpointer.save(session, 2)
            assert restored(tmp_path) == 4
            damage(Path(f'{prefix}.{DATA}'))
            with failed(f'{prefix}.{DATA}', 'Checksum does not match'):
                model.checkpointer.restore(session, prefix)


def test_a_full_disk_is_named_and_leaves_earlier_checkpoints(
    tmp_path: Path, opened: tuple[Model, Any]
) -> None:
    model, session = opened
    model.save(session, 1, 1)
    for step in (1, 2):
        with (
            failed(f'--train_dir={tmp_path}', f'model.ckpt-{step}', 'File too large'),
            file_size_limit(1000),
        ):
            model.save(session, 2, step)
        assert restored(tmp_path) == 1
    model.save(session, 3, 3)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1', 'model.ckpt-3')


@pytest.mark.parametrize(
    ('folder', 'reason'), [('gone', 'No such file or directory'), ('file', 'Not a directory')]
)
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, folder: str, reason: str) -> None:
    (tmp_path / 'file').touch()
    with tf.Graph().as_default():
        model = Model(tmp_path / folder, cpus(1))
        with (
            open_session() as session,
            failed(f'--train_dir={tmp_path / folder}', 'model.ckpt-1', reason),
        ):
            model.save(session, 1, 1)
    assert not (tmp_path / 'gone').exists()


def test_an_error_of_the_session_is_not_reported_as_one_of_the_folder(
    opened: tuple[Model, Any],
) -> None:
    model, session = opened
    with pytest.raises(tf.errors.FailedPreconditionError):
        model.checkpointer.save(session, 1)
