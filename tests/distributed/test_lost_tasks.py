"""A task is lost: all others end within seconds and name it, and the cluster goes on when it is
started again.

A signal to all tasks ends them, too, and the chief saves its last step.
"""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.distributed.milestones import FIRST_STEP, INCOMPLETE, UNDER_WAY
from tests.distributed.processes import DEADLINE_SECS, await_line, cluster_command, launched
from tests.distributed.scenarios import (
    ENDLESS,
    FAILED,
    FLAGS,
    KILLED,
    LOSS_SECS,
    MARGIN_SECS,
    MODES,
    NUM_STEPS,
    NUM_WARMUP,
    NUM_WORKERS,
    TOLERANCE,
    assert_all_end,
    assert_each_names,
    assert_trained,
    cluster_of,
    differences,
    kill_under_way,
    others_of,
    scenarios,
    start_under_way,
    undisturbed,
)
from tests.support.runs import values_in
from tf_cnn.results.document import Result, read_result

pytestmark = pytest.mark.distributed
TASKS = (
    *(
        'parameter_server: worker 1',
        'parameter_server: worker 0',
        'parameter_server: ps 0',
        'two_servers: ps 1',
    ),
    *('staged: worker 1', 'distributed_replicated: worker 1', 'distributed_replicated: ps 0'),
    *('collective_all_reduce: worker 1', 'collective_all_reduce: worker 0'),
    *('distributed_all_reduce: worker 1', 'distributed_all_reduce: controller 0'),
)
# The first server, or without any worker 0, is where the others find how a task ended, itself
# included.
USUAL = (
    *('two_servers: worker 1: SIGKILL', 'collective_all_reduce: worker 1: SIGKILL'),
    *('parameter_server: worker 1: SIGTERM', 'collective_all_reduce: worker 0: SIGTERM'),
)
OTHERS = [f'{task}: {name}' for task in TASKS for name in ('SIGKILL', 'SIGTERM')]


def test_a_step_more_or_less_would_be_seen_in_the_weights() -> None:
    """What the other tests rely on."""
    assert min(differences(undisturbed(NUM_STEPS - 1), undisturbed(NUM_STEPS)).values()) > TOLERANCE


@pytest.mark.parametrize(
    ('mode', 'lost', 'name'),
    scenarios(USUAL, [scenario for scenario in OTHERS if scenario not in USUAL]),
)
def test_all_others_end_and_name_it_and_the_chief_saves_its_last_whole_step(
    mode: str, lost: str, name: str, tmp_path: Path
) -> None:
    path, number = tmp_path / 'result.json', signal.Signals[name]
    outputs = f'--train_dir={tmp_path / "train"}', f'--result_file={path}'
    with cluster_of(mode, tmp_path, ENDLESS, *outputs) as processes:
        start_under_way(processes)
        processes.tasks[lost].send(number)
        assert processes.tasks[lost].has_ended(LOSS_SECS + MARGIN_SECS)
        exit_code = KILLED if number == signal.SIGKILL else 128 + number
        assert_all_end(processes, FAILED, **{lost: exit_code})
        others = others_of(processes, lost)
        # A task that ends by itself says so: nobody waits for it.
        deadline_secs = MARGIN_SECS + (LOSS_SECS if exit_code == KILLED else 0)
        assert (
            max(task.ended_at for task in others) - processes.tasks[lost].ended_at < deadline_secs
        )
        assert_each_names(
            others, processes.described(lost), *([] if exit_code == KILLED else [exit_code, name])
        )
        chief = processes.trainers[0].name
        if lost == chief:
            return
        record = read_result(path)
        assert isinstance(record, Result)
        assert processes.described(lost) in (record.reason or '')
        steps = record.workers[0].steps.global_step
        weights = values_in(tmp_path / 'train')
        # Variables are updated one by one: a step that had begun leaves the last checkpoint.
        is_between_steps = 'a step is being applied' not in processes.trainers[0].err
        if is_between_steps and (
            number == signal.SIGTERM or lost not in [task.name for task in processes.servers]
        ):
            assert weights['global_step'] >= steps[-1]
        if MODES[mode].is_exact and weights['global_step']:
            assert_trained(weights, int(weights['global_step']))


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['staged: worker 1', 'two_servers: ps 1'],
        [
            *(
                'parameter_server: worker 0',
                'parameter_server: worker 1',
                'parameter_server: ps 0',
                'staged: ps 0',
            ),
            *('asynchronous: worker 1', 'asynchronous: ps 0', 'distributed_replicated: ps 0'),
            *('collective_all_reduce: worker 0', 'collective_all_reduce: worker 1'),
            *('distributed_all_reduce: worker 0', 'distributed_all_reduce: worker 1'),
        ],
    ),
)
def test_tasks_that_their_launcher_stops_after_a_loss_name_the_lost_task(
    mode: str, lost: str, tmp_path: Path
) -> None:
    """The signal of the launcher comes before they have noticed."""
    path, kind = tmp_path / 'result.json', MODES[mode]
    servers = [f'--ps={kind.num_ps}'] if kind.num_ps else []
    words = (*servers, '--verbose', '--', *FLAGS, *kind.flags, ENDLESS, f'--result_file={path}')
    with launched(cluster_command(*words), tmp_path) as cluster:
        await_line(cluster, UNDER_WAY)
        pids = dict(
            re.findall(r'^(\w+ \d+) is process (\d+) of this machine', cluster.err, re.MULTILINE)
        )
        os.kill(int(pids.pop(lost)), signal.SIGKILL)
        assert cluster.has_ended(LOSS_SECS + MARGIN_SECS)
        assert cluster.exit_code == -KILLED + 128
        for task in pids:
            lines = re.findall(
                rf'^{task} +\| tf_cnn_benchmarks: (?:error|warning): (.*)$',
                cluster.err,
                re.MULTILINE,
            )
            assert any(
                re.search(rf'{lost} \(127\.0\.0\.1:\d+\) was lost', line) for line in lines
            ), task
    if not lost.startswith('worker 0') or kind.num_controllers:
        record = read_result(path)
        assert isinstance(record, Result)
        assert re.search(rf'{lost} \(127\.0\.0\.1:\d+\) was lost', record.reason or '')


@pytest.mark.parametrize(
    ('mode', 'lost'), scenarios([], ['asynchronous: worker 0', 'asynchronous: worker 1'])
)
def test_workers_that_do_not_wait_go_on_when_one_is_killed(
    mode: str, lost: str, tmp_path: Path
) -> None:
    with cluster_of(mode, tmp_path, MODES[mode].limited, f'--train_dir={tmp_path}') as processes:
        kill_under_way(processes, lost)
        assert_all_end(processes, 0, **{lost: KILLED})
        [left] = [worker for worker in processes.of('worker') if worker.name != lost]
        assert 'total images/sec' in left.out
        assert processes.described(lost) in processes.tasks['ps 0'].err
        if lost == 'worker 1':
            # They take the steps of the one that was lost.
            assert values_in(tmp_path)['global_step'] >= NUM_WORKERS * MODES[mode].num_steps


@pytest.mark.parametrize(
    ('mode', 'lost'), scenarios([], ['asynchronous: worker 0', 'asynchronous: worker 1'])
)
def test_a_worker_that_does_not_wait_comes_back_alone(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(
        mode, tmp_path, MODES[mode].limited, f'--train_dir={tmp_path / "train"}'
    ) as processes:
        kill_under_way(processes, lost)
        # Otherwise the others would have taken all steps before it is there.
        [left] = [worker for worker in processes.of('worker') if worker.name != lost]
        left.send(signal.SIGSTOP)
        processes.tasks[lost].start()
        await_line(processes.tasks[lost], FIRST_STEP, times=2)
        left.send(signal.SIGCONT)
        assert_all_end(processes, 0)
        # Each worker may be within a step when the last one is counted.
        steps = values_in(tmp_path / 'train')['global_step'] - NUM_WORKERS * MODES[mode].num_steps
        assert 0 <= steps <= 2 * (NUM_WORKERS - 1)


@pytest.mark.parametrize(
    ('mode', 'lost'), scenarios(TASKS[:1], [*TASKS[1:], 'two_servers: worker 1'])
)
def test_a_cluster_that_is_started_again_ends_at_the_same_step(
    mode: str, lost: str, tmp_path: Path
) -> None:
    outputs = f'--train_dir={tmp_path / "train"}', '--save_model_steps=10'
    with cluster_of(mode, tmp_path, MODES[mode].limited, *outputs) as processes:
        kill_under_way(processes, lost)
        # It comes back while the others still end, and waits for their new processes.
        processes.tasks[lost].start()
        for task in others_of(processes, lost):
            assert task.has_ended(LOSS_SECS + MARGIN_SECS)
            assert task.exit_code == FAILED
        for task in others_of(processes, lost):
            task.start()
        assert_all_end(processes, 0)
        assert all('total images/sec' in trainer.out for trainer in processes.trainers)
        weights = values_in(tmp_path / 'train')
        assert weights['global_step'] == NUM_STEPS
        if MODES[mode].is_exact:
            assert_trained(weights, NUM_STEPS)


# ---- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('mode', 'name'),
    scenarios(
        ['parameter_server: SIGTERM'],
        [
            *(
                'parameter_server: SIGINT',
                'collective_all_reduce: SIGTERM',
                'collective_all_reduce: SIGINT',
            ),
            *('distributed_replicated: SIGTERM', 'distributed_replicated: SIGINT'),
            'distributed_all_reduce: SIGTERM',
        ],
    ),
)
def test_a_signal_to_all_ends_them_and_the_chief_saves_its_last_step(
    mode: str, name: str, tmp_path: Path
) -> None:
    number = signal.Signals[name]
    with cluster_of(mode, tmp_path, ENDLESS, f'--train_dir={tmp_path / "train"}') as processes:
        start_under_way(processes)
        for task in processes.tasks.values():
            task.send(number)
        assert_all_end(processes, 128 + number)
        for task in processes.tasks.values():
            assert name in task.err, task.name
        timed = re.search(INCOMPLETE, processes.trainers[0].err)
        assert timed
        assert_trained(values_in(tmp_path / 'train'), NUM_WARMUP + int(timed[1]))


@pytest.mark.parametrize(
    ('mode', 'gone'),
    scenarios(
        ['collective_all_reduce: worker 1'],
        ['parameter_server: worker 1', 'distributed_replicated: worker 1'],
    ),
)
def test_a_signal_makes_the_chief_save_even_if_its_step_never_ends(
    mode: str, gone: str, tmp_path: Path
) -> None:
    """This happens when all get the signal, and one of them ends before the others."""
    # Less than a step may take to its end after a signal.
    flags = (ENDLESS, f'--train_dir={tmp_path / "train"}')
    with cluster_of(mode, tmp_path, *flags) as processes:
        start_under_way(processes)
        chief = processes.tasks['worker 0']
        processes.tasks[gone].send(signal.SIGSTOP)
        chief.send(signal.SIGTERM)
        processes.tasks[gone].kill()
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, FAILED, **{'worker 0': exit_code, gone: KILLED})
        timed = re.search(INCOMPLETE, chief.err)
        assert timed
        # A variable is updated as soon as its gradients are there, so some may
        # be ahead.
        if 'a step is being applied' not in chief.err:
            assert_trained(values_in(tmp_path / 'train'), NUM_WARMUP + int(timed[1]))


def test_a_parameter_server_lingers_when_asked_until_a_signal_ends_it(tmp_path: Path) -> None:
    with cluster_of(
        'parameter_server', tmp_path, '--num_batches=3', '--ps_linger_secs=600'
    ) as processes:
        processes.start()
        for worker in processes.of('worker'):
            assert worker.has_ended(DEADLINE_SECS)
        server = processes.tasks['ps 0']
        # By itself it would end in less.
        assert not server.has_ended(6)
        server.send(signal.SIGTERM)
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, 0, MARGIN_SECS, **{'ps 0': exit_code})
