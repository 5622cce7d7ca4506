"""Sweeps of tests: plans from TOML, and the small program that takes the place of the real one."""

import contextlib
import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from params import Params
from sweeps.configurations import SweepPlan, make_plan
from sweeps.flags import override
from sweeps.folder import Folder
from sweeps.runner import Starter, limits_of
from sweeps.sweep_file import read_file
from tests.support.sample_results import sample_document

_DEADLINE_SECS = 60
FAKE = (sys.executable, '-I', '-S', str(Path(__file__).with_name('fake_benchmark.py')))


def accept(params: Params, alone: bool) -> None:
    """Refuses no run."""
    del params, alone


def plan_of(folder: Path, text: str, *rest: str, has_gpu: bool = False) -> SweepPlan:
    """The plan of a TOML file with this text, and of the flags after --."""
    path = folder / 'sweep_file.toml'
    path.write_text(text)
    return make_plan(override(read_file(path), rest, {}), accept, has_gpu=has_gpu)


def environment(folder: Path, behaviours: Mapping[str, object] | None = None, num_steps: int = 4) -> dict[str, str]:
    """The environment of the small program, whose result has so many steps."""
    document = folder / 'document.txt'
    document.write_text(json.dumps(sample_document(num_steps=num_steps)))
    return {
        'FAKE_LOG': str(folder / 'log.txt'),
        'FAKE_DOCUMENT': str(document),
        'FAKE_BEHAVIOURS': json.dumps(behaviours or {}),
    }


def starter(folder: Path, plan: SweepPlan | None = None, behaviours: Mapping[str, object] | None = None) -> Starter:
    """Starts the small program within the limits of the plan."""
    limits = {} if plan is None else {'limits': limits_of(plan.settings)}
    return Starter(FAKE, environment(folder, behaviours), **limits)


def created(folder: Path, plan: SweepPlan) -> Folder:
    """The folder of a sweep that has not begun."""
    made = Folder(folder / 'out')
    made.create(plan)
    return made


def assert_ended(pids: list[int]) -> None:
    """Waits until these processes have ended, which need not be children of this one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                assert select.select([descriptor], [], [], _DEADLINE_SECS)[0], pid
            finally:
                os.close(descriptor)


def runs_in(folder: Path) -> list[Sequence[str]]:
    """The words of each run that was started, in order."""
    log = folder / 'log.txt'
    return [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []


def sizes_in(folder: Path) -> list[int]:
    """The batch size of each run that was started, in order; that of the last flag."""
    return [
        int([word for word in words if word.startswith('--batch_size=')][-1].partition('=')[2])
        for words in runs_in(folder)
    ]
