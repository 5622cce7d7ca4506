"""A section of a result document is typed once: its object and its schema are made from one class."""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import jsonschema
import pytest

from results.facts import ADDED, as_json, schema_of

pytestmark = pytest.mark.unit


class Colour(enum.Enum):
    RED = 'red'
    BLUE = 'blue'


class Note(TypedDict):
    text: str


@dataclass(frozen=True)
class Section:
    share: Annotated[float | None, 'Of the whole.']
    colours: Sequence[Colour]
    seconds: Mapping[Colour, Annotated[float, ('minimum', 0)]]
    note: Annotated[Note | None, ADDED]


def test_a_section_becomes_an_object_that_its_schema_allows() -> None:
    section = Section(math.nan, (Colour.RED,), {Colour.BLUE: 0.5}, {'text': 'x'})
    found = as_json(section)
    assert found == {'share': None, 'colours': ['red'], 'seconds': {'blue': 0.5}, 'note': {'text': 'x'}}
    jsonschema.Draft202012Validator(schema_of(Section)).validate(found)


def test_the_schema_of_a_section_says_what_its_annotations_say() -> None:
    assert schema_of(Section) == {
        'type': 'object',
        'properties': {
            'share': {'description': 'Of the whole.', 'type': ['number', 'null']},
            'colours': {'type': 'array', 'items': {'enum': ['red', 'blue']}},
            'seconds': {
                'type': 'object',
                'propertyNames': {'enum': ['red', 'blue']},
                'additionalProperties': {'type': 'number', 'minimum': 0},
            },
            'note': {'type': ['object', 'null'], 'properties': {'text': {'type': 'string'}}, 'required': ['text']},
        },
        'required': ['share', 'colours', 'seconds'],
        'additionalProperties': False,
    }
