"""A step that waits for other tasks has a limit, and names them; nothing that is only slow is
ended.
"""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.distributed.cut_connections import try_once
from tests.distributed.milestones import UNDER_WAY
from tests.distributed.processes import DEADLINE_SECS, await_line
from tests.distributed.scenarios import (
    ENDLESS,
    FAILED,
    MARGIN_SECS,
    assert_each_names,
    cluster_of,
    scenarios,
)
from tests.distributed.test_private_network import needs_namespace

pytestmark = pytest.mark.distributed
LIMIT_SECS = 5


@needs_namespace
@pytest.mark.skipif(not shutil.which('ss'), reason='there is no ss')
@pytest.mark.parametrize(
    'mode',
    [
        'parameter_server',
        pytest.param('staged', marks=pytest.mark.all_modes),
        pytest.param('collective_all_reduce', marks=pytest.mark.all_modes),
    ],
)
def test_all_tasks_end_and_name_a_task_or_go_on_when_the_connections_of_a_worker_are_cut(
    mode: str, tmp_path: Path
) -> None:
    trial = try_once(mode, 'ss', LIMIT_SECS, tmp_path)
    for name, errors in trial.errors.items():
        assert any('127.0.0.1:' in line for line in errors), (name, errors)


@pytest.mark.parametrize(
    ('mode', 'stuck'),
    scenarios(['parameter_server: worker 1'], ['collective_all_reduce: worker 1']),
)
def test_a_step_that_waits_for_a_worker_that_stands_still_ends_and_names_it(
    mode: str, stuck: str, tmp_path: Path
) -> None:
    """Its server goes on answering, so it does not count as lost."""
    limit = f'--step_timeout_secs={LIMIT_SECS}'
    with cluster_of(mode, tmp_path, ENDLESS, limit, '--display_every=1') as processes:
        # Nobody reads its standard output, so it stands still when the pipe is full.
        pipe = tmp_path / f'{stuck.replace(" ", "-")}.out'
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        # A pipe without a writer blocks whoever opens it to read the logs.
        try:
            processes.start()
            chief = processes.trainers[0]
            await_line(chief, UNDER_WAY)
            assert chief.has_ended(DEADLINE_SECS)
            assert chief.exit_code == FAILED
            assert_each_names([chief], 'a step has waited', processes.described(stuck), limit)
        finally:
            processes.tasks[stuck].kill()
            os.close(reader)
            pipe.unlink()
        assert not processes.still_running(MARGIN_SECS)
