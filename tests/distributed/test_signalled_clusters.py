"""A signal to all tasks, or to one of them, ends a cluster; the chief saves its last step."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.distributed.milestones import INCOMPLETE, UNDER_WAY, WARMING_UP
from tests.distributed.processes import DEADLINE_SECS, await_line
from tests.distributed.scenarios import (
    ENDLESS,
    FAILED,
    KILLED,
    MARGIN_SECS,
    NUM_WARMUP,
    assert_all_end,
    assert_each_names,
    assert_trained,
    cluster_of,
    others_of,
    paused,
    saved,
    scenarios,
    start_under_way,
)
from tests.distributed.whole_batch import STEP_LINE, TOTAL_LINE

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ('mode', 'name'),
    scenarios(
        ['parameter_server: SIGTERM'],
        [
            *('parameter_server: SIGINT', 'collective_all_reduce: SIGTERM', 'collective_all_reduce: SIGINT'),
            *('distributed_replicated: SIGTERM', 'distributed_replicated: SIGINT'),
            'distributed_all_reduce: SIGTERM',
        ],
    ),
)
def test_a_signal_to_all_ends_them_and_the_chief_saves_its_last_step(mode: str, name: str, tmp_path: Path) -> None:
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
        assert_trained(saved(tmp_path / 'train'), NUM_WARMUP + int(timed[1]))


@pytest.mark.all_modes
def test_workers_that_do_not_wait_print_the_rate_of_all_when_a_signal_ends_them(tmp_path: Path) -> None:
    with cluster_of('asynchronous', tmp_path, ENDLESS) as processes:
        start_under_way(processes)
        for task in processes.tasks.values():
            task.send(signal.SIGTERM)
        assert_all_end(processes, 128 + signal.SIGTERM)
        # No total: a warning has the rate.
        totals = [float(*re.findall(r'at ([\d.]+) images/sec', worker.err)) for worker in processes.trainers]
        own = [float(re.findall(STEP_LINE, worker.out)[-1][1]) for worker in processes.trainers]
        # The one that started later saw the other take steps all the time.
        assert max(total / rate for total, rate in zip(totals, own, strict=True)) > 1.3


@pytest.mark.all_modes
def test_a_worker_that_warmed_up_while_others_took_all_steps_prints_the_total(tmp_path: Path) -> None:
    with cluster_of('asynchronous', tmp_path, '--num_batches=10') as processes:
        processes.start()
        first, late = processes.trainers
        await_line(late, WARMING_UP)
        with paused([late]):
            await_line(first, TOTAL_LINE)
        assert_all_end(processes, 0)
        [total] = re.findall(TOTAL_LINE, first.out, re.MULTILINE)
        assert re.findall(TOTAL_LINE, late.out, re.MULTILINE) == [total]


@pytest.mark.parametrize(
    ('mode', 'lost'),
    scenarios(
        # The first server, or without any worker 0, is where the others find how a task ended, itself included.
        ['parameter_server: worker 1', 'collective_all_reduce: worker 0'],
        [
            *('parameter_server: worker 0', 'distributed_replicated: worker 1', 'distributed_replicated: worker 0'),
            *('collective_all_reduce: worker 1', 'parameter_server: ps 0', 'two_servers: ps 1', 'asynchronous: ps 0'),
            'distributed_all_reduce: worker 0',
        ],
    ),
)
def test_the_others_end_at_once_when_a_signal_ends_a_task_they_need(mode: str, lost: str, tmp_path: Path) -> None:
    with cluster_of(mode, tmp_path, ENDLESS, f'--train_dir={tmp_path / "train"}') as processes:
        start_under_way(processes)
        processes.tasks[lost].send(signal.SIGTERM)
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, FAILED, **{lost: exit_code})
        others = others_of(processes, lost)
        assert max(task.ended_at for task in others) - processes.tasks[lost].ended_at < MARGIN_SECS
        assert_each_names(others, processes.described(lost), exit_code, 'SIGTERM')


@pytest.mark.all_modes
def test_the_others_end_at_once_when_the_reader_of_a_workers_output_leaves(tmp_path: Path) -> None:
    with cluster_of('parameter_server', tmp_path, ENDLESS) as processes:
        fifo = tmp_path / 'worker-0.out'
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        processes.start()
        fifo.unlink()
        await_line(processes.tasks['worker 1'], UNDER_WAY)
        os.close(reader)
        assert_all_end(processes, FAILED)
        others = others_of(processes, 'worker 0')
        assert_each_names(others, processes.described('worker 0'), 'standard output')


@pytest.mark.parametrize(
    ('mode', 'gone'),
    scenarios(['collective_all_reduce: worker 1'], ['parameter_server: worker 1', 'distributed_replicated: worker 1']),
)
def test_a_signal_makes_the_chief_save_even_if_its_step_never_ends(mode: str, gone: str, tmp_path: Path) -> None:
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
        # On parameter servers a variable is updated as soon as its gradients are there, so some may be ahead.
        if not (processes.of('ps') and 'a step is being applied' in chief.err):
            assert_trained(saved(tmp_path / 'train'), NUM_WARMUP + int(timed[1]))


def test_a_parameter_server_lingers_when_asked_until_a_signal_ends_it(tmp_path: Path) -> None:
    with cluster_of('parameter_server', tmp_path, '--num_batches=3', '--ps_linger_secs=600') as processes:
        processes.start()
        for worker in processes.of('worker'):
            assert worker.has_ended(DEADLINE_SECS)
        server = processes.tasks['ps 0']
        # By itself it would end in less.
        assert not server.has_ended(6)
        server.send(signal.SIGTERM)
        exit_code = 128 + signal.SIGTERM
        assert_all_end(processes, 0, MARGIN_SECS, **{'ps 0': exit_code})
