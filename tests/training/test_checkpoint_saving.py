"""Saving checkpoints: TensorFlow reads them, the oldest are deleted, and faults of the folder are
reported.
"""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow.compat.v1 as tf

from tests.support.files import file_size_limit
from tests.support.images import flip_a_bit
from tests.support.outputs import failed
from tests.support.runs import values_in
from tests.training.number_model import DATA, NumberModel, files_of, open_model, restored
from tf_cnn.launch.hosts import reserve_addresses
from tf_cnn.training.checkpoint_files import READY_FOLDER, UNFINISHED_FOLDER, latest_checkpoint

pytestmark = pytest.mark.graph


def test_tensorflow_reads_what_was_saved(tmp_path, model):
    prefix = model.save(7, step=30)
    assert prefix == str(tmp_path / 'model.ckpt-30')
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-30')
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix == latest_checkpoint(str(tmp_path))
    values = values_in(prefix)
    # The variable is of 16 bits; the checkpoint has 32, which every run can read.
    assert {name: (value.dtype, value.shape) for name, value in values.items()} == {
        'global_step': ('int64', ()),
        'net/bias': ('float32', (3,)),
        'net/kernel': ('float32', (50, 40)),
        'net/table': ('float32', (6, 4)),
    }
    assert all((value == 7).all() for value in values.values())


def test_no_file_but_the_oldest_checkpoints_of_all_runs_is_deleted(tmp_path, model):
    for step in (10, 20):
        model.save(step, step)
    for suffix in ('index', DATA):
        shutil.copy(tmp_path / f'model.ckpt-10.{suffix}', tmp_path / f'model.ckpt-10-best.{suffix}')
    # The next run starts anew, so that its steps are smaller.
    with open_model(tmp_path, max_to_keep=2) as run:
        for step, earlier in (5, 20), (6, 5):
            run.save(step, step)
            names = [f'model.ckpt-{number}' for number in (earlier, step)]
            assert set(os.listdir(tmp_path)) == files_of(*names, 'model.ckpt-10-best')
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.all_model_checkpoint_paths == [str(tmp_path / name) for name in names]


def test_all_checkpoints_are_kept_without_a_limit(tmp_path):
    with open_model(tmp_path, max_to_keep=0) as run:
        for step in range(1, 8):
            run.save(step, step)
    assert set(os.listdir(tmp_path)) == files_of(*(f'model.ckpt-{step}' for step in range(1, 8)))


@pytest.mark.parametrize('stage', [UNFINISHED_FOLDER, READY_FOLDER])
@pytest.mark.parametrize('is_link', [False, True])
def test_saving_removes_no_stage_that_is_a_link_or_holds_other_files(
    tmp_path, model, stage, is_link
):
    folder = tmp_path / ('elsewhere' if is_link else stage)
    folder.mkdir()
    for file in ('twin' if is_link else 'notes', 'model.ckpt-3.index', f'model.ckpt-3.{DATA}'):
        (folder / file).write_text('mine')
    if is_link:
        (tmp_path / stage).symlink_to(folder)
    with failed(f'--train_dir={tmp_path}', tmp_path / stage) as caught:
        model.save(7, step=30)
    assert 'disk space' not in str(caught.value)
    assert [file.read_text() for file in folder.iterdir()] == ['mine'] * 3


def test_a_step_is_saved_again_with_the_same_and_with_other_values(tmp_path, model):
    inodes = []
    for number in (1, 1, 2):
        model.save(9, step=3)
        inodes.append(os.stat(f'{model.save(number, step=4)}.{DATA}').st_ino)
        assert restored(tmp_path) == number
        assert set(os.listdir(tmp_path)) == files_of('model.ckpt-3', 'model.ckpt-4')
    # A checkpoint is not replaced by an equal one while somebody may be reading it; a damaged one
    # is.
    assert inodes[0] == inodes[1]
    flip_a_bit(tmp_path / f'model.ckpt-4.{DATA}')
    model.save(2, step=4)
    assert restored(tmp_path) == 2


def test_checkpoints_are_saved_on_a_file_system_without_links(tmp_path, model, monkeypatch):
    def no_link(*paths: object) -> None:
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(os, 'link', no_link)
    for number in (1, 2):
        model.save(number, step=3)
        assert restored(tmp_path) == number
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-3')


def test_saving_goes_on_beside_steps_of_another_thread(tmp_path, model):
    model.set_number(0)
    is_over = threading.Event()

    def run_steps() -> int:
        steps = 0
        while not is_over.is_set():
            model.add_one()
            steps += 1
        return steps

    with ThreadPoolExecutor() as threads:
        stepper = threads.submit(run_steps)
        try:
            savings = [
                threads.submit(model.checkpointer.save, model.session, step) for step in range(10)
            ]
            for saving in savings:
                saving.result(60)
        finally:
            is_over.set()
    assert 0 <= values_in(latest_checkpoint(str(tmp_path)) or '')['global_step'] <= stepper.result()
    assert len(os.listdir(tmp_path)) == len(files_of('one', 'another'))


def test_a_checkpoint_whose_variables_change_while_it_is_saved_is_given_up(tmp_path, model):
    model.save(3, step=1)
    model.set_number(8)
    with failed('model.ckpt-2'):
        model.checkpointer.save(model.session, 2, lambda: False)
    assert restored(tmp_path) == 3


def test_a_worker_writes_what_parameter_servers_hold(tmp_path):
    with reserve_addresses(3) as [*ps, worker]:
        cluster = {'ps': ps, 'worker': [worker]}
        servers = [
            tf.train.Server(cluster, job_name=job, task_index=index)
            for job, index in (('ps', 0), ('ps', 1), ('worker', 0))
        ]
    with tf.Graph().as_default(), tf.Session(servers[-1].target) as session:
        devices = ['/job:ps/task:0/cpu:0', '/job:ps/task:1/cpu:0']
        model = NumberModel(session, tmp_path, devices, '/job:worker/task:0/cpu:0')
        prefix = model.save(4, step=1)
        model.set_number(9)
        model.checkpointer.restore(session, prefix)
        assert model.number() == 4


def test_a_full_disk_is_named_and_leaves_earlier_checkpoints(tmp_path, model):
    model.save(1, step=1)
    for step in (1, 2):
        facts = (f'--train_dir={tmp_path}', f'model.ckpt-{step}', 'File too large', 'disk space')
        with failed(*facts), file_size_limit(1000):
            model.save(2, step)
        assert restored(tmp_path) == 1
    model.save(3, step=3)
    assert set(os.listdir(tmp_path)) == files_of('model.ckpt-1', 'model.ckpt-3')


def test_an_error_of_the_session_is_not_reported_as_a_fault_of_the_folder(model):
    with pytest.raises(tf.errors.FailedPreconditionError):
        model.checkpointer.save(model.session, 1)
