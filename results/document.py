"""Reads and checks the files of results. Does not import TensorFlow.

docs/results.md describes the documents. Their JSON Schema, results/result.schema.json, is made of results/sections.py.
"""

import functools
import json
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from errors import UsageError, read_regular
from params.table import SPECS
from results.facts import JSON_TYPES

# The value of "schema" in the document of a run, and of a run that left no result of its own.
RESULT = 'tf_cnn_benchmarks.result'
FAILURE = 'tf_cnn_benchmarks.failure'
SCHEMA_VERSION = 1


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
                facts[name] = value is not None if name in SPECS and SPECS[name].output else value
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

    @property
    def gradient_bytes(self) -> int | None:
        """The bytes of the gradients of one device, in the type in which they are sent; None if unknown."""
        compact, parameters = self.flags.get('compact_gradient_transfer'), self.document['model'].get('parameters')
        is_short = compact if self.run.get('precision') == 'fp32' else compact is not False
        return None if parameters is None else parameters * (2 if is_short else 4)

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
        known = {name: self.run.get(name) for name, spec in SPECS.items() if spec.resolved} | {
            'model': self.document['model']['name']
        }
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
    return name not in SPECS or SPECS[name].setting


def default_fact(name: str) -> Any:
    """The value of a flag in Record.facts if it is not given."""
    return False if SPECS[name].output else SPECS[name].default


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
        if not text.lstrip().startswith('{'):
            raise UsageError(
                f'{source}: it is no result; give a file that --result_file wrote (only compare reads logs, too)'
            ) from None
        raise UsageError(
            f'{source}: it is no whole JSON document ({" ".join(str(error).split())}); was its run, or a copy, cut off?'
        ) from None
    kind = document.get('schema') if isinstance(document, dict) else None
    if kind not in (RESULT, FAILURE):
        raise UsageError(f'{source}: it is no result of this program; give a file that --result_file wrote')
    version = document.get('schema_version')
    if type(version) is int and version > SCHEMA_VERSION:
        raise UsageError(
            f'{source}: its schema_version is {_short(version)}, and this program reads up to {SCHEMA_VERSION}; '
            'install a newer version of this program'
        )
    try:
        _check_document(document, text, is_failure=kind == FAILURE)
    except _DamagedError as error:
        raise UsageError(f'{source}: the document is damaged ({error}); measure again') from None
    return Record(source, document) if kind == RESULT else Failure(source, document)


def is_document(path: Path) -> bool:
    """Whether a file holds a result or the document of a failure, of any version, damaged or not."""
    try:
        document = json.loads(read_regular(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get('schema') in (RESULT, FAILURE)


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
    """Returns which steps count in the total: the timed ones."""
    return np.asarray(steps.get('phase', ()), dtype=str) == 'timed'


# ---- the check of a document ----------------------------------------------------------------------------------------

# Bounds of a document: the depth of nested objects, and numbers with which 64-bit arithmetic works.
_DEEPEST = 16
_SMALLEST, _LARGEST, _LARGEST_INTEGER = 1e-100, 1e100, 2**63 - 1
_NUMBERS = {int, float, type(None)}
# Types of values to which no bound applies.
_HARMLESS = {str, bool, type(None)}
# An escaped surrogate, which may be half of a pair and could not be printed.
_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')
_REPR = reprlib.Repr()


class _DamagedError(Exception):
    """A value that the schema does not allow: the reason, and the keys that lead to the value, outermost first."""

    def __init__(self, reason: str, *path: str) -> None:
        super().__init__(reason, *path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f'{"".join(self.path).removeprefix(".")} {self.reason}'.strip()


def _check_document(document: Mapping[str, Any], text: str, *, is_failure: bool) -> None:
    """Checks a document, a JSON object, against the schema of results or of failures, and against bounds.

    Supports the keywords of JSON Schema that these schemas use. A library would be a new core dependency, and would
    take more than 2 ms per file.

    Args:
      document: the object.
      text: the JSON from which it was read.
      is_failure: whether to use the schema of failures.

    Raises:
      _DamagedError: this program did not write the document.
    """
    schema = _schema()
    _check(document, schema['$defs']['failure'] if is_failure else schema)
    if _SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _DamagedError('it has half of a surrogate pair') from None
    if not is_failure:
        _check_columns(document)


@functools.cache
def _schema() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name('result.schema.json').read_text(encoding='utf-8'))


def _check(value: Any, schema: Mapping[str, Any], depth: int = 0) -> None:
    """Checks a value of a document against the schema and the bounds.

    Unknown keys come from a newer version, so only their bounds are checked.

    Raises:
      _DamagedError: the schema does not allow the value, or it is too deep or a number out of bounds.
    """
    kind = type(value)
    if (types := schema.get('type')) and JSON_TYPES[kind] not in types and not (kind is int and 'number' in types):
        raise _DamagedError(f'is {_short(value)}, not {types if isinstance(types, str) else " or ".join(types)}')
    choices = schema.get('enum', (schema['const'],) if 'const' in schema else None)
    # True equals 1 in Python.
    if choices and (value not in choices or kind is bool):
        raise _DamagedError(f'is {_short(value)}, not {" or ".join(map(str, choices))}')
    if depth > _DEEPEST:
        raise _DamagedError('is nested too deeply')
    if kind is dict:
        if missing := [name for name in schema.get('required', ()) if name not in value]:
            raise _DamagedError(f'lacks {", ".join(missing)}')
        known, others = schema.get('properties', {}), schema.get('additionalProperties')
        others = others if isinstance(others, dict) else {}
        for name, inner in value.items():
            if type(inner) in _HARMLESS and not others and name not in known:
                continue
            try:
                _check(inner, known.get(name, others), depth + 1)
            except _DamagedError as error:
                where = f'.{name if name.isidentifier() else _short(name)}'
                raise _DamagedError(error.reason, where, *error.path) from None
    elif kind is list:
        items = schema.get('items', {})
        if not _are_numbers(value, items):
            for index, inner in enumerate(value):
                try:
                    _check(inner, items, depth + 1)
                except _DamagedError as error:
                    raise _DamagedError(error.reason, f'[{index}]', *error.path) from None
    elif kind is int or kind is float:
        # Written so that nan fails too, since every comparison with it is false.
        if value and not _SMALLEST <= abs(value) <= (_LARGEST_INTEGER if 'integer' in (types or ()) else _LARGEST):
            raise _DamagedError(f'is {_short(value)}, out of bounds')
        if value < schema.get('minimum', value):
            raise _DamagedError(f'is {_short(value)}, below {schema["minimum"]}')
    elif kind is str and 'pattern' in schema and not re.fullmatch(schema['pattern'], value):
        raise _DamagedError(f'is {_short(value)}, not like {schema["pattern"]}')
    elif kind is str and schema.get('format') == 'date-time':
        try:
            datetime.fromisoformat(value.replace('Z', '+00:00')).timestamp()
        except (OverflowError, ValueError):
            raise _DamagedError(f'is {_short(value)}, no time in ISO 8601') from None


def _are_numbers(values: Sequence[Any], items: Mapping[str, Any]) -> bool:
    """Whether these are numbers or nulls that _check would allow; faster, since results have thousands of them."""
    types = items.get('type', ())
    kinds = set(map(type, values))
    if not kinds <= _NUMBERS or not all(
        JSON_TYPES[kind] in types or 'number' in types for kind in kinds - {type(None)}
    ):
        return False
    if type(None) in kinds and 'null' not in types:
        return False
    numbers = [value for value in values if value]
    try:
        found = np.abs(np.array(numbers, dtype=np.float64))
    except OverflowError:
        return False
    if not numbers:
        return True
    bounded = found.min() >= _SMALLEST and found.max() < (_LARGEST_INTEGER if types == 'integer' else _LARGEST)
    return bool(bounded) and min(numbers) >= items.get('minimum', -math.inf)


def _check_columns(document: Mapping[str, Any]) -> None:
    """Checks that the lists in each worker's steps have one value per step."""
    for number, worker in enumerate(document['workers']):
        steps = worker['steps']
        lists = {name: value for name, value in steps.items() if isinstance(value, list)} | steps['between']
        if len({len(value) for value in lists.values()}) > 1:
            sizes = ', '.join(f'{len(value)} of {name}' for name, value in lists.items())
            raise _DamagedError(f'has lists of unequal length ({sizes})', f'workers[{number}].steps')


def _short(value: object) -> str:
    """Formats a value of a document for one line of a message."""
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return 'a number of more than 18 digits'
    return _REPR.repr(value)
