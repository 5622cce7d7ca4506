"""Runs of a small program that takes the place of the real one and takes no time."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import fake_program
from tests.support.programs import DEADLINE_SECS
from tests.support.sample_results import sample_document

# Runs a program to which SIGINT is not ignored, as it is in the background of a shell.
WITH_SIGINT = ('env', '--default-signal=INT')
FAKE = (sys.executable, '-I', '-S', fake_program.__file__)


def use_fake_program(
    monkeypatch: pytest.MonkeyPatch,
    behaviours: Mapping[str, object] | None = None,
    num_steps: int = 8,
) -> None:
    """Puts the small program in place of the real one, with its files in this folder.

    Its result has num_steps steps.
    """
    document = sample_document(num_steps=num_steps, flags={'device': 'cpu'})
    Path('document.txt').write_text(json.dumps(document))
    monkeypatch.setenv('FAKE_FOLDER', str(Path.cwd()))
    monkeypatch.setenv('FAKE_BEHAVIOURS', json.dumps(behaviours or {}))
    for module in ('configurations', 'repeat'):
        monkeypatch.setattr(f'tf_cnn.lab.{module}.PROGRAM', FAKE)


def sizes_in_log() -> list[int]:
    """Returns the batch size of each run that has started, in order."""
    return [int(line.split()[1]) for line in Path('log.txt').read_text().splitlines()]


def pids_in(name: str) -> list[int]:
    path = Path(name)
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def interrupt_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Interrupts this process in the block, as Ctrl-C does, once the condition is true."""

    def interrupt() -> None:
        wait_for(condition)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()
    signal.signal(signal.SIGINT, handler)
