"""The result of a real run, with changes, for tests that read results."""

import json
import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import convert
from numpy.typing import ArrayLike, NDArray

from tf_cnn.machine.run_environment import fingerprint
from tf_cnn.results.document import Result, read_document
from tf_cnn.results.sections import Phase, RunSection, Section, StatisticsSection
from tf_cnn.results.steps import PauseCause, Step, StepLog, StepValues
from tf_cnn.system.documents import as_json

# The result of a run of lenet on a CPU with 2 warm-up and 4 timed steps and --measure_peak. Only
# the section about the machine was changed.
_RECORDED = Path(__file__).with_name('recorded_result.json').read_text()
AnySection = TypeVar('AnySection', bound=Section)
_BEGIN = float(json.loads(_RECORDED)['workers'][0]['steps']['start'][0])


def sample_document(
    *,
    rate: float = 100.0,
    noise: float = 0.02,
    num_steps: int = 50,
    seconds: ArrayLike | None = None,
    seed: int = 0,
    gap: float = 0.0,
    flags: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """Returns a recorded result with changes; values that depend on them are computed again.

    Args:
      rate, noise, num_steps: images/sec of all devices together, the relative spread of the steps
        that are drawn around it, and their number.
      seconds: the seconds of each timed step, instead of those.
      gap: the seconds of printing after each step.
      flags: further given flags. They change facts of the run: num_gpus changes its devices,
        batch_size its images.
      **sections: other parts of the document. The keys of an object replace only those keys of the
        recorded one, as in cluster={'num_workers': 2}.
    """
    document: dict[str, Any] = json.loads(_RECORDED)
    for name, part in sections.items():
        document[name] = {**document[name], **part} if isinstance(part, Mapping) else part
    for name, value in (flags or {}).items():
        document['command']['flags'][name] = value
        document['command']['given_flags'][name] = f'--{name}={value}'
        if name in document['run']:
            document['run'][name] = value
    document['command']['argv'] = list(document['command']['given_flags'].values())
    document['model']['name'] = document['command']['flags']['model']
    _make_cluster(document)
    document['machine']['fingerprint'] = fingerprint(document['machine'])
    if seconds is None:
        # Log-normal with this mean and relative deviation.
        drawn = np.exp(np.random.default_rng(seed).normal(0, noise, num_steps))
        seconds = document['run']['images_per_step'] / rate * drawn
    _take_steps(document, np.asarray(seconds, np.float64), gap)
    # Two documents have the same id if they are equal.
    document['id'] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document)).hex
    return document


def cut_off(reason: str) -> dict[str, Any]:
    return {'complete': False, 'exit_status': {'exit_code': 1, 'reason': reason}}


def untimed_document(reason: str, **changes: Any) -> dict[str, Any]:
    """Returns the result of a run that ended while it was warming up."""
    document = sample_document(seed=77, **cut_off(reason), **changes)
    steps = document['workers'][0]['steps']
    steps['phase'] = ['warmup'] * len(steps['phase'])
    document['statistics'] = as_json(StatisticsSection.of([]))
    none = {'images': 0, 'wall_seconds': 0.0, 'step_seconds': 0.0, 'between_seconds': {}}
    document['throughput'] = {**dict.fromkeys(document['throughput']), **none}
    return document


def evaluations(*top_1: float) -> list[dict[str, Any]]:
    """Returns evaluations with these accuracies: one every 10 steps, which end 10 seconds apart."""
    return [
        {'step': 10 * number, 'end': _BEGIN + 10.0 * number, 'top_1': value, 'top_5': value}
        | {'num_images': 100, 'seconds': 1.0, 'images_per_second': 100.0}
        for number, value in enumerate(top_1, start=1)
    ]


def _make_cluster(document: dict[str, Any]) -> None:
    """Makes the devices, images and workers agree with the flags and the numbers of processes."""
    run, cluster, flags = document['run'], document['cluster'], document['command']['flags']
    workers, devices, num_ps = cluster['num_workers'], flags['num_gpus'], cluster['num_ps']
    names = [f'worker {number}' for number in range(workers)]
    is_alone = workers + num_ps == 1
    cluster |= {
        'devices_per_worker': devices,
        'tasks': [] if is_alone else names + [f'ps {number}' for number in range(num_ps)],
        'shape': f'{workers}*{devices}' + (f'+{num_ps}' if num_ps else ''),
    }
    images = flags['batch_size'] * devices * workers
    run |= {'devices': [f'/cpu:{number}' for number in range(devices)]}
    run |= {'images_per_step': images, 'global_batch_size': images}
    (worker,) = document['workers']
    host = document['machine']['hostname']
    document['workers'] = [
        {
            **worker,
            'task': None if is_alone else name,
            'host': f'{host}-{number}' if number else host,
        }
        for number, name in enumerate(names)
    ]


def _take_steps(document: dict[str, Any], seconds: NDArray[np.float64], gap: float) -> None:
    """Replaces the steps; the program calculates what follows from them. A warm-up step takes 1.5
    times the mean.
    """
    run, num_warmup = document['run'], document['command']['flags']['num_warmup_batches']
    run |= {'num_warmup': num_warmup, 'num_timed': len(seconds)}
    (rate,) = {*document['workers'][0]['steps']['learning_rate']}
    steps, start = [], 0.0
    for i, second in enumerate([*[float(seconds.mean()) * 1.5] * num_warmup, *seconds.tolist()]):
        values = StepValues(
            7 * math.exp(-i / 30) + 0.5, learning_rate=rate, steps_before=i, steps_after=i + 1
        )
        is_timed = i >= num_warmup
        phase, index = (Phase.TIMED, i - num_warmup) if is_timed else (Phase.WARMUP, i)
        steps.append(Step(phase, index + 1, second, values, _BEGIN + start))
        start += second + gap
    between = ({PauseCause.PRINTING: gap},) * len(steps)
    log = StepLog(convert(run, RunSection), tuple(steps), between, len(document['workers']))
    for worker in document['workers']:
        worker['steps'] = as_json(log.steps_section())
    document['throughput'] = as_json(log.throughput)
    document['statistics'] = as_json(StatisticsSection.of(seconds))
    compute = document['compute']
    compute['flops_per_second'] = compute['flops_per_image'] * log.throughput.images_per_second
    compute['share_of_peak'] = compute['flops_per_second'] / compute['peak_flops_per_second']


def sample_failure(*, shape: str = '1*1', reason: str = 'it ended with 2') -> dict[str, Any]:
    """Makes the document of a run that left no result of its own."""
    flags = {'model': '--model=lenet', 'variable_update': '--variable_update=replicated'}
    return {
        'schema': 'tf_cnn_benchmarks.failure',
        'schema_version': 1,
        'id': uuid.uuid4().hex,
        'command': {'argv': list(flags.values()), 'given_flags': flags},
        'cluster': {'shape': shape},
        'reason': reason,
        'exit_code': 2,
        'started_at': '2026-11-22T08:00:00Z',
        'seconds': 1.5,
    }


def command_document(seconds: float, rate: float | None, **changes: Any) -> dict[str, Any]:
    """Makes the document of a command of another program."""
    flags = {'command': 'python a.py'} | ({'rate': r'images/sec: (\S+)'} if rate else {})
    return {
        'schema': 'tf_cnn_benchmarks.command',
        'schema_version': 1,
        'id': uuid.uuid4().hex,
        'flags': flags | changes.pop('flags', {}),
        'started_at': '2026-11-22T08:00:00Z',
        'seconds': seconds,
        'rate': rate,
        'machine': {**json.loads(_RECORDED)['machine'], 'versions': {}},
        'environment': {},
        'noise': {'seconds': seconds},
        'warnings': [],
        **changes,
    }


def partial_section(kind: type[AnySection], **values: Any) -> AnySection:
    """Returns a section with only these values. All others are None, whatever their types say."""
    return kind(**(dict.fromkeys(kind.__struct_fields__) | values))


def record_of(document: Mapping[str, Any], source: str = 'sample.json') -> Result:
    """Returns the result in a document as read from a file."""
    result = read_document(json.dumps(document), source)
    assert isinstance(result, Result)
    return result


def sample_record(**changes: Any) -> Result:
    """Returns sample_document as read from a file."""
    return record_of(sample_document(**changes))


def write_document(path: Path | str, document: Mapping[str, Any]) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding='utf-8')
    return path


def write_sample(path: Path | str, **changes: Any) -> Path:
    return write_document(path, sample_document(**changes))
