"""Where no test can run, pytest says so in one line at its start."""

import sys

import pytest

from tests.support.files import write_files
from tests.support.outputs import check_line
from tests.support.programs import ROOT, run_process
from tests.support.surroundings import why_not

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ('files', 'facts'),
    [
        ({}, ['/dev/shm', 'No such file or directory']),
        (
            {
                'dev/shm/file': '',
                'proc/self/cgroup': '0::/\n',
                'sys/fs/cgroup/memory.max': '1500000000\n',
            },
            ['1.5 GB', '2 GB'],
        ),
    ],
)
def test_a_lack_is_named(files, facts, tmp_path):
    check_line(why_not(write_files(tmp_path, files)), *facts)


def test_a_process_with_too_little_memory_ends_at_once_with_one_line():
    limited = ['sh', '-c', 'ulimit -v 1500000 && exec "$@"', 'sh']
    command = [*limited, sys.executable, '-m', 'pytest', '--collect-only', '-q', __file__]
    environ = {'OPENBLAS_NUM_THREADS': '1', 'PYTEST_XDIST_WORKER': None}
    process = run_process(command, ROOT, **environ)
    assert (process.code, process.out) == (1, '')
    check_line(process.err.strip(), 'no test can run here', '1.5 GB')
