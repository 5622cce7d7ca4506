"""Sweeps of a small program that takes the place of the real one and takes no time."""

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.sample_results import sample_document
from tests.sweep import fake_benchmark
from tf_cnn.lab.folder import Folder
from tf_cnn.lab.sweep_file import read_sweep_file
from tf_cnn.sweep.configurations import SweepPlan, make_sweep_plan
from tf_cnn.sweep.request import override
from tf_cnn.sweep.runner import Runner

_DEADLINE_SECS = 60
FAKE = (sys.executable, '-I', '-S', fake_benchmark.__file__)


def plan_of(folder: Path, text: str, *rest: str) -> SweepPlan:
    """Makes the plan of a TOML file with this text, and of the flags after --."""
    path = folder / 'sweep_file.toml'
    path.write_text(text)
    return make_sweep_plan(override(read_sweep_file(path), rest, {}), lambda params, alone: None)


def environment(
    folder: Path, behaviours: Mapping[str, object] | None = None, num_steps: int = 8
) -> dict[str, str]:
    """Returns the environment of the small program; its result has num_steps steps."""
    document = folder / 'document.txt'
    document.write_text(json.dumps(sample_document(num_steps=num_steps)))
    return {
        'FAKE_LOG': str(folder / 'log.txt'),
        'FAKE_DOCUMENT': str(document),
        'FAKE_BEHAVIOURS': json.dumps(behaviours or {}),
    }


def fake_runner(
    folder: Path,
    behaviours: Mapping[str, object] | None = None,
    timeout_secs: float | None = None,
) -> Runner:
    """Returns what runs the small program in place of the real one."""
    return Runner(FAKE, environment(folder, behaviours), timeout_secs)


def make_sweep(folder: Path, text: str) -> tuple[SweepPlan, Folder]:
    """Returns the plan of a TOML file with this text, and its folder of results."""
    plan, results = plan_of(folder, text), Folder(folder / 'out')
    results.create_for_plan(plan)
    return plan, results


@contextlib.contextmanager
def interrupt_when_waiting(folder: Path) -> Iterator[None]:
    """Interrupts this process in the block, as Ctrl-C does, once a run of the small program
    waits.
    """

    def interrupt() -> None:
        while not (folder / 'log.txt.waiting').exists():
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


def await_waiting(tmp_path: Path, count: int) -> list[int]:
    """Waits until so many processes of a run that waits have started; returns their numbers."""
    path, deadline = tmp_path / 'log.txt.waiting', time.monotonic() + _DEADLINE_SECS
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(line) for line in path.read_text().split()]


def sizes_in(folder: Path) -> list[int]:
    """Returns the batch size of each started run, in order, from its last flag."""
    log = folder / 'log.txt'
    words = [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []
    return [
        int([word for word in run if word.startswith('--batch_size=')][-1].partition('=')[2])
        for run in words
    ]
