"""Reads and writes the files of results. Does not import TensorFlow.

docs/results.md describes the documents, results/result.schema.json is their JSON Schema.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from errors import UsageError, read_regular
from params.file_flags import OUTPUTS
from params.table import SPECS
from results.schema import DamagedError, check, short

# The value of "schema" in the document of a run, and of a run that left no result of its own.
RESULT = 'tf_cnn_benchmarks.result'
FAILURE = 'tf_cnn_benchmarks.failure'
SCHEMA_VERSION = 1

# The causes of time between two steps. Evaluations do not count in the total, all others do.
CAUSES = ('printing', 'summary', 'checkpoint', 'evaluation', 'other')

# Flags that change neither a step nor the time between steps: runs that differ only in these have one setting.
_NO_SETTING = frozenset(
    {
        'result_file',
        'history',
        'benchmark_log_dir',
        'benchmark_test_id',
        'repeat',
        'verbose',
        'num_batches',
        'num_epochs',
        'target_seconds',
        'num_warmup_batches',
        'measure_peak',
        'wait_for_idle',
        'eval_dir',
        'job_name',
        'task_index',
        'ps_hosts',
        'worker_hosts',
        'controller_host',
        'cluster_port',
        'connect_timeout_secs',
        'peer_timeout_secs',
        'ps_linger_secs',
        'tf_random_seed',
        'max_ckpts_to_keep',
    }
)
# Facts of the run that are the used value of a flag: --batch_size=0 became 64, an omitted --device became cpu.
_RESOLVED = ('batch_size', 'variable_update', 'optimizer', 'precision', 'data_format', 'device', 'all_reduce_spec')


@dataclass(frozen=True)
class Record:
    """The result of one run.

    Attributes:
      source: the file from which it was read.
      document: the JSON object, see docs/results.md.
    """

    source: str
    document: Mapping[str, Any]

    @property
    def is_complete(self) -> bool:
        """Whether the run took all of its steps."""
        return bool(self.document['complete'])

    @property
    def reason(self) -> str | None:
        """Why the run is not complete, in one line; None if it is complete."""
        return self.document['ended']['reason']

    @property
    def run(self) -> Mapping[str, Any]:
        """The facts of the run: role, variable_update, batch_size, precision, ..."""
        return self.document['run']

    @property
    def shape(self) -> str:
        """Workers * devices per worker + parameter servers: '2*1+1', '1*2'."""
        return str(self.document['cluster']['shape'])

    @property
    def model(self) -> str:
        return str(self.document['model']['name'])

    @property
    def started_at(self) -> str:
        """The start of the run: UTC, ISO 8601."""
        return str(self.document['started_at'])

    @property
    def given(self) -> Mapping[str, str]:
        """The given flags by name, each as it was written."""
        return self.document['command']['given']

    @property
    def flags(self) -> Mapping[str, Any]:
        """The values of all flags, by name."""
        return self.document['command']['flags']

    @property
    def machine(self) -> Mapping[str, Any]:
        return self.document['machine']

    @property
    def warnings(self) -> Sequence[Mapping[str, str]]:
        """The warnings about the numbers: objects with code and text."""
        return self.document['warnings']

    @property
    def work(self) -> Mapping[str, Any]:
        """The facts that runs must share to be compared: model, data set, image size, role."""
        names = ('data_set', 'is_synthetic', 'image_size', 'role')
        return {'model': self.model, **{name: self.run.get(name) for name in names}}

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The shape, and the used values of the flags that change a step or the time between steps.

        The value of a flag that names an output is whether the run wrote there.
        """
        facts: dict[str, Any] = {'shape': self.shape}
        for name, value in self.flags.items():
            if is_of_setting(name):
                facts[name] = value is not None if name in OUTPUTS else value
        return facts | self._resolved()

    @functools.cached_property
    def setting(self) -> tuple[tuple[str, Any], ...]:
        """The facts that are not defaults, sorted by name; two runs with equal facts here have one setting.

        Defaults are left out so that results of versions before and after a new flag have one setting.
        """
        resolved = {'shape', *self._resolved()}
        return tuple(
            (name, value)
            for name, value in sorted(self.facts.items())
            if name in resolved or (value != default_fact(name) if name in SPECS else name in self.given)
        )

    @property
    def images_per_second(self) -> float:
        """Images of all timed steps over wall seconds, without evaluations; nan if no step was timed."""
        return as_float(self.document['throughput']['images_per_second'])

    @property
    def images_per_second_of_steps(self) -> float:
        """Images of all timed steps over the sum of their own seconds; nan if no step was timed."""
        return as_float(self.document['throughput']['images_per_second_of_steps'])

    @property
    def images(self) -> float:
        """The images of all timed steps; nan if unknown."""
        return as_float(self.document['throughput'].get('images'))

    def step_seconds(self) -> NDArray[np.float64]:
        """The seconds of each timed step of the chief, [num_steps] float64; empty if none is known."""
        steps = self._chief_steps()
        return np.asarray(steps.get('seconds', ()), dtype=np.float64)[_timed(steps)]

    def wall_seconds(self) -> NDArray[np.float64]:
        """The seconds of each timed step of the chief up to the next, without evaluations: [num_steps] float64.

        The last step ends when it is done. The sum is the time of the total.
        """
        steps = self._chief_steps()
        timed = _timed(steps)
        seconds = np.asarray(steps.get('seconds', ()), dtype=np.float64)[timed]
        if seconds.size < 2:
            return seconds
        start = np.asarray(steps['start'], dtype=np.float64)[timed]
        # Asynchronous workers go on training while the chief evaluates.
        evaluations = steps['between'].get('evaluation') if self.run.get('together', True) else None
        waited = np.zeros(len(start)) if evaluations is None else np.asarray(evaluations, dtype=np.float64)[timed]
        return np.append(np.diff(start) - waited[:-1], seconds[-1])

    def _resolved(self) -> dict[str, Any]:
        known = {name: self.run.get(name) for name in _RESOLVED} | {'model': self.document['model']['name']}
        # Whether TF32 was used, not whether the flag allowed it. Documents without it are from CPUs.
        known['tf32'] = self.run.get('tf32', False)
        return {name: value for name, value in known.items() if value is not None}

    def means_of_runs(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean seconds of the timed steps in each call of session.run: [num_runs] float64.

        With --steps_per_run, a call takes several steps, which are not measured one by one.

        Args:
          seconds: a value for each timed step.
        """
        size = self.run.get('steps_per_run') or 1
        if size == 1 or not seconds.size:
            return seconds
        starts = np.arange(0, seconds.size, size)
        return np.add.reduceat(seconds, starts) / np.diff(starts, append=seconds.size)

    def _chief_steps(self) -> Mapping[str, Any]:
        workers = self.document['workers']
        return workers[0]['steps'] if workers else {}


@dataclass(frozen=True)
class Failure:
    """A run that left no result of its own; the process that started it wrote this document instead.

    Attributes:
      source: the file from which it was read.
      document: the JSON object.
      reason: why the run failed, in one line.
      given: the given flags by name, each as it was written.
      shape: as for Record.
    """

    source: str
    document: Mapping[str, Any]

    @property
    def reason(self) -> str:
        return str(self.document['reason'])

    @property
    def given(self) -> Mapping[str, str]:
        return self.document['command']['given']

    @property
    def shape(self) -> str:
        return str(self.document['cluster']['shape'])


def is_of_setting(name: str) -> bool:
    """Whether a flag's value is part of the setting of a run."""
    return name not in _NO_SETTING


def default_fact(name: str) -> Any:
    """The value of a flag in Record.facts if it is not given."""
    return False if name in OUTPUTS else SPECS[name].default


def read_document(text: str, source: str) -> Record | Failure:
    """Reads the text of a JSON document.

    Raises:
      UsageError: it is not a result, is incomplete, or has a newer schema; the message names the source.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise UsageError(f'{source}: its objects are nested too deeply; give a file that --result_file wrote') from None
    except ValueError as error:
        raise UsageError(
            f'{source}: it is no whole JSON document ({" ".join(str(error).split())}); was its run, or a copy, cut off?'
        ) from None
    kind = document.get('schema') if isinstance(document, dict) else None
    if kind not in (RESULT, FAILURE):
        raise UsageError(f'{source}: it is no result of this program; give a file that --result_file wrote')
    version = document.get('schema_version')
    if type(version) is int and version > SCHEMA_VERSION:
        raise UsageError(
            f'{source}: its schema_version is {short(version)}, and this program reads up to {SCHEMA_VERSION}; '
            'install a newer version of this program'
        )
    try:
        check(document, text, is_failure=kind == FAILURE)
    except DamagedError as error:
        raise UsageError(f'{source}: the document is damaged ({error}); measure again') from None
    return Record(source, document) if kind == RESULT else Failure(source, document)


def read_file(path: Path) -> Record | Failure:
    """Reads a result file.

    Raises:
      UsageError: as for read_document, or the file cannot be read.
    """
    try:
        text = read_regular(path, MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise UsageError(f'{path}: it is not UTF-8 text; give a file that --result_file wrote') from None
    except OSError as error:
        raise UsageError(
            f'{path}: it cannot be read ({error.strerror}); give a file that --result_file wrote'
        ) from None
    return read_document(text, str(path))


# The largest result, in bytes, that is read: that of some million steps.
MOST_BYTES = 256 << 20


def as_float(value: float | None, otherwise: float = math.nan) -> float:
    """Returns a number of a document, or `otherwise` if it is unknown."""
    return float(value) if value is not None and math.isfinite(value) else otherwise


def _timed(steps: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Returns which steps count in the total: the timed ones since this process last joined its cluster."""
    phases = np.asarray(steps.get('phase', ()), dtype=str)
    generations = np.asarray(steps.get('generation', ()), dtype=np.int64)
    if not phases.size:
        return np.zeros(0, dtype=bool)
    return (phases == 'timed') & (generations == generations.max())
