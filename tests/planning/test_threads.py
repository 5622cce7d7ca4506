"""Threads fit the cores, the CPU quota and the towers of a process, and the reason is told."""

from pathlib import Path
from typing import Any

import pytest

from params import Params, make_params
from planning.environment import Environment
from planning.plan import Machine
from planning.process_settings import Threads, choose_threads
from planning.this_process import INTRA, ThisProcess
from results.summary import format_summary
from tests.support.outputs import check_line
from tests.support.sample_results import sample_record

pytestmark = pytest.mark.unit


def with_quota(root: Path, cores: float | None) -> Path:
    """A system whose control group (version 2) grants the processor time of so many cores."""
    (root / 'proc/self').mkdir(parents=True)
    (root / 'proc/self/cgroup').write_text('0::/group\n')
    (root / 'proc/self/mountinfo').write_text('31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n')
    (root / 'sys/fs/cgroup/group').mkdir(parents=True)
    quota = 'max' if cores is None else round(100_000 * cores)
    (root / 'sys/fs/cgroup/group/cpu.max').write_text(f'{quota} 100000\n')
    return root


def threads_of(
    params: Params, num_towers: int, earlier: int | None = None, root: Path = Path('/')
) -> tuple[Threads, list[str]]:
    """The threads of a run on 12 cores, and warnings; earlier: those of an earlier run within an operation."""
    process = ThisProcess({})
    if earlier is not None:
        process.keep({INTRA: earlier})
    machine = Machine('cpu', tuple(f'/cpu:{index}' for index in range(num_towers)), 'cpu', ('/cpu:0',), 'NHWC')
    warnings: list[str] = []
    return choose_threads(params, Environment({}, process, root), machine, 12, warnings), warnings


@pytest.mark.parametrize(
    ('flags', 'num_towers', 'quota', 'threads', 'reason'),
    [
        ({}, 1, None, (0, 0), 'one tower'),
        # One pool serves all towers.
        ({}, 3, None, (0, 0), '3 towers share 12 cores'),
        ({}, 12, None, (1, 0), '12 towers'),
        ({}, 64, None, (1, 0), '64 towers'),
        ({}, 1, 2.5, (2, 3), '2.5 cores'),
        ({}, 1, 0.5, (1, 2), '0.5 cores'),
        ({}, 4, 8, (8, 8), '8 cores'),
        ({}, 3, 2.5, (1, 3), '3 towers'),
        ({}, 1, 12, (0, 0), 'one tower'),
        ({'num_intra_threads': 0}, 3, None, (0, 0), '--num_intra_threads=0'),
        ({'num_intra_threads': 5, 'num_inter_threads': 2}, 3, 4, (5, 2), '--num_inter_threads=2'),
        ({'num_inter_threads': 2}, 3, 6, (6, 2), '6 cores'),
    ],
)
def test_towers_share_the_cores_that_the_process_may_use(
    tmp_path: Path,
    flags: dict[str, Any],
    num_towers: int,
    quota: float | None,
    threads: tuple[int, int],
    reason: str,
) -> None:
    root = with_quota(tmp_path, quota)
    found, _ = threads_of(make_params(**flags), num_towers, root=root)
    assert (found.intra_op, found.inter_op) == threads
    assert reason in found.reason


def test_a_later_run_of_a_process_has_the_threads_of_the_first_and_a_warning_if_they_are_too_few() -> None:
    for earlier in (0, 13):
        later, warnings = threads_of(make_params(), 1, earlier)
        assert (later.intra_op, warnings) == (earlier, [])
    assert threads_of(make_params(num_intra_threads=3), 2, 7)[0].intra_op == 3
    later, (line,) = threads_of(make_params(), 1, 1)
    assert later.intra_op == 1
    check_line(line, '1 thread', 'new process')


def test_the_summary_tells_the_threads_and_why() -> None:
    record = sample_record(machine={'threads': {'intra_op': 1, 'inter_op': 8, 'reason': '8 towers share 8 cores'}})
    (line,) = [line for line in format_summary(record) if line.startswith('threads')]
    assert all(part in line for part in ('1 thread', '8 operations', '8 towers share 8 cores'))
