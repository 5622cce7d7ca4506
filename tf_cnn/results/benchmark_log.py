"""Writes the files of the benchmark logger of TensorFlow's official models: benchmark_run.log and
metric.log.

Each line is a JSON object. benchmark_run.log has one line, about the run and its machine, and each
run replaces it. A run appends a line to metric.log for each number that it prints. Does not import
TensorFlow.
"""

import contextlib
import datetime
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import OutputError, format_flag

RUN_LOG, METRIC_LOG = 'benchmark_run.log', 'metric.log'
_TIME = '%Y-%m-%dT%H:%M:%S.%fZ'
# The names of Intel's processors contain the nominal clock: 'Xeon(R) CPU @ 2.20GHz'.
_CLOCK = re.compile(r'@ *([0-9.]+) *GHz')


def write_run(folder: str, run: Mapping[str, Any]) -> None:
    """Writes benchmark_run.log from the object of run_info(). Raises OutputError if it cannot be
    written.
    """
    with _explaining_errors(folder, RUN_LOG):
        write_atomically(_json_line(run), Path(folder, RUN_LOG))


def append_metric(folder: str, name: str, value: float, global_step: int) -> None:
    """Appends a number to metric.log; nan and infinity become null.

    Raises OutputError if it cannot be written.
    """
    metric: dict[str, Any] = {
        'name': name,
        'value': float(value) if math.isfinite(value) else None,
        'unit': None,
        'global_step': global_step,
        'timestamp': _now(),
        'extras': [],
    }
    data = _json_line(metric)
    with (
        _explaining_errors(folder, METRIC_LOG),
        open(Path(folder, METRIC_LOG), 'ab', buffering=0) as file,
    ):
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            # The whole line, or nothing.
            file.truncate(size)
            raise


@contextlib.contextmanager
def _explaining_errors(folder: str, name: str) -> Iterator[None]:
    """Raises OutputError, with the flag and the file, if the block cannot write."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f'{format_flag("benchmark_log_dir", folder)}: {name} cannot be written '
            f'({error.strerror or error}); make room or write elsewhere'
        ) from None


def _json_line(document: Mapping[str, Any]) -> bytes:
    return f'{json.dumps(document, allow_nan=False)}\n'.encode()


def run_info(
    *,
    model: str,
    data_set: str,
    flags: Mapping[str, Any],
    machine: Mapping[str, Any],
    environment: Mapping[str, str],
    tensorflow_version: str,
    tensorflow_git: str,
    test_id: str | None,
    available_memory: int | None,
) -> dict[str, Any]:
    """Returns the object of benchmark_run.log; for machine and environment see
    machine.run_environment.
    """
    gpus = machine['gpus']
    clock = _CLOCK.search(machine['cpu_model'] or '')
    return {
        'model_name': model,
        'dataset': {'name': data_set},
        'machine_config': {
            'cpu_info': {
                'num_cores': machine['num_cores'],
                'cpu_info': machine['cpu_model'],
                'mhz_per_cpu': round(float(clock[1]) * 1000, 1) if clock else None,
            },
            'gpu_info': {'count': len(gpus), 'model': gpus[0]['name'] if gpus else None},
            'memory_total': machine['memory_bytes'],
            'memory_available': available_memory,
        },
        'test_id': test_id,
        'run_date': _now(),
        'tensorflow_version': {'version': tensorflow_version, 'git_hash': tensorflow_git},
        'tensorflow_environment_variables': [
            {'name': name, 'value': value}
            for name, value in sorted(environment.items())
            if name.startswith('TF_')
        ],
        'run_parameters': [
            {'name': name, **_typed_value(value)}
            for name, value in sorted(flags.items())
            if value is not None
        ],
    }


def _typed_value(value: Any) -> dict[str, Any]:
    """Returns a value under a key that names its type. Booleans are written as text, as
    TensorFlow's logger does.
    """
    if isinstance(value, bool):
        return {'bool_value': str(value)}
    if isinstance(value, int):
        return {'long_value': value}
    if isinstance(value, float):
        return {'float_value': value} if math.isfinite(value) else {'string_value': str(value)}
    return {'string_value': os.fspath(value)}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime(_TIME)
