"""When a task is lost, the others name it and end within seconds; a restarted cluster goes on.

A signal to all tasks ends them, and the chief saves its last step. A step that waits too long for
other tasks ends and names them; a slow step does not end.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from numpy.linalg import norm

from tests.distributed.clusters import ENDLESS, UNDER_WAY, assert_each_names, training
from tests.distributed.test_launched_clusters import needs_namespace
from tests.distributed.whole_batch import model_names, one_tower
from tests.support.files import quoted
from tests.support.oracles import Weights
from tests.support.programs import Tasks, run_process
from tests.support.runs import values_in
from tf_cnn.cluster.private_network import PrivateNetwork
from tf_cnn.system.tether import die_with_parent

pytestmark = pytest.mark.distributed


# All steps of a run, and the flag for the timed steps among them.
NUM_STEPS, STEPS = 300, '--num_batches=298'
# How long tasks take to end after a loss, and how much longer on a loaded machine.
LOSS_SECS, MARGIN_SECS = 15.0, 30.0
KILLED = -int(signal.SIGKILL)
# The first server, or worker 0 if there is none, stores how each task ended.
LOSSES = [
    ('staged', 'worker 1', 'SIGKILL'),
    ('collective_all_reduce', 'worker 1', 'SIGKILL'),
    ('collective_all_reduce', 'worker 0', 'SIGTERM'),
]


# Sums of 8 gradients in each of some 300 steps: √2400 roundings of float32, 6e-8 each. On another
# processor a unit near zero may also pass ReLU for one image more, once: this moved one of the 4096
# biases by 2e-5 of the largest, and their norm by 3e-6.
TOLERANCE = 1e-5


def weights_after(num_steps: int) -> Weights:
    """Returns the weights of one tower with the flags of TRAIN."""
    trained = one_tower(
        'plain_momentum',
        model=('trivial', 'cifar10'),
        num_towers=1,
        batch_size=4,
        num_steps=num_steps,
        learning_rate=0.002,
    )
    return trained.after


def differences(weights: Weights, num_steps: int) -> dict[str, float]:
    """Compares weights with one tower after this number of steps.

    Returns the Euclidean norm of the difference in each weight, relative to the norm of the weight.
    """
    expected = weights_after(num_steps)
    assert weights.keys() == expected.keys()
    # Optimizer slots shrink, and a difference relative to them would say nothing.
    return {
        name: float(norm(weights[name] - expected[name]) / norm(expected[name]))
        for name in model_names(expected)
    }


def assert_trained(mode: str, weights: Weights, num_steps: int) -> None:
    """Asserts that the weights are the result of this number of steps, each taken once."""
    assert weights['global_step'] == num_steps
    # After an interruption, the first staged step computes with current variables.
    if mode != 'staged' and num_steps:
        assert max(differences(weights, num_steps).values()) < TOLERANCE


def assert_last_step_saved(
    mode: str, tasks: Tasks, lost: str, folder: Path, *, is_killed: bool
) -> None:
    """Asserts that the chief's result names the lost task, and that it saved its last step."""
    chief = tasks.trainers[0]
    [record] = chief.results
    assert tasks[lost].title in (record.reason or '')
    weights = values_in(folder / 'train')
    # Variables are updated one by one: if a step had begun, nothing is saved after it.
    is_between_steps = 'a step is being applied' not in chief.err
    if is_between_steps and not (is_killed and tasks[lost] not in tasks.trainers):
        assert weights['global_step'] >= record.workers[0].steps.global_step[-1]
    assert_trained(mode, weights, int(weights['global_step']))


def test_one_step_less_changes_the_weights():
    """The other tests rely on this."""
    assert min(differences(weights_after(NUM_STEPS - 1), NUM_STEPS).values()) > 10 * TOLERANCE


@pytest.mark.parametrize(('mode', 'lost', 'name'), LOSSES)
def test_when_a_task_is_lost_all_others_name_it_and_end_and_the_chief_saves_its_last_step(
    mode, lost, name, tmp_path
):
    flags = (
        f'{ENDLESS} --train_dir={quoted(tmp_path)}/train '
        f'--result_file={quoted(tmp_path)}/result.json'
    )
    with training(mode, flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].send(signal.Signals[name])
        assert tasks[lost].has_ended(LOSS_SECS + MARGIN_SECS)
        is_killed = name == 'SIGKILL'
        tasks.assert_end(1, {lost: KILLED if is_killed else 128 + signal.SIGTERM})
        # A task that ends by itself says so, and the others need not wait for it.
        deadline_secs = MARGIN_SECS + LOSS_SECS * is_killed
        last = max(task.ended_at for task in tasks.all_but(lost))
        assert last - tasks[lost].ended_at < deadline_secs
        facts = [] if is_killed else [128 + signal.SIGTERM, name]
        assert_each_names(tasks.all_but(lost), tasks[lost].title, *facts)
        if lost != tasks.trainers[0].name:
            assert_last_step_saved(mode, tasks, lost, tmp_path, is_killed=is_killed)


@pytest.mark.parametrize(('lost', 'comes_back'), [('worker 0', False), ('worker 1', True)])
def test_an_asynchronous_worker_goes_on_without_the_other_which_may_come_back(
    lost, comes_back, tmp_path
):
    flags = f'--num_batches=998 --train_dir={quoted(tmp_path)}/train'
    with training('asynchronous', flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].kill()
        [survivor] = [worker for worker in tasks.of('worker') if worker.name != lost]
        if comes_back:
            # Otherwise the survivor would take all steps before.
            survivor.send(signal.SIGSTOP)
            tasks[lost].start()
            tasks[lost].await_line(r'^1\timages/sec', times=2)
            survivor.send(signal.SIGCONT)
        tasks.assert_end(0, {} if comes_back else {lost: KILLED})
    assert 'total images/sec' in survivor.out
    if comes_back:
        # Each worker may be within a step when the last one is counted.
        assert 0 <= values_in(tmp_path / 'train')['global_step'] - 2 * 1000 <= 2
    else:
        assert tasks[lost].title in tasks['ps 0'].err


def test_a_restarted_cluster_ends_at_the_same_step(tmp_path):
    """When the task is lost, the others name it, and the chief saves its last step."""
    mode, lost = 'parameter_server', 'worker 1'
    flags = (
        f'{STEPS} --train_dir={quoted(tmp_path)}/train --save_model_steps=40 '
        f'--result_file={quoted(tmp_path)}/result.json'
    )
    with training(mode, flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].kill()
        assert tasks[lost].exit_code == KILLED
        # The lost task restarts while the others end, and waits for their new processes.
        tasks[lost].start()
        for task in tasks.all_but(lost):
            assert task.has_ended(LOSS_SECS + MARGIN_SECS)
            assert task.exit_code == 1
        assert_each_names(tasks.all_but(lost), tasks[lost].title)
        assert_last_step_saved(mode, tasks, lost, tmp_path, is_killed=True)
        for task in tasks.all_but(lost):
            task.start()
        tasks.assert_end(0)
        assert all('total images/sec' in trainer.out for trainer in tasks.trainers)
        assert_trained(mode, values_in(tmp_path / 'train'), NUM_STEPS)


# ---- signals -------------------------------------------------------------------------------------

# The warning of an interrupted run, with the number of its timed steps.
INCOMPLETE = r'the run is incomplete: it timed (\d+) step'


def test_a_signal_to_all_ends_them_and_the_chief_saves_its_last_step(tmp_path):
    mode = 'parameter_server'
    with training(mode, f'{ENDLESS} --train_dir={quoted(tmp_path)}/train', tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        for task in tasks.values():
            task.send(signal.SIGTERM)
        tasks.assert_end(128 + signal.SIGTERM)
        for task in tasks.values():
            assert 'SIGTERM' in task.err, task.name
        [num_timed] = tasks.trainers[0].lines(INCOMPLETE)
        assert_trained(mode, values_in(tmp_path / 'train'), 2 + int(num_timed))


def test_a_signal_makes_the_chief_save_even_if_its_step_never_ends(tmp_path):
    """This happens when all receive the signal and one ends first."""
    mode = 'collective_all_reduce'
    with training(mode, f'{ENDLESS} --train_dir={quoted(tmp_path)}/train', tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        chief, worker = tasks['worker 0'], tasks['worker 1']
        worker.send(signal.SIGSTOP)
        chief.send(signal.SIGTERM)
        worker.kill()
        tasks.assert_end(1, {'worker 0': 128 + signal.SIGTERM, 'worker 1': KILLED})
        [num_timed] = chief.lines(INCOMPLETE)
        # A variable is updated when its gradients arrive, so some may be one step ahead.
        if 'a step is being applied' not in chief.err:
            assert_trained(mode, values_in(tmp_path / 'train'), 2 + int(num_timed))


def test_a_lingering_parameter_server_ends_with_a_signal(tmp_path):
    flags = '--num_batches=3 --ps_linger_secs=600'
    with training('parameter_server', flags, tmp_path) as tasks:
        tasks.start()
        for worker in tasks.of('worker'):
            assert worker.has_ended()
        # Without the flag it would end sooner.
        assert not tasks['ps 0'].has_ended(6)
        tasks['ps 0'].send(signal.SIGTERM)
        tasks.assert_end(0, {'ps 0': 128 + signal.SIGTERM})


def test_a_worker_that_is_lost_after_the_steps_leaves_a_complete_result(tmp_path):
    flags = f'--num_batches=1000 --result_file={quoted(tmp_path)}/result.json'
    with training('collective_all_reduce', flags, tmp_path) as tasks:
        tasks.start('^Taking steps of each worker alone$')
        tasks['worker 1'].kill()
        # As `cluster` does.
        tasks['worker 0'].send(signal.SIGTERM)
        tasks.assert_end(0, {'worker 1': KILLED})
        [result] = tasks.trainers[0].results
    assert result.is_complete
    assert 'workers_missing' in {warning.code for warning in result.warnings}
    assert not result.steps_alone


# ---- the limit of a step -------------------------------------------------------------------------


LIMIT = '--step_timeout_secs=5'


@needs_namespace
@pytest.mark.skipif(not shutil.which('ss'), reason='there is no ss')
@pytest.mark.skipif(os.geteuid() != 0, reason='only root can reset connections')
def test_when_a_workers_connections_are_cut_all_end_and_name_a_task_or_all_go_on(tmp_path):
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(contextlib.closing(PrivateNetwork()))
        places = [(f'127.0.0.1:{port}', network.pid) for port in (2222, 2223, 2224)]
        flags = f'{ENDLESS} {LIMIT}'
        cluster = training('parameter_server', flags, tmp_path, places=places)
        tasks = stack.enter_context(cluster)
        tasks.start(UNDER_WAY)

        def ss(*words: str) -> str:
            return run_process(die_with_parent(['ss', *words], network=network.pid)).out

        sockets = ss('-HtnpO', 'state', 'established').splitlines()
        connections = [line for line in sockets if f'pid={tasks["worker 1"].pid},' in line]
        assert connections
        for line in connections:
            a, b = re.findall(r':(\d+)(?=\s)', line)[:2]
            ss('-K', f'( sport = :{a} and dport = :{b} ) or ( sport = :{b} and dport = :{a} )')
        if tasks.still_running(5 + 60):
            # TensorFlow did not use the connections at this moment, and connects again.
            lines = tasks.trainers[0].out
            tasks.still_running(30)
            assert tasks.trainers[0].out != lines, 'some neither end nor go on'
            return
        for task in tasks.values():
            assert any('127.0.0.1:' in line for line in task.errors), task.name


def test_a_step_that_waits_for_a_stopped_worker_ends_and_names_it(tmp_path):
    """The worker's server still answers, so the worker does not count as lost."""
    flags = f'{ENDLESS} {LIMIT} --display_every=1'
    with training('parameter_server', flags, tmp_path) as tasks:
        chief, stuck = tasks['worker 0'], tasks['worker 1']
        # The worker stops when the pipe is full, since nobody reads its standard output.
        os.mkfifo(stuck.out_file)
        reader = os.open(stuck.out_file, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        # The pipe is removed: to read the logs from a pipe without a writer would block.
        try:
            tasks.start()
            chief.await_line(UNDER_WAY)
            assert chief.has_ended()
            assert chief.exit_code == 1
            assert_each_names([chief], 'a step has waited', stuck.title, LIMIT)
        finally:
            stuck.kill()
            os.close(reader)
            stuck.out_file.unlink()
        assert not tasks.still_running(30)


# A network with an operation that takes longer than the limit for silent tasks.
SLOW_MODEL = """
import time
import tensorflow.compat.v1 as tf
from tf_cnn_benchmarks import register_model

def network(cnn, x, num_classes):
    with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(9), [], [])]):
        x = tf.identity(x)
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')

register_model('slow', network, data_set='cifar10', image_size=32, learning_rate=0.05)
"""


def test_a_step_that_occupies_the_only_thread_does_not_count_as_a_lost_worker(tmp_path):
    (tmp_path / 'slow.py').write_text(SLOW_MODEL)
    flags = f'--model=slow --model_file={quoted(tmp_path)}/slow.py --num_inter_threads=1'
    flags += ' --num_warmup_batches=0 --num_batches=1'
    with training('collective_all_reduce', flags, tmp_path) as tasks:
        tasks.start()
        tasks.assert_end(0)
