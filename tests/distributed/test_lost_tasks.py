"""A task is lost: all others end within seconds and name it, and the cluster goes on when it is
started again.

A signal to all tasks ends them, too, and the chief saves its last step.
"""

import os
import re
import signal

import numpy as np
import pytest

from tests.distributed.clusters import (
    ENDLESS,
    FIRST_STEP,
    MODES,
    TRAIN,
    UNDER_WAY,
    all_modes,
    assert_each_names,
    cluster_command,
    training,
)
from tests.distributed.whole_batch import one_tower
from tests.support.oracles import Weights
from tests.support.programs import launched
from tests.support.runs import values_in
from tf_cnn.results.document import Result, read_result

pytestmark = pytest.mark.distributed

# All steps of a run, and how many of these are timed. Where workers do not wait for each other
# there are more, so that one that starts late takes some, too.
NUM_STEPS, STEPS = 100, '--num_batches=98'
NUM_STEPS_APART, STEPS_APART = 300, '--num_batches=298'
# How long the others take to end after a loss, and how much longer a loaded machine may take.
LOSS_SECS, MARGIN_SECS = 15.0, 30.0
KILLED = -int(signal.SIGKILL)
LOSSES = [
    ('parameter_server', 'worker 1'),
    ('parameter_server', 'worker 0'),
    ('parameter_server', 'ps 0'),
    ('two_servers', 'ps 1'),
    ('staged', 'worker 1'),
    ('distributed_replicated', 'worker 1'),
    ('distributed_replicated', 'ps 0'),
    ('collective_all_reduce', 'worker 1'),
    ('collective_all_reduce', 'worker 0'),
    ('distributed_all_reduce', 'worker 1'),
    ('distributed_all_reduce', 'controller 0'),
]
# The first server, or without any worker 0, is where the others find how a task ended, itself
# included.
USUAL = [
    ('two_servers', 'worker 1', 'SIGKILL'),
    ('staged', 'worker 1', 'SIGKILL'),
    ('collective_all_reduce', 'worker 1', 'SIGKILL'),
    ('parameter_server', 'worker 1', 'SIGTERM'),
    ('collective_all_reduce', 'worker 0', 'SIGTERM'),
]
OTHERS = [(*loss, name) for loss in LOSSES for name in ('SIGKILL', 'SIGTERM')]


def differences(weights: Weights, num_steps: int) -> dict[str, float]:
    """Of each weight the largest difference to that of one tower that took so many steps, relative
    to its largest magnitude.
    """
    expected = one_tower(
        'plain_momentum', num_towers=1, batch_size=4, num_steps=num_steps, learning_rate=0.002
    ).after
    assert weights.keys() == expected.keys()
    # The optimizer's variables shrink, and with them what theirs would be relative to.
    return {
        name: float(np.abs(weights[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
        if name.endswith(('/kernel', '/bias'))
    }


def assert_trained(mode: str, weights: Weights, num_steps: int) -> None:
    """Asserts that they are those of so many steps, none of which was lost or taken twice."""
    assert weights['global_step'] == num_steps
    # The first staged step after an interruption computes with variables that lack no update.
    if mode not in ('staged', 'asynchronous') and num_steps:
        assert max(differences(weights, num_steps).values()) < 1e-5


def test_a_step_more_or_less_would_be_seen_in_the_weights():
    """What the other tests rely on."""
    before = one_tower(
        'plain_momentum', num_towers=1, batch_size=4, num_steps=NUM_STEPS - 1, learning_rate=0.002
    ).after
    assert min(differences(before, NUM_STEPS).values()) > 1e-5


@pytest.mark.parametrize(
    ('mode', 'lost', 'name'), [*USUAL, *all_modes(*(row for row in OTHERS if row not in USUAL))]
)
def test_all_others_end_and_name_it_and_the_chief_saves_its_last_whole_step(
    mode, lost, name, tmp_path
):
    flags = f'{ENDLESS} --train_dir={tmp_path}/train --result_file={tmp_path}/result.json'
    is_killed = name == 'SIGKILL'
    with training(mode, flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].send(signal.Signals[name])
        assert tasks[lost].has_ended(LOSS_SECS + MARGIN_SECS)
        tasks.assert_end(1, {lost: KILLED if is_killed else 128 + signal.SIGTERM})
        # A task that ends by itself says so: nobody waits for it.
        deadline_secs = MARGIN_SECS + LOSS_SECS * is_killed
        last = max(task.ended_at for task in tasks.others(lost))
        assert last - tasks[lost].ended_at < deadline_secs
        facts = [] if is_killed else [128 + signal.SIGTERM, name]
        assert_each_names(tasks.others(lost), tasks[lost].title, *facts)
        chief = tasks.trainers[0]
        if lost == chief.name:
            return
        record = read_result(tmp_path / 'result.json')
        assert isinstance(record, Result)
        assert tasks[lost].title in (record.reason or '')
        weights = values_in(tmp_path / 'train')
        # Variables are updated one by one: a step that had begun leaves the last checkpoint.
        is_between_steps = 'a step is being applied' not in chief.err
        if is_between_steps and not (is_killed and tasks[lost] not in tasks.trainers):
            assert weights['global_step'] >= record.workers[0].steps.global_step[-1]
        assert_trained(mode, weights, int(weights['global_step']))


@pytest.mark.parametrize(
    ('mode', 'lost'),
    [
        ('two_servers', 'ps 1'),
        *all_modes(
            ('staged', 'worker 1'),
            ('parameter_server', 'worker 0'),
            ('parameter_server', 'worker 1'),
            ('parameter_server', 'ps 0'),
            ('staged', 'ps 0'),
            ('asynchronous', 'worker 1'),
            ('asynchronous', 'ps 0'),
            ('distributed_replicated', 'ps 0'),
            ('collective_all_reduce', 'worker 0'),
            ('collective_all_reduce', 'worker 1'),
            ('distributed_all_reduce', 'worker 0'),
            ('distributed_all_reduce', 'worker 1'),
        ),
    ],
)
def test_tasks_that_their_launcher_stops_after_a_loss_name_the_lost_task(mode, lost, tmp_path):
    """The signal of the launcher comes before they have noticed."""
    mode_flags, jobs = MODES[mode]
    servers = f'--ps={jobs["ps"]}' if 'ps' in jobs else ''
    path = tmp_path / 'result.json'
    words = f'{servers} --verbose -- {TRAIN} {mode_flags} {ENDLESS} --result_file={path}'
    reason = rf'{lost} \(127\.0\.0\.1:\d+\) was lost'
    with launched(cluster_command(words), tmp_path) as launcher:
        launcher.await_line(UNDER_WAY)
        pids = dict(launcher.lines(r'^(\w+ \d+) is process (\d+) of this machine'))
        os.kill(int(pids.pop(lost)), signal.SIGKILL)
        assert launcher.has_ended(LOSS_SECS + MARGIN_SECS)
        assert launcher.exit_code == 128 + signal.SIGKILL
        for task in pids:
            message = rf'^{task} +\| tf_cnn_benchmarks: (?:error|warning): .*{reason}'
            assert launcher.lines(message), task
    if lost != 'worker 0' or 'controllers' in jobs:
        record = read_result(path)
        assert isinstance(record, Result)
        assert re.search(reason, record.reason or '')


@pytest.mark.all_modes
@pytest.mark.parametrize('lost', ['worker 0', 'worker 1'])
def test_workers_that_do_not_wait_go_on_when_one_is_killed(lost, tmp_path):
    with training('asynchronous', f'{STEPS_APART} --train_dir={tmp_path}', tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].kill()
        tasks.assert_end(0, {lost: KILLED})
        [left] = [worker for worker in tasks.of('worker') if worker.name != lost]
        assert 'total images/sec' in left.out
        assert tasks[lost].title in tasks['ps 0'].err
        if lost == 'worker 1':
            # They take the steps of the one that was lost.
            assert values_in(tmp_path)['global_step'] >= 2 * NUM_STEPS_APART


@pytest.mark.all_modes
@pytest.mark.parametrize('lost', ['worker 0', 'worker 1'])
def test_a_worker_that_does_not_wait_comes_back_alone(lost, tmp_path):
    flags = f'{STEPS_APART} --train_dir={tmp_path}/train'
    with training('asynchronous', flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].kill()
        # Otherwise the others would have taken all steps before it is there.
        [left] = [worker for worker in tasks.of('worker') if worker.name != lost]
        left.send(signal.SIGSTOP)
        tasks[lost].start()
        tasks[lost].await_line(FIRST_STEP, times=2)
        left.send(signal.SIGCONT)
        tasks.assert_end(0)
        # Each worker may be within a step when the last one is counted.
        assert 0 <= values_in(tmp_path / 'train')['global_step'] - 2 * NUM_STEPS_APART <= 2


@pytest.mark.parametrize(
    ('mode', 'lost'), [LOSSES[0], *all_modes(*LOSSES[1:], ('two_servers', 'worker 1'))]
)
def test_a_cluster_that_is_started_again_ends_at_the_same_step(mode, lost, tmp_path):
    flags = f'{STEPS} --train_dir={tmp_path}/train --save_model_steps=10'
    with training(mode, flags, tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        tasks[lost].kill()
        assert tasks[lost].exit_code == KILLED
        # It comes back while the others still end, and waits for their new processes.
        tasks[lost].start()
        for task in tasks.others(lost):
            assert task.has_ended(LOSS_SECS + MARGIN_SECS)
            assert task.exit_code == 1
        for task in tasks.others(lost):
            task.start()
        tasks.assert_end(0)
        assert all('total images/sec' in trainer.out for trainer in tasks.trainers)
        assert_trained(mode, values_in(tmp_path / 'train'), NUM_STEPS)


# ---- signals -------------------------------------------------------------------------------------

# A run that was interrupted has measured less than it should have; the number of timed steps.
INCOMPLETE = r'the run is incomplete: it timed (\d+) step'


@pytest.mark.parametrize(
    ('mode', 'name'),
    [
        ('parameter_server', 'SIGTERM'),
        *all_modes(
            ('parameter_server', 'SIGINT'),
            ('collective_all_reduce', 'SIGTERM'),
            ('collective_all_reduce', 'SIGINT'),
            ('distributed_replicated', 'SIGTERM'),
            ('distributed_replicated', 'SIGINT'),
            ('distributed_all_reduce', 'SIGTERM'),
        ),
    ],
)
def test_a_signal_to_all_ends_them_and_the_chief_saves_its_last_step(mode, name, tmp_path):
    with training(mode, f'{ENDLESS} --train_dir={tmp_path}/train', tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        for task in tasks.values():
            task.send(signal.Signals[name])
        tasks.assert_end(128 + signal.Signals[name])
        for task in tasks.values():
            assert name in task.err, task.name
        [num_timed] = tasks.trainers[0].lines(INCOMPLETE)
        assert_trained(mode, values_in(tmp_path / 'train'), 2 + int(num_timed))


@pytest.mark.parametrize(
    'mode',
    ['collective_all_reduce', *all_modes(('parameter_server',), ('distributed_replicated',))],
)
def test_a_signal_makes_the_chief_save_even_if_its_step_never_ends(mode, tmp_path):
    """This happens when all get the signal, and one of them ends before the others."""
    with training(mode, f'{ENDLESS} --train_dir={tmp_path}/train', tmp_path) as tasks:
        tasks.start(UNDER_WAY)
        chief, gone = tasks['worker 0'], tasks['worker 1']
        gone.send(signal.SIGSTOP)
        chief.send(signal.SIGTERM)
        gone.kill()
        tasks.assert_end(1, {'worker 0': 128 + signal.SIGTERM, 'worker 1': KILLED})
        [num_timed] = chief.lines(INCOMPLETE)
        # A variable is updated as soon as its gradients are there, so some may be ahead.
        if 'a step is being applied' not in chief.err:
            assert_trained(mode, values_in(tmp_path / 'train'), 2 + int(num_timed))


def test_a_parameter_server_lingers_when_asked_until_a_signal_ends_it(tmp_path):
    flags = '--num_batches=3 --ps_linger_secs=600'
    with training('parameter_server', flags, tmp_path) as tasks:
        tasks.start()
        for worker in tasks.of('worker'):
            assert worker.has_ended()
        # By itself it would end in less.
        assert not tasks['ps 0'].has_ended(6)
        tasks['ps 0'].send(signal.SIGTERM)
        tasks.assert_end(0, {'ps 0': 128 + signal.SIGTERM}, secs=MARGIN_SECS)
