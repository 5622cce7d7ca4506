"""Checks documents against results/result.schema.json and against bounds of depth and numbers.

Supports the keywords of JSON Schema that this file uses. A library would be a new core dependency, and would take more
than 2 ms per file.
"""

import functools
import json
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

# Bounds of a document: the depth of nested objects, and numbers with which 64-bit arithmetic works.
_DEEPEST = 16
_SMALLEST, _LARGEST, _LARGEST_INTEGER = 1e-100, 1e100, 2**63 - 1
# The names of Python's types in JSON Schema.
_NAMES = {
    dict: 'object',
    list: 'array',
    str: 'string',
    bool: 'boolean',
    int: 'integer',
    float: 'number',
    type(None): 'null',
}
_NUMBERS = {int, float, type(None)}
# Types of values to which no bound applies.
_HARMLESS = {str, bool, type(None)}
# An escaped surrogate, which may be half of a pair and could not be printed.
_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')
_REPR = reprlib.Repr()


class DamagedError(Exception):
    """A value that the schema does not allow: the reason, and the keys that lead to the value, outermost first."""

    def __init__(self, reason: str, *path: str) -> None:
        super().__init__(reason, *path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f'{"".join(self.path).removeprefix(".")} {self.reason}'.strip()


def check(document: Mapping[str, Any], text: str, *, is_failure: bool) -> None:
    """Checks a document, a JSON object, against the schema of results or of failures.

    Args:
      document: the object.
      text: the JSON from which it was read.
      is_failure: whether to use the schema of failures.

    Raises:
      DamagedError: this program did not write the document.
    """
    schema = _schema()
    _check(document, schema['$defs']['failure'] if is_failure else schema)
    if _SURROGATE.search(text):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DamagedError('it has half of a surrogate pair') from None
    if not is_failure:
        _check_columns(document)


@functools.cache
def _schema() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name('result.schema.json').read_text(encoding='utf-8'))


def _check(value: Any, schema: Mapping[str, Any], depth: int = 0) -> None:
    """Checks a value of a document against the schema and the bounds.

    Unknown keys come from a newer version, so only their bounds are checked.

    Raises:
      DamagedError: the schema does not allow the value, or it is too deep or a number out of bounds.
    """
    kind = type(value)
    if (types := schema.get('type')) and _NAMES[kind] not in types and not (kind is int and 'number' in types):
        raise DamagedError(f'is {short(value)}, not {types if isinstance(types, str) else " or ".join(types)}')
    choices = schema.get('enum', (schema['const'],) if 'const' in schema else None)
    # True equals 1 in Python.
    if choices and (value not in choices or kind is bool):
        raise DamagedError(f'is {short(value)}, not {" or ".join(map(str, choices))}')
    if depth > _DEEPEST:
        raise DamagedError('is nested too deeply')
    if kind is dict:
        if missing := [name for name in schema.get('required', ()) if name not in value]:
            raise DamagedError(f'lacks {", ".join(missing)}')
        known, others = schema.get('properties', {}), schema.get('additionalProperties')
        others = others if isinstance(others, dict) else {}
        for name, inner in value.items():
            if type(inner) in _HARMLESS and not others and name not in known:
                continue
            try:
                _check(inner, known.get(name, others), depth + 1)
            except DamagedError as error:
                where = f'.{name if name.isidentifier() else short(name)}'
                raise DamagedError(error.reason, where, *error.path) from None
    elif kind is list:
        items = schema.get('items', {})
        if not _are_numbers(value, items):
            for index, inner in enumerate(value):
                try:
                    _check(inner, items, depth + 1)
                except DamagedError as error:
                    raise DamagedError(error.reason, f'[{index}]', *error.path) from None
    elif kind is int or kind is float:
        # Written so that nan fails too, since every comparison with it is false.
        if value and not _SMALLEST <= abs(value) <= (_LARGEST_INTEGER if 'integer' in (types or ()) else _LARGEST):
            raise DamagedError(f'is {short(value)}, out of bounds')
        if value < schema.get('minimum', value):
            raise DamagedError(f'is {short(value)}, below {schema["minimum"]}')
    elif kind is str and 'pattern' in schema and not re.fullmatch(schema['pattern'], value):
        raise DamagedError(f'is {short(value)}, not like {schema["pattern"]}')
    elif kind is str and schema.get('format') == 'date-time':
        try:
            datetime.fromisoformat(value.replace('Z', '+00:00')).timestamp()
        except (OverflowError, ValueError):
            raise DamagedError(f'is {short(value)}, no time in ISO 8601') from None


def _are_numbers(values: Sequence[Any], items: Mapping[str, Any]) -> bool:
    """Whether these are numbers or nulls that _check would allow; faster, since results have thousands of them."""
    types = items.get('type', ())
    kinds = set(map(type, values))
    if not kinds <= _NUMBERS or not all(_NAMES[kind] in types or 'number' in types for kind in kinds - {type(None)}):
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
            raise DamagedError(f'has lists of unequal length ({sizes})', f'workers[{number}].steps')


def short(value: object) -> str:
    """Formats a value of a document for one line of a message."""
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return 'a number of more than 18 digits'
    return _REPR.repr(value)
