"""A task is killed as kill -9 does: the others end and name it, or training goes on when it is started again."""

from pathlib import Path

import pytest

from results.document import Record, read_file
from tests.distributed.milestones import FIRST_STEP
from tests.distributed.processes import Processes, await_line
from tests.distributed.scenarios import (
    ENDLESS,
    FAILED,
    IMPATIENT,
    KILLED,
    MARGIN_SECS,
    MODES,
    NUM_STEPS,
    NUM_WORKERS,
    PATIENT,
    PEER_SECS,
    TOLERANCE,
    assert_all_end,
    assert_each_names,
    assert_trained,
    cluster_of,
    differences,
    errors_of,
    kill_under_way,
    others_of,
    paused,
    saved,
    scenarios,
    undisturbed,
)

pytestmark = pytest.mark.distributed


def result_in(path: Path) -> Record:
    record = read_file(path)
    assert isinstance(record, Record)
    return record


def test_a_step_more_or_less_would_be_seen_in_the_weights() -> None:
    """What the other tests rely on."""
    assert min(differences(undisturbed(NUM_STEPS - 1), undisturbed(NUM_STEPS)).values()) > TOLERANCE


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['collective_all_reduce: worker 1'],
        [
            *(
                'parameter_server: worker 1',
                'parameter_server: worker 0',
                'two_servers: worker 1',
                'staged: worker 1',
                'staged: worker 0',
            ),
            *(
                'distributed_replicated: worker 1',
                'distributed_replicated: worker 0',
                'collective_all_reduce: worker 0',
                'distributed_all_reduce: controller 0',
            ),
        ],
    ),
)
def test_the_others_end_when_a_worker_is_killed_and_name_it(mode: str, lost: str, tmp_path: Path) -> None:
    path = tmp_path / 'result.json'
    with cluster_of(mode, tmp_path, ENDLESS, IMPATIENT, f'--result_file={path}') as processes:
        killed_at = kill_under_way(processes, lost)
        assert_all_end(processes, FAILED, **{lost: KILLED})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - killed_at < PEER_SECS + MARGIN_SECS
        assert_each_names(others, processes.described(lost), f'--peer_timeout_secs={PEER_SECS}')
        if lost == 'worker 1':
            # The chief, which writes the result, is left.
            record = result_in(path)
            assert processes.described(lost) in (record.reason or '')
            assert [worker['task'] for worker in record.document['workers']] == ['worker 0']
            assert record.document['workers'][0]['steps']['seconds']


@pytest.mark.parametrize(('mode', 'lost'), scenarios([], ['asynchronous: worker 0', 'asynchronous: worker 1']))
def test_workers_that_do_not_wait_go_on_when_one_is_killed(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, MODES[mode].limited, IMPATIENT, f'--train_dir={tmp_path}') as processes:
        kill_under_way(processes, lost)
        assert_all_end(processes, 0, **{lost: KILLED})
        [left] = [worker for worker in processes.of('worker') if worker.name != lost]
        assert 'total images/sec' in left.out
        assert processes.described(lost) in processes.tasks['ps 0'].err
        if lost == 'worker 1':
            # They take the steps of the one that was lost.
            assert saved(tmp_path)['global_step'] >= NUM_WORKERS * MODES[mode].num_steps


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['collective_all_reduce: worker 1'],
        [
            *('distributed_replicated: worker 0', 'asynchronous: worker 1'),
            *('parameter_server: worker 0', 'parameter_server: worker 1', 'two_servers: worker 0'),
            *('two_servers: worker 1', 'staged: worker 0', 'staged: worker 1', 'asynchronous: worker 0'),
            *('distributed_replicated: worker 1', 'collective_all_reduce: worker 0'),
        ],
    ),
)
def test_a_killed_worker_that_is_started_again_costs_no_step(mode: str, lost: str, tmp_path: Path) -> None:
    path = tmp_path / 'result.json'
    outputs = f'--train_dir={tmp_path / "train"}', f'--result_file={path}'
    with cluster_of(mode, tmp_path, MODES[mode].limited, PATIENT, *outputs) as processes:
        kill_under_way(processes, lost)
        left = [worker for worker in processes.of('worker') if worker.name != lost]
        # Those that do not wait for it would have taken all steps before it is there.
        with paused([] if MODES[mode].together else left):
            processes.tasks[lost].start()
            await_line(processes.tasks[lost], FIRST_STEP, times=2)
        assert_all_end(processes, 0)
        assert_recovered(mode, processes, tmp_path / 'train')
        record = result_in(path)
        assert record.is_complete
        assert [worker['task'] for worker in record.document['workers']] == ['worker 0', 'worker 1']
        steps = record.document['workers'][0]['steps']
        assert steps['start'] == sorted(steps['start'])
        if MODES[mode].together and lost == 'worker 1':
            # The chief started itself anew, and kept its steps.
            assert set(steps['generation']) == {1, 2}
            assert len(record.step_seconds()) < len(steps['seconds'])


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['two_servers: ps 0'],
        [
            *('distributed_all_reduce: worker 1', 'distributed_replicated: ps 1'),
            *('parameter_server: ps 0', 'two_servers: ps 1', 'staged: ps 0', 'asynchronous: ps 0'),
            *(
                'distributed_replicated: ps 0',
                'distributed_all_reduce: worker 0',
                'distributed_all_reduce: controller 0',
            ),
        ],
    ),
)
def test_training_goes_on_from_the_last_checkpoint_when_a_task_that_held_variables_is_started_again(
    mode: str, lost: str, tmp_path: Path
) -> None:
    keeping = (f'--train_dir={tmp_path / "train"}', '--save_model_steps=10')
    with cluster_of(mode, tmp_path, MODES[mode].limited, PATIENT, *keeping) as processes:
        kill_under_way(processes, lost)
        processes.tasks[lost].start()
        assert_all_end(processes, 0)
        assert_recovered(mode, processes, tmp_path / 'train')


def assert_recovered(mode: str, processes: Processes, train_dir: Path) -> None:
    """Asserts that the run ended as one would have in which nothing was lost."""
    assert not any(errors_of(task) for task in processes.tasks.values())
    # Also of those that started themselves anew.
    assert all('total images/sec' in trainer.out for trainer in processes.trainers)
    weights = saved(train_dir)
    if MODES[mode].is_exact:
        assert_trained(weights, NUM_STEPS)
    elif not MODES[mode].together:
        # Each worker may be within a step when the last one is counted.
        assert 0 <= weights['global_step'] - NUM_WORKERS * MODES[mode].num_steps <= 2 * (NUM_WORKERS - 1)
    else:
        assert weights['global_step'] == NUM_STEPS


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        ['distributed_all_reduce: worker 1'],
        [
            *('parameter_server: ps 0', 'two_servers: ps 0', 'two_servers: ps 1', 'staged: ps 0', 'asynchronous: ps 0'),
            *('distributed_replicated: ps 0', 'distributed_replicated: ps 1', 'distributed_all_reduce: worker 0'),
        ],
    ),
)
def test_without_checkpoints_all_end_when_a_task_that_keeps_variables_is_killed_and_name_it(
    mode: str, lost: str, tmp_path: Path
) -> None:
    """They do not wait for it, since its variables are lost."""
    with cluster_of(mode, tmp_path, ENDLESS, PATIENT) as processes:
        killed_at = kill_under_way(processes, lost)
        assert_all_end(processes, FAILED, **{lost: KILLED})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - killed_at < PEER_SECS + MARGIN_SECS
        assert_each_names(others, processes.described(lost), '--train_dir')
