"""Processes with different flags end at the start, each of them with exit code 2, and name the difference."""

from pathlib import Path

import pytest
from refusals import check_line
from scenarios import ENDLESS, PATIENT, assert_all_end, cluster_of, errors_of

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
    with cluster_of(mode, tmp_path, ENDLESS, PATIENT) as processes:
        processes.tasks[task].add_flags(flag)
        processes.start()
        assert_all_end(processes, WRONG_USE)
        for own in processes.tasks.values():
            (line,) = errors_of(own)
            check_line(line, f'{expected} in {processes.described(task)}')
