"""A process of `report --serve`, for tests."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECS = 60


@contextlib.contextmanager
def serving(*argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves a page on a free port, and the address that it printed."""
    command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), 'report', *argv, '--serve', '--port=0']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            found = re.search(r'http://127\.0\.0\.1:\d+/', line)
            assert found, line + process.communicate(timeout=DEADLINE_SECS)[1]
            yield process, found[0]
        finally:
            process.kill()
