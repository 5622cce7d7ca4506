"""When the tasks of one host share memory, and when they do without."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from cluster.shared_memory import SharedHost, fault_of_servers
from cluster.topology import Task
from commands.cluster import reserved_addresses

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parent.parent.parent
NUM_FLOATS = 5000
NOBODY = 65534
PR_SET_DUMPABLE = 4
SERVER = f"""
import os, sys
import tensorflow.compat.v1 as tf
from training.shared_memory import serve_memory
tokens = serve_memory()
server = tf.train.Server({{'ps': [sys.argv[1]], 'worker': [sys.argv[2]]}}, 'ps', 0)
if os.geteuid() == 0:
    os.setuid({NOBODY})
print(*tokens, flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def closed_to_other_users() -> Iterator[None]:
    """In the block only a superuser can open the files of this process by their numbers."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def num_open() -> int:
    """In how many descriptors this process has such memory open."""
    paths = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd')]
    return sum('memfd:tf_cnn_benchmarks' in os.readlink(path) for path in paths if os.path.islink(path))


def make_host(warnings: list[str], **parts: Any) -> SharedHost:
    """The host of one worker."""
    arguments = {'tokens': [], 'fault_of_servers': lambda memory: None, **parts}
    return SharedHost(is_chief=True, gather=lambda name, value: [value], warn=warnings.append, **arguments)


def test_where_a_parameter_server_may_not_open_the_memory_one_line_says_so_and_it_is_closed() -> None:
    with (
        reserved_addresses(2) as addresses,
        subprocess.Popen(
            [sys.executable, '-c', SERVER, *addresses],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        assert process.stdout
        tokens = tuple(process.stdout.readline().split())
        worker = tf.train.Server({'ps': addresses[:1], 'worker': addresses[1:]}, 'worker', 0)
        warnings: list[str] = []

        def find_fault(memory: Any) -> str | None:
            return fault_of_servers(memory, [Task('ps', 0, addresses[0])], worker.target, tf.ConfigProto())

        host = make_host(warnings, tokens=[tokens], fault_of_servers=find_fault)
        with closed_to_other_users():
            assert host.allocate(NUM_FLOATS) is None
        assert num_open() == 0
        [warning] = warnings
        assert f'process {process.pid} cannot open' in warning
        process.kill()


def test_memory_that_is_not_free_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / 'proc').mkdir()
    (tmp_path / 'proc/meminfo').write_text('MemTotal: 9000000 kB\nMemAvailable: 19 kB\n')
    warnings: list[str] = []
    assert make_host(warnings, root=tmp_path).allocate(NUM_FLOATS) is None
    assert len(warnings) == 1
    (tmp_path / 'proc/meminfo').write_text('MemTotal: 9000000 kB\nMemAvailable: 20 kB\n')
    host = make_host(warnings, root=tmp_path)
    assert host.allocate(NUM_FLOATS)
    assert num_open() == 1
    host.close()
    assert num_open() == 0
    assert len(warnings) == 1
