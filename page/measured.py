"""What the report shows of one run, taken out of its document once. Does not import TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params.table import SPECS
from results.document import Failure, Record, as_float, default_fact, is_of_setting
from results.summary import Goal, goal_of

# The columns of every table of settings, in this order.
MODE, BATCH_SIZE, SHAPE = 'variable_update', 'batch size', 'W*G+P'
STANDARD = (MODE, BATCH_SIZE, SHAPE)
MACHINE, FOLDER = 'machine', 'folder'
# Flags whose values stand in the standard columns, or in those of the work.
_SHOWN_OTHERWISE = frozenset({'model', 'variable_update', 'batch_size', 'num_gpus', 'shape', 'forward_only', 'eval'})
# Which GPUs a process saw: as many as --num_gpus says, so all but the first follow from the shape.
_GPUS = 'CUDA_VISIBLE_DEVICES'
# Of document['phases']: this one is no phase, but the time until the very first step, a warm-up, was done.
_FIRST_STEP = 'first_step'


@dataclass(frozen=True)
class Steps:
    """The steps of the chief, warm-ups included.

    Attributes:
      seconds: of each step, [num_steps] float64. is_warmup: [num_steps] bool.
      losses: after each step, [num_steps] float64, nan where it is unknown.
    """

    seconds: NDArray[np.float64]
    is_warmup: NDArray[np.bool_]
    losses: NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A run as the report shows it.

    Attributes:
      record: the result.
      traits: what it measured and how, by the name of a column, as text.
      work: what must be the same for two rates to be comparable: model, data set, image size, role.
      num_devices: workers * devices of each. num_tasks: workers and parameter servers.
      rate: images/sec; nan if no step was timed. error: its standard error within the run. num_steps: timed steps.
      timed: seconds of each timed step of the chief, [num_timed] float64. steps: all of them.
      phases: seconds until the first timed step began, by what they were needed for; warm_up has all warm-up steps.
      first_step: seconds until the very first step was done; None if it is unknown.
      stages: seconds between the start of the first timed step and the end of the last, by what they were needed for.
      share_of_peak: of the measured peak of the machine, from 0 to 1; None if it was not measured.
      joules_per_image: energy of the chips of its one host; None if it is unknown, or there were several hosts.
      goal: the accuracy that was wanted, and when it was reached; None if none was.
      evaluates_loss: whether its loss says something: it trained, on data that are not made up.
    """

    record: Record
    traits: Mapping[str, str]
    work: str
    num_devices: int
    num_tasks: int
    rate: float
    error: float
    num_steps: int
    timed: NDArray[np.float64]
    steps: Steps
    phases: Mapping[str, float]
    first_step: float | None
    stages: Mapping[str, float]
    share_of_peak: float | None
    joules_per_image: float | None
    goal: Goal | None
    evaluates_loss: bool

    @property
    def machine(self) -> str:
        """What identifies the machine."""
        return str(self.record.machine['fingerprint'])


def measured(record: Record) -> Run:
    """Takes what the report shows out of a document."""
    document, cluster, throughput = record.document, record.document['cluster'], record.document['throughput']
    steps = _steps(document)
    timed = record.step_seconds()
    num_devices = int(cluster['num_workers']) * int(cluster['devices_per_worker'])
    return Run(
        record,
        _traits(record),
        _work(record),
        num_devices,
        int(cluster['num_workers']) + int(cluster['num_ps']),
        record.images_per_second,
        as_float(throughput.get('standard_error'), 0.0),
        len(timed),
        timed,
        steps,
        {
            str(name): float(seconds)
            for name, seconds in (document.get('phases') or {}).items()
            if name != _FIRST_STEP and seconds
        },
        (document.get('phases') or {}).get(_FIRST_STEP),
        _stages(document),
        (document.get('compute') or {}).get('share_of_peak'),
        (document.get('energy') or {}).get('joules_per_image'),
        goal_of(document),
        record.run.get('role') == 'training'
        and not record.run.get('is_synthetic')
        and bool(np.isfinite(steps.losses).any()),
    )


def failure_traits(failure: Failure) -> dict[str, str]:
    """What is known of a run that left no result, by the names of columns: the flags that it was given."""
    given = {str(name): str(text).partition('=')[2] or 'true' for name, text in failure.given.items()}
    mode = given.get('variable_update', str(SPECS['variable_update'].default))
    traits = {MODE: mode, BATCH_SIZE: given.get('batch_size', ''), SHAPE: failure.shape}
    if 'model' in given:
        traits['model'] = given['model']
    return traits | {name: text for name, text in given.items() if name not in _SHOWN_OTHERWISE}


def _traits(record: Record) -> dict[str, str]:
    work = record.work
    traits = {MODE: record.run['variable_update'], BATCH_SIZE: record.run['batch_size'], SHAPE: record.shape}
    traits |= {
        'model': record.model,
        'data set': f'{work["data_set"]}{", synthetic" if work["is_synthetic"] else ""}',
        'image size': work['image_size'],
        'role': work['role'],
        MACHINE: record.machine['fingerprint'],
        'TensorFlow': record.machine['versions'].get('tensorflow'),
    }
    # A version that lacks a flag does what the default says.
    defaults = {name: default_fact(name) for name in SPECS if is_of_setting(name)}
    settings = {name: value for name, value in (defaults | record.facts).items() if name not in _SHOWN_OTHERWISE}
    environment = dict(record.document.get('environment') or {})
    if _GPUS in environment:
        environment[_GPUS] = environment[_GPUS].partition(',')[0]
    return {name: as_text(value) for name, value in (traits | settings | environment).items()}


def _work(record: Record) -> str:
    work = record.work
    size = f'{work["image_size"]}*{work["image_size"]}'
    data = f'{"synthetic " if work["is_synthetic"] else ""}{work["data_set"]} {size}'
    return ', '.join([record.model, data, str(work['role'])])


def _steps(document: Mapping[str, Any]) -> Steps:
    steps = document['workers'][0]['steps'] if document['workers'] else {'seconds': [], 'phase': []}
    seconds = np.asarray(steps['seconds'], dtype=np.float64)
    losses = np.asarray(steps.get('loss') or np.full(seconds.size, np.nan), dtype=np.float64)
    is_warmup = np.asarray(steps['phase'], dtype=str) == 'warmup'
    return Steps(seconds, is_warmup, losses)


def _stages(document: Mapping[str, Any]) -> dict[str, float]:
    throughput = document['throughput']
    within = as_float(throughput.get('step_seconds'), 0.0)
    waiting = min(as_float((document.get('input') or {}).get('wait_seconds'), 0.0), within)
    stages = {'step': within - waiting, 'input wait': waiting}
    stages |= {str(cause): float(seconds) for cause, seconds in (throughput.get('between_seconds') or {}).items()}
    return {name: seconds for name, seconds in stages.items() if seconds > 0}


def as_text(value: object) -> str:
    """A value of a flag or a fact, as a command line would have it."""
    if value is None:
        return 'none'
    return str(value).lower() if isinstance(value, bool) else str(value)
