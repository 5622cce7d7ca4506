"""A task is lost: all others end within seconds and name it, and the whole cluster goes on when it is started again."""

import signal
from pathlib import Path

import pytest

from results.document import Record, read_result_file
from tests.distributed.milestones import FIRST_STEP
from tests.distributed.processes import Processes, await_line
from tests.distributed.scenarios import (
    ENDLESS,
    FAILED,
    KILLED,
    LOSS_SECS,
    MARGIN_SECS,
    MODES,
    NUM_STEPS,
    NUM_WORKERS,
    TOLERANCE,
    assert_all_end,
    assert_each_names,
    assert_trained,
    cluster_of,
    differences,
    kill_under_way,
    others_of,
    paused,
    saved,
    scenarios,
    start_under_way,
    undisturbed,
)

pytestmark = pytest.mark.distributed
TASKS = (
    *('parameter_server: worker 1', 'parameter_server: worker 0', 'parameter_server: ps 0', 'two_servers: ps 1'),
    *('staged: worker 1', 'distributed_replicated: worker 1', 'distributed_replicated: ps 0'),
    *('collective_all_reduce: worker 1', 'collective_all_reduce: worker 0'),
    *('distributed_all_reduce: worker 1', 'distributed_all_reduce: controller 0'),
)
USUAL = ('two_servers: worker 1', 'collective_all_reduce: worker 1')
OTHERS = [text for text in TASKS if text not in USUAL]


def test_a_step_more_or_less_would_be_seen_in_the_weights() -> None:
    """What the other tests rely on."""
    assert min(differences(undisturbed(NUM_STEPS - 1), undisturbed(NUM_STEPS)).values()) > TOLERANCE


@pytest.mark.parametrize('number', [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.all_modes)])
@pytest.mark.parametrize(('mode', 'lost'), scenarios(USUAL, OTHERS))
def test_all_others_end_and_name_it_and_the_chief_saves_its_last_whole_step(
    mode: str, lost: str, number: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / 'result.json'
    outputs = f'--train_dir={tmp_path / "train"}', f'--result_file={path}'
    with cluster_of(mode, tmp_path, ENDLESS, *outputs) as processes:
        start_under_way(processes)
        processes.tasks[lost].send(number)
        assert processes.tasks[lost].has_ended(LOSS_SECS + MARGIN_SECS)
        assert_all_end(processes, FAILED, **{lost: KILLED if number == signal.SIGKILL else 128 + number})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - processes.tasks[lost].ended_at < LOSS_SECS + MARGIN_SECS
        assert_each_names(others, processes.described(lost))
        chief = processes.trainers[0].name
        if lost == chief:
            return
        record = read_result_file(path)
        assert isinstance(record, Record)
        assert processes.described(lost) in (record.reason or '')
        steps = record.workers[0].steps.global_step
        weights = saved(tmp_path / 'train')
        # Parameter servers update each variable on its own: a step that had begun leaves the last checkpoint.
        is_between_steps = not (processes.of('ps') and 'a step is being applied' in processes.trainers[0].err)
        if is_between_steps and (number == signal.SIGTERM or lost not in [task.name for task in processes.servers]):
            assert weights['global_step'] >= steps[-1]
        if MODES[mode].is_exact and weights['global_step']:
            assert_trained(weights, int(weights['global_step']))


@pytest.mark.parametrize(('mode', 'lost'), scenarios([], ['asynchronous: worker 0', 'asynchronous: worker 1']))
def test_workers_that_do_not_wait_go_on_when_one_is_killed(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, MODES[mode].limited, f'--train_dir={tmp_path}') as processes:
        kill_under_way(processes, lost)
        assert_all_end(processes, 0, **{lost: KILLED})
        [left] = [worker for worker in processes.of('worker') if worker.name != lost]
        assert 'total images/sec' in left.out
        assert processes.described(lost) in processes.tasks['ps 0'].err
        if lost == 'worker 1':
            # They take the steps of the one that was lost.
            assert saved(tmp_path)['global_step'] >= NUM_WORKERS * MODES[mode].num_steps


@pytest.mark.parametrize(('mode', 'lost'), scenarios([], ['asynchronous: worker 0', 'asynchronous: worker 1']))
def test_a_worker_that_does_not_wait_comes_back_alone(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, MODES[mode].limited, f'--train_dir={tmp_path / "train"}') as processes:
        kill_under_way(processes, lost)
        # Otherwise the others would have taken all steps before it is there.
        with paused([worker for worker in processes.of('worker') if worker.name != lost]):
            processes.tasks[lost].start()
            await_line(processes.tasks[lost], FIRST_STEP, times=2)
        assert_all_end(processes, 0)
        # Each worker may be within a step when the last one is counted.
        steps = saved(tmp_path / 'train')['global_step'] - NUM_WORKERS * MODES[mode].num_steps
        assert 0 <= steps <= 2 * (NUM_WORKERS - 1)


@pytest.mark.parametrize(('mode', 'lost'), scenarios(['parameter_server: worker 1'], [*OTHERS, *USUAL]))
def test_a_cluster_that_is_started_again_ends_at_the_same_step(mode: str, lost: str, tmp_path: Path) -> None:
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
        assert_recovered(mode, processes, tmp_path / 'train')


def assert_recovered(mode: str, processes: Processes, train_dir: Path) -> None:
    """Asserts that the run ended as one would have in which nothing was lost."""
    assert all('total images/sec' in trainer.out for trainer in processes.trainers)
    weights = saved(train_dir)
    assert weights['global_step'] == NUM_STEPS
    if MODES[mode].is_exact:
        assert_trained(weights, NUM_STEPS)
