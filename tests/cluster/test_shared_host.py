"""When the workers of one host share memory, and when they do without."""

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.shared_memory import SharedHost

pytestmark = pytest.mark.unit

NUM_FLOATS = 5000


def num_open() -> int:
    """In how many descriptors this process has such memory open."""
    paths = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd')]
    return sum('memfd:tf_cnn_benchmarks' in os.readlink(path) for path in paths if os.path.islink(path))


def make_host(warnings: list[str], **parts: Any) -> SharedHost:
    """The host of one worker."""
    return SharedHost(is_chief=True, gather=lambda name, value: [value], warn=warnings.append, **parts)


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
