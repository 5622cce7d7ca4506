"""Result documents, and sweeps of a program that takes no time."""

import contextlib
import json
import math
import os
import select
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from params import Params
from results.document import Record
from sweeps.configurations import SweepPlan, make_plan
from sweeps.folder import Folder
from sweeps.request import override
from sweeps.runner import Starter, limits_of
from sweeps.sweep_file import read_file

# ---- sample results --------------------------------------------------------------------------------------------------
# Result documents as a run writes them, with step times drawn at random, for tests that read results.

START = 1_790_000_000.0


# The arguments are the facts that tests change; the rest of the document follows from them.
# The arguments are the facts that tests change; the rest of the document follows from them.
def sample_document(
    *,
    seconds: ArrayLike | None = None,
    rate: float = 100.0,
    num_steps: int = 50,
    noise: float = 0.02,
    seed: int = 0,
    gap: float = 0.0002,
    model: str = 'lenet',
    variable_update: str = 'replicated',
    batch_size: int = 32,
    num_workers: int = 1,
    devices_per_worker: int = 1,
    num_ps: int = 0,
    precision: str = 'fp32',
    role: str = 'training',
    hostname: str = 'alpha',
    cpu_model: str = 'Example CPU 1 @ 2.0GHz',
    started_at: str = '2026-11-22T08:00:00Z',
    complete: bool = True,
    reason: str | None = None,
    flags: Mapping[str, Any] | None = None,
    warnings: Sequence[Mapping[str, str]] = (),
    num_warmup: int = 2,
    accuracies: Sequence[float] = (),
) -> dict[str, Any]:
    """Makes the document of a run.

    Args:
      seconds: the seconds of each timed step; by default drawn around `rate` images/sec with the relative `noise`.
      gap: the seconds of printing after each step.
      flags: further given flags.
      accuracies: the top-1 accuracies of evaluations, one every 10 steps, which end 10 seconds apart.
    """
    images = batch_size * devices_per_worker * num_workers
    draw = np.random.default_rng(seed)
    if seconds is None:
        seconds = images / rate * np.exp(draw.normal(0, noise, num_steps))
    timed = np.asarray(seconds, dtype=np.float64)
    every = np.concatenate([np.full(num_warmup, timed.mean() * 1.5), timed])
    starts = START + np.concatenate([[0.0], np.cumsum(every + gap)[:-1]])
    num_timed = len(timed)
    step_seconds = float(timed.sum())
    wall_seconds = step_seconds + gap * (num_timed - 1)
    rates = images / timed
    half = num_timed // 2
    given = {
        'model': model,
        'variable_update': variable_update,
        'batch_size': batch_size,
        'num_gpus': devices_per_worker,
        'precision': precision,
        **(flags or {}),
    }
    shape = f'{num_workers}*{devices_per_worker}' + (f'+{num_ps}' if num_ps else '')
    tasks = [f'worker {i}' for i in range(num_workers)] + [f'ps {i}' for i in range(num_ps)]
    is_alone = num_workers == 1 and not num_ps

    def worker(number: int) -> dict[str, Any]:
        return {
            'task': None if is_alone else f'worker {number}',
            'host': hostname,
            'memory': {'host_peak_bytes': 900_000_000, 'device_peak_bytes': {}},
            'steps': {
                'phase': ['warmup'] * num_warmup + ['timed'] * num_timed,
                'index': [*range(1, num_warmup + 1), *range(1, num_timed + 1)],
                'global_step': list(range(1, len(every) + 1)),
                'generation': [1] * len(every),
                'start': starts.tolist(),
                'seconds': every.tolist(),
                'loss': [7.0 * math.exp(-i / 30) + 0.5 for i in range(len(every))],
                'top_1': None,
                'top_5': None,
                'learning_rate': [0.005] * len(every),
                'input_wait': None,
                'between': {'printing': [gap] * len(every)},
            },
        }

    flops = 6 * 0.04e9
    total = images * num_timed / wall_seconds
    return {
        'schema': 'tf_cnn_benchmarks.result',
        'schema_version': 1,
        'id': uuid.UUID(int=int(draw.integers(2**62))).hex,
        'complete': complete,
        'ended': {'exit_code': 0 if complete else 1, 'reason': reason},
        'started_at': started_at,
        'ended_at': started_at,
        'program': {'version': '0.1.0', 'git_commit': None},
        'command': {
            'argv': [f'--{name}={value}' for name, value in given.items()],
            'flags': {**given, 'tf_random_seed': 1234},
            'given': {name: f'--{name}={value}' for name, value in given.items()},
        },
        'run': {
            'role': role,
            'variable_update': variable_update,
            'sync': True,
            'together': True,
            'all_reduce_spec': None,
            'optimizer': (flags or {}).get('optimizer', 'sgd'),
            'precision': precision,
            'data_format': 'NHWC',
            'device': 'cpu',
            'devices': [f'/cpu:{i}' for i in range(devices_per_worker)],
            'data_set': 'imagenet',
            'is_synthetic': True,
            'image_size': 28,
            'batch_size': batch_size,
            'global_batch_size': images,
            'images_per_step': images,
            'num_warmup': num_warmup,
            'num_timed': num_timed,
            'num_epochs': 0.01,
            'display_every': 10,
            'num_missing_shards': 0,
            'num_skipped_steps': 0,
        },
        'cluster': {
            'shape': shape,
            'num_workers': num_workers,
            'devices_per_worker': devices_per_worker,
            'num_ps': num_ps,
            'tasks': [] if is_alone else tasks,
        },
        'model': {'name': model, 'parameters': 1_234_567, 'gflops_per_image': 0.04},
        'workers': [worker(number) for number in range(num_workers)],
        'throughput': {
            'images_per_second': total,
            'images_per_second_of_steps': images * num_timed / step_seconds,
            'images': images * num_timed,
            'wall_seconds': wall_seconds,
            'step_seconds': step_seconds,
            'between_seconds': {'printing': gap * (num_timed - 1)},
            'standard_error': float(rates.std(ddof=1) / math.sqrt(num_timed)) if num_timed > 1 else 0.0,
            'jitter': float(1.4826 * np.median(np.abs(rates - np.median(rates)))),
            'images_per_second_per_device': total / (num_workers * devices_per_worker),
        },
        'statistics': {
            'num_steps': num_timed,
            'step_seconds': {
                'mean': float(timed.mean()),
                'median': float(np.median(timed)),
                'mad': float(np.median(np.abs(timed - np.median(timed)))),
                'min': float(timed.min()),
                'max': float(timed.max()),
                **{f'p{p}': float(np.percentile(timed, p)) for p in (50, 90, 95, 99)},
            },
            'drift': float(timed[:half].mean() / timed[half:].mean() - 1) if num_timed > 3 else None,
            'num_outliers': 0,
        },
        'phases': {'import': 3.0, 'join': 0.0, 'build': 0.5, 'initialise': 0.2, 'warm_up': 1.0, 'first_step': 4.8},
        'compute': {
            'flops_per_image': flops,
            'flops_per_second': flops * total,
            'peak_flops_per_second': 1.77e11,
            'share_of_peak': flops * total / 1.77e11,
        },
        'memory': {'host_peak_bytes': 900_000_000, 'device_peak_bytes': {}},
        'transfer': {
            'bytes_per_ps': [4_938_268] * num_ps,
            'bytes_per_step': 9_876_536 if num_ps else None,
            'in_shared_memory': False,
        },
        'input': {'wait_seconds': None, 'wait_share': None},
        'energy': {'source': None, 'joules': None, 'joules_per_image': None},
        'evaluations': [
            {
                'step': 10 * number,
                'num_images': 100,
                'top_1': top_1,
                'top_5': top_1,
                'seconds': 1.0,
                'end': START + 10.0 * number,
                'images_per_second': 100.0,
            }
            for number, top_1 in enumerate(accuracies, 1)
        ],
        'machine': {
            'hostname': hostname,
            'os': 'Debian GNU/Linux 12',
            'kernel': '6.1.0',
            'cpu_model': cpu_model,
            'num_cores': 2,
            'num_physical_cores': 2,
            'num_sockets': 1,
            'memory_bytes': 25_000_000_000,
            'affinity': [0, 1],
            'cgroup_cpus': None,
            'cgroup_memory_bytes': None,
            'governor': None,
            'load_average': [0.1, 0.2, 0.3],
            'is_virtual': True,
            'gpus': [],
            'cpu_features': ['avx2', 'avx512f'],
            'versions': {
                'python': '3.11.7',
                'tensorflow': '2.21.0',
                'numpy': '2.3.0',
                'cuda': None,
                'cudnn': None,
                'nccl': None,
                'driver': None,
            },
            'threads': {'intra_op': 2, 'inter_op': 2, 'reason': 'one tower has all cores'},
            'fingerprint': f'{hostname}-{cpu_model}'.encode().hex()[:16],
        },
        'environment': {},
        'disturbance': {},
        'warnings': list(warnings),
    }


def sample_failure(
    *, model: str = 'lenet', variable_update: str = 'replicated', shape: str = '1*1', reason: str = 'it ended with 2'
) -> dict[str, Any]:
    """Makes the document of a run that left no result of its own."""
    given = {'model': f'--model={model}', 'variable_update': f'--variable_update={variable_update}'}
    return {
        'schema': 'tf_cnn_benchmarks.failure',
        'schema_version': 1,
        'id': uuid.uuid4().hex,
        'command': {'argv': list(given.values()), 'given': given},
        'cluster': {'shape': shape},
        'reason': reason,
        'exit_code': 2,
        'started_at': '2026-11-22T08:00:00Z',
        'seconds': 1.5,
    }


def sample_record(source: str = 'sample.json', **changes: Any) -> Record:
    """Returns sample_document as read from a file."""
    return Record(source, sample_document(**changes))


def write_sample(path: Path, **changes: Any) -> Path:
    """Writes sample_document to a file, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sample_document(**changes)), encoding='utf-8')
    return path


# ---- sweeping --------------------------------------------------------------------------------------------------------
# Sweeps of tests: plans from TOML, and the small program that takes the place of the real one.

_DEADLINE_SECS = 60
FAKE = (sys.executable, '-I', '-S', str(Path(__file__).with_name('fake_benchmark.py')))


def accept(params: Params, alone: bool) -> None:
    """A check that accepts every run."""
    del params, alone


def plan_of(folder: Path, text: str, *rest: str, has_gpu: bool = False) -> SweepPlan:
    """Makes the plan of a TOML file with this text, and of the flags after --."""
    path = folder / 'sweep_file.toml'
    path.write_text(text)
    return make_plan(override(read_file(path), rest, {}), accept, has_gpu=has_gpu)


def environment(folder: Path, behaviours: Mapping[str, object] | None = None, num_steps: int = 4) -> dict[str, str]:
    """Returns the environment of the small program; its result has num_steps steps."""
    document = folder / 'document.txt'
    document.write_text(json.dumps(sample_document(num_steps=num_steps)))
    return {
        'FAKE_LOG': str(folder / 'log.txt'),
        'FAKE_DOCUMENT': str(document),
        'FAKE_BEHAVIOURS': json.dumps(behaviours or {}),
    }


def starter(folder: Path, plan: SweepPlan | None = None, behaviours: Mapping[str, object] | None = None) -> Starter:
    """Returns a starter of the small program within the limits of the plan."""
    limits = {} if plan is None else {'limits': limits_of(plan.settings)}
    return Starter(FAKE, environment(folder, behaviours), **limits)


def created(folder: Path, plan: SweepPlan) -> Folder:
    """Creates the folder of a sweep that has not begun."""
    made = Folder(folder / 'out')
    made.create(plan)
    return made


def assert_ended(pids: list[int]) -> None:
    """Waits until these processes, which need not be children of this one, have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                assert select.select([descriptor], [], [], _DEADLINE_SECS)[0], pid
            finally:
                os.close(descriptor)


def runs_in(folder: Path) -> list[Sequence[str]]:
    """Returns the words of each started run, in order."""
    log = folder / 'log.txt'
    return [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []


def sizes_in(folder: Path) -> list[int]:
    """Returns the batch size of each started run, in order, from its last flag."""
    return [
        int([word for word in words if word.startswith('--batch_size=')][-1].partition('=')[2])
        for words in runs_in(folder)
    ]
