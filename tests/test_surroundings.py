"""Where no test can run, pytest says so in one line at its start."""

import pytest

from tests.support.files import write_files
from tests.support.outputs import check_line
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
