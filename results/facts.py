"""The facts of a run that users see: each is declared once, as a marked field of the plan.

A field of a part of the plan that is marked with fact(), or a property marked with as_fact(), is printed before the
run, written into the object "run" of its result document, or both. results/result.schema.json is made from the same
marks. So a new fact is one marked field, and the planner that finds its value. Does not import TensorFlow.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar('Function', bound=Callable[..., Any])

_MARK = 'fact'
_JSON_TYPES = {str: 'string', bool: 'boolean', int: 'integer', float: 'number', type(None): 'null'}


@dataclass(frozen=True)
class FactMark:
    """Where and how a fact is shown.

    Attributes:
      name: its key in the object "run" of the result document; empty if it is not in the document.
      meaning: its description in the schema; empty if the name is enough.
      label: the label of its line before the run; empty if it has none.
      text: returns the text of that line for a value, or None for no line. By default the value itself, unless it is
        None or empty.
      choices: all its possible values; empty if there is no such list.
      since_first: whether every result in this version of the format contains it.
    """

    name: str = ''
    meaning: str = ''
    label: str = ''
    text: Callable[[Any], object] | None = None
    choices: tuple[Any, ...] = ()
    since_first: bool = True


def fact(name: str = '', meaning: str = '', **more: Any) -> dict[str, FactMark]:
    """Returns the metadata that marks a dataclass's field as a fact; the arguments are those of FactMark."""
    return {_MARK: FactMark(name, meaning, **more)}


def as_fact(name: str = '', meaning: str = '', **more: Any) -> Callable[[Function], Function]:
    """Marks a property as a fact, as a decorator below @property; the arguments are those of FactMark."""

    def mark(function: Function) -> Function:
        setattr(function, _MARK, FactMark(name, meaning, **more))
        return function

    return mark


def run_facts(parts: Iterable[object]) -> dict[str, Any]:
    """Returns the facts of the parts of a plan in the object "run" of a result document, as values of JSON."""
    return {
        mark.name: _plain(getattr(part, key)) for part in parts for key, mark, _ in _marked(type(part)) if mark.name
    }


def banner_lines(parts: Iterable[object]) -> list[tuple[str, object]]:
    """Returns the lines before a run: (label, value) pairs."""
    lines = []
    for part in parts:
        for key, mark, _ in _marked(type(part)):
            if not mark.label:
                continue
            value = _plain(getattr(part, key))
            shown = mark.text(value) if mark.text else (None if value == '' else value)
            if shown is not None:
                lines.append((mark.label, shown))
    return lines


def schema_of(kinds: Iterable[type]) -> dict[str, Any]:
    """Returns the JSON Schema of the object that run_facts makes from parts of these types."""
    properties, required = {}, []
    for kind in kinds:
        for _, mark, annotation in _marked(kind):
            if mark.name:
                properties[mark.name] = _schema(mark, annotation)
                if mark.since_first:
                    required.append(mark.name)
    return {'type': 'object', 'properties': properties, 'required': required}


def _marked(kind: type) -> Iterator[tuple[str, FactMark, Any]]:
    """Yields the name, the mark and the type of each fact of a part, fields first."""
    for one in dataclasses.fields(kind):
        if _MARK in one.metadata:
            yield one.name, one.metadata[_MARK], one.type
    for name, value in vars(kind).items():
        if isinstance(value, property) and (mark := getattr(value.fget, _MARK, None)):
            yield name, mark, value.fget.__annotations__['return']


def _plain(value: Any) -> Any:
    """Converts a value to one of JSON."""
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _schema(mark: FactMark, annotation: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = {'description': mark.meaning} if mark.meaning else {}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {**found, 'enum': [one.value for one in annotation]}
    if mark.choices:
        return {**found, 'enum': [*mark.choices]}
    if typing.get_origin(annotation) is tuple:
        return {**found, 'type': 'array', 'items': {'type': _JSON_TYPES[typing.get_args(annotation)[0]]}}
    is_union = isinstance(annotation, types.UnionType)
    kinds = [_JSON_TYPES[kind] for kind in (typing.get_args(annotation) if is_union else (annotation,))]
    # All numbers among the facts are at least zero.
    bounds = {'minimum': 0} if {'integer', 'number'} & {*kinds} else {}
    return {**found, 'type': kinds if len(kinds) > 1 else kinds[0], **bounds}
