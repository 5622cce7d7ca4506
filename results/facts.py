"""Facts of a run that are told to its users: each is typed once, where it stands in the plan.

A field or a property of a part of the plan that is marked with told() or tells() is printed before the run, written
into the object "run" of its result document, or both; results/result.schema.json is made from the same marks. So a new
fact is one marked field, and the planner that finds its value. Does not import TensorFlow.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar('Function', bound=Callable[..., Any])

_MARK = 'told'
_JSON_TYPES = {str: 'string', bool: 'boolean', int: 'integer', float: 'number', type(None): 'null'}


@dataclass(frozen=True)
class Told:
    """How a fact is told.

    Attributes:
      name: its key in the object "run" of the result document; empty if it is not there.
      meaning: its description in the schema; empty if its name says all.
      label: of its line before the run; empty if there is none.
      text: its value in that line; None leaves the line out. By default the value itself, unless that is None or empty.
      choices: all values that it can have; empty if there is no such list.
      since_first: whether it stands in every result of this version of the format.
    """

    name: str = ''
    meaning: str = ''
    label: str = ''
    text: Callable[[Any], object] | None = None
    choices: tuple[Any, ...] = ()
    since_first: bool = True


def told(name: str = '', meaning: str = '', **more: Any) -> dict[str, Told]:
    """The metadata of a dataclass's field that is told; the arguments are those of Told."""
    return {_MARK: Told(name, meaning, **more)}


def tells(name: str = '', meaning: str = '', **more: Any) -> Callable[[Function], Function]:
    """Marks the function of a property that is told; the arguments are those of Told. To stand below @property."""

    def mark(function: Function) -> Function:
        setattr(function, _MARK, Told(name, meaning, **more))
        return function

    return mark


def run_facts(parts: Iterable[object]) -> dict[str, Any]:
    """The object "run" of a result document, as far as the parts of a plan know it, in values that JSON has."""
    return {
        mark.name: _plain(getattr(part, key)) for part in parts for key, mark, _ in _marked(type(part)) if mark.name
    }


def banner_lines(parts: Iterable[object]) -> list[tuple[str, object]]:
    """The lines before a run: the label and the value of each."""
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
    """The JSON Schema of the object "run" that run_facts makes from parts of these types."""
    properties, required = {}, []
    for kind in kinds:
        for _, mark, annotation in _marked(kind):
            if mark.name:
                properties[mark.name] = _schema(mark, annotation)
                if mark.since_first:
                    required.append(mark.name)
    return {'type': 'object', 'properties': properties, 'required': required}


def _marked(kind: type) -> Iterator[tuple[str, Told, Any]]:
    """The name, the mark and the type of each fact of a part, fields first."""
    for one in dataclasses.fields(kind):
        if _MARK in one.metadata:
            yield one.name, one.metadata[_MARK], one.type
    for name, value in vars(kind).items():
        if isinstance(value, property) and (mark := getattr(value.fget, _MARK, None)):
            yield name, mark, value.fget.__annotations__['return']


def _plain(value: Any) -> Any:
    """A value that JSON has."""
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _schema(mark: Told, annotation: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = {'description': mark.meaning} if mark.meaning else {}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {**found, 'enum': [one.value for one in annotation]}
    if mark.choices:
        return {**found, 'enum': [*mark.choices]}
    if typing.get_origin(annotation) is tuple:
        return {**found, 'type': 'array', 'items': {'type': _JSON_TYPES[typing.get_args(annotation)[0]]}}
    is_union = isinstance(annotation, types.UnionType)
    kinds = [_JSON_TYPES[kind] for kind in (typing.get_args(annotation) if is_union else (annotation,))]
    # No number here is below zero.
    bounds = {'minimum': 0} if {'integer', 'number'} & {*kinds} else {}
    return {**found, 'type': kinds if len(kinds) > 1 else kinds[0], **bounds}
