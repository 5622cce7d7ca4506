"""The memory of a process and its descendants, measured on small programs."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from sweeps.limited_process import MemoryMeter

pytestmark = pytest.mark.distributed

MIB = 1 << 20
# The program and its child both have all of a shared map in their memory.
SHARED = """
import mmap, os, signal, sys
held = mmap.mmap(-1, 200 << 20)
held.write(bytes(200 << 20))
reading, writing = os.pipe()
if not os.fork():
    for page in range(0, len(held), 4096):
        held[page]
    os.write(writing, b'.')
    signal.pause()
os.read(reading, 1)
print(flush=True)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""
PRIVATE = """
import sys
held = b'x' * (300 << 20)
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def running(code: str) -> Iterator[int]:
    """A small program that has said that it is ready; it ends when its standard input does."""
    command = [sys.executable, '-I', '-S', '-c', code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'\n'
        yield process.pid


def test_pages_that_processes_share_count_once() -> None:
    with running(SHARED) as pid:
        assert len(psutil.Process(pid).children()) == 1
        # Each of the two has more than 200 MiB of resident pages.
        assert not MemoryMeter(pid, 300 * MIB).is_exceeded()
        assert MemoryMeter(pid, 150 * MIB).is_exceeded()


def test_private_pages_count_at_once() -> None:
    with running(PRIVATE) as pid:
        assert MemoryMeter(pid, 250 * MIB).is_exceeded()
        assert not MemoryMeter(pid, 400 * MIB).is_exceeded()


def test_a_process_that_has_ended_needs_no_memory() -> None:
    with running(PRIVATE) as pid:
        pass
    assert not MemoryMeter(pid, 1).is_exceeded()
