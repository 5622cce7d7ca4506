"""What a result says, typed once: as a marked field of the plan, or as a field of a section of the result document.

A field of a part of the plan that is marked with fact(), or a property marked with as_fact(), is printed before the
run, written into the object "run" of its result document, or both. A section of the document (results/sections.py) is a
dataclass: each field is a key of its object. An annotation Annotated[TYPE, ...] adds to a field or a type

  - its description, a string,
  - keywords of JSON Schema that the type does not imply, pairs such as ('minimum', 0),
  - ADDED, if earlier results in this version of the format lack the key.

as_json makes the document from the sections, schema_of its JSON Schema. Does not import TensorFlow.
"""

import dataclasses
import enum
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

Function = TypeVar('Function', bound=Callable[..., Any])

ADDED = object()
# The names of Python's types in JSON Schema.
JSON_TYPES = {
    dict: 'object',
    list: 'array',
    str: 'string',
    bool: 'boolean',
    int: 'integer',
    float: 'number',
    type(None): 'null',
}
# Types of values that JSON has as they are: the first check, since the columns of steps have very many.
_PLAIN = {str, bool, int, type(None)}
_MARK = 'fact'


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


# ---- values ----------------------------------------------------------------------------------------------------------


def run_facts(parts: Iterable[object]) -> dict[str, Any]:
    """Returns the facts of the parts of a plan in the object "run" of a result document, as values of JSON."""
    return {
        mark.name: as_json(getattr(part, key)) for part in parts for key, mark, _ in _marked(type(part)) if mark.name
    }


def banner_lines(parts: Iterable[object]) -> list[tuple[str, object]]:
    """Returns the lines before a run: (label, value) pairs."""
    lines = []
    for part in parts:
        for key, mark, _ in _marked(type(part)):
            if not mark.label:
                continue
            value = as_json(getattr(part, key))
            shown = mark.text(value) if mark.text else (None if value == '' else value)
            if shown is not None:
                lines.append((mark.label, shown))
    return lines


def as_json(value: Any) -> Any:
    """Converts a value, such as a section of a document, to values of JSON, which has no nan and no infinity: null."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {as_json(name): as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return value


# ---- schemas ---------------------------------------------------------------------------------------------------------


def run_schema(kinds: Iterable[type]) -> dict[str, Any]:
    """Returns the JSON Schema of the object that run_facts makes from parts of these types."""
    properties, required = {}, []
    for kind in kinds:
        for _, mark, annotation in _marked(kind):
            if mark.name:
                properties[mark.name] = _schema_of_fact(mark, annotation)
                if mark.since_first:
                    required.append(mark.name)
    return {'type': 'object', 'properties': properties, 'required': required}


def schema_of(kind: Any) -> dict[str, Any]:
    """Returns the JSON Schema of a type: of scalars, enums, lists, mappings, and classes of them.

    The object of a dataclass has no other keys than its fields; that of a TypedDict may have others.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        descriptions = [('description', note) for note in arguments[1:] if isinstance(note, str)]
        keywords: dict[str, Any] = dict(note for note in arguments[1:] if isinstance(note, tuple))
        # A list of all values says more than their type.
        inner = {} if keywords.keys() & {'const', 'enum'} else schema_of(arguments[0])
        return {**dict(descriptions), **inner, **keywords}
    if origin in (typing.Union, types.UnionType):
        kinds = [schema_of(one) for one in arguments]
        return {**functools.reduce(operator.or_, kinds), 'type': [one['type'] for one in kinds]}
    if origin and issubclass(origin, Mapping):
        names = {} if arguments[0] is str else {'propertyNames': schema_of(arguments[0])}
        return {'type': 'object', **names, 'additionalProperties': schema_of(arguments[1])}
    if origin:
        return {'type': 'array', 'items': schema_of(arguments[0])}
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        fields = typing.get_type_hints(kind, include_extras=True)
        optional = {name for name, one in fields.items() if ADDED in typing.get_args(one)}
        required = getattr(kind, '__required_keys__', fields.keys())
        return {
            'type': 'object',
            'properties': {name: schema_of(one) for name, one in fields.items()},
            'required': [name for name in fields if name in required and name not in optional],
            **({'additionalProperties': False} if dataclasses.is_dataclass(kind) else {}),
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {'enum': [one.value for one in kind]}
    return {} if kind is Any else {'type': JSON_TYPES[kind]}


def _schema_of_fact(mark: FactMark, annotation: Any) -> dict[str, Any]:
    found = {'enum': [*mark.choices]} if mark.choices else schema_of(annotation)
    # All numbers among the facts are at least zero.
    kinds = found.get('type', '')
    bounds = {'minimum': 0} if 'integer' in kinds or 'number' in kinds else {}
    return {**({'description': mark.meaning} if mark.meaning else {}), **found, **bounds}


def has_facts(kind: type) -> bool:
    """Whether a part of the plan, a dataclass, has a marked field or property."""
    return any(_marked(kind))


def _marked(kind: type) -> Iterator[tuple[str, FactMark, Any]]:
    """Yields the name, the mark and the type of each fact of a part, fields first."""
    for one in dataclasses.fields(kind):
        if _MARK in one.metadata:
            yield one.name, one.metadata[_MARK], one.type
    for name, value in vars(kind).items():
        if isinstance(value, property) and (mark := getattr(value.fget, _MARK, None)):
            yield name, mark, value.fget.__annotations__['return']
