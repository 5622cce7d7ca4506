"""Processes with different flags end at the start, each of them with exit code 2, and name the difference."""

from pathlib import Path

import numpy as np
import pytest

from cluster.hosts import reserved_addresses
from tests.distributed.processes import DEADLINE_SECS, await_line
from tests.distributed.scenarios import (
    ENDLESS,
    assert_all_end,
    cluster_of,
    errors_of,
    others_of,
    start_under_way,
)
from tests.support.images import write_mnist
from tests.support.outputs import check_line

pytestmark = pytest.mark.distributed

WRONG_USE = 2


@pytest.mark.parametrize(
    ('mode', 'task', 'flag', 'expected'),
    [
        ('collective_all_reduce', 'worker 1', '--num_batches=7', '--num_batches=7'),
        ('parameter_server', 'ps 0', '--nocross_replica_sync', '--cross_replica_sync=False'),
        pytest.param('asynchronous', 'worker 1', '--model=trivial', '--model=trivial', marks=pytest.mark.all_modes),
        pytest.param('two_servers', 'worker 0', '--batch_size=3', '--batch_size=3', marks=pytest.mark.all_modes),
    ],
)
def test_processes_with_different_flags_all_end_and_name_both(
    mode: str, task: str, flag: str, expected: str, tmp_path: Path
) -> None:
    with cluster_of(mode, tmp_path, ENDLESS) as processes:
        processes.tasks[task].add_flags(flag)
        processes.start()
        assert_all_end(processes, WRONG_USE)
        for own in processes.tasks.values():
            (line,) = errors_of(own)
            check_line(line, f'{expected} in {processes.described(task)}')


def test_workers_with_other_numbers_of_images_end_where_an_epoch_counts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ('a', 'b')]
    for number, folder in enumerate(folders):
        for subset in ('train', 'validation'):
            images = np.zeros([16 + 8 * number, 28, 28], np.uint8)
            write_mnist(folder, images, np.zeros([len(images)], np.uint8), subset)
    with cluster_of('collective_all_reduce', tmp_path, '--num_epochs=1', f'--data_dir={folders[0]}') as processes:
        processes.tasks['worker 1'].add_flags(f'--data_dir={folders[1]}')
        processes.start()
        assert_all_end(processes, WRONG_USE)
        for own in processes.tasks.values():
            line = errors_of(own)[-1]
            check_line(line, '--data_dir', '16 training images in worker 0', '24 training images in worker 1')


@pytest.mark.all_modes
def test_a_worker_of_another_cluster_that_names_the_same_servers_is_refused_and_the_cluster_goes_on(
    tmp_path: Path,
) -> None:
    with (
        cluster_of('parameter_server', tmp_path, ENDLESS) as processes,
        reserved_addresses(1) as addresses,
    ):
        start_under_way(processes)
        stranger = processes.outsider('worker 0', f'--worker_hosts={addresses[0]}')
        stranger.start()
        assert stranger.has_ended(DEADLINE_SECS)
        assert stranger.exit_code == WRONG_USE
        (line,) = errors_of(stranger)
        check_line(line, f'--worker_hosts={addresses[0]}', processes.described('ps 0'))
        chief = processes.trainers[0]
        await_line(chief, f'worker 0 \\({addresses[0]}\\)')
        await_line(chief, r'images/sec', times=2 + chief.out.count('images/sec'))
        assert not any(task.exit_code is not None for task in processes.tasks.values())
        assert len([line for line in chief.err.splitlines() if addresses[0] in line]) == 1
        assert not any(addresses[0] in task.err for task in others_of(processes, chief.name))
