"""A document is typed once: JSON, its schema and the check of a file are made from the classes of its sections."""

import json
import math

import jsonschema
import msgspec
import pytest

from results import schema
from results.document import Record, as_json
from results.sections import ComputeSection, StageRow, with_unknowns
from tests.support.sample_results import sample_document, sample_failure, sample_record

pytestmark = pytest.mark.unit


def test_the_schema_is_made_from_the_classes_and_allows_their_documents() -> None:
    text = schema.FILE.read_text(encoding='utf-8')
    assert text == schema.make_schema(), 'python -m results.schema writes it'
    found = json.loads(text)
    for document in (sample_document(), sample_failure()):
        jsonschema.Draft202012Validator(found).validate(document)
    assert found['$defs']['Record']['properties'].keys() == sample_document().keys()
    assert found['$defs']['StageRow']['properties']['stage']['pattern'].startswith('^(read|parse|')
    assert found['$defs']['ComputeSection']['properties']['peak_flops_per_second']['description']


def test_a_document_is_what_was_read() -> None:
    document = sample_document()
    assert as_json(sample_record()) == document
    assert list(as_json(sample_record())) == list(document)


def test_what_is_not_finite_is_unknown() -> None:
    assert as_json(with_unknowns(ComputeSection, flops_per_second=math.nan, share_of_peak=math.inf)) == {
        'flops_per_image': None,
        'flops_per_second': None,
        'peak_flops_per_second': None,
        'share_of_peak': None,
    }
    assert as_json({'loss': [1.0, math.nan], 'path': '\udcff'}) == {'loss': [1.0, None], 'path': '\udcff'}


def test_values_that_older_results_lack_have_defaults() -> None:
    document = sample_document()
    for name in ('tf32', 'steps_per_run', 'input_pipeline'):
        del document['run'][name]
    del document['input']['stages'], document['input']['memory'], document['machine']['threads']['reason']
    found = msgspec.convert(document, Record)
    assert (found.run.tf32, found.run.steps_per_run, found.run.input_pipeline) == (False, 1, None)
    assert (found.input.stages, found.input.memory) == (None, None)


def test_a_stage_has_one_of_the_names() -> None:
    with pytest.raises(msgspec.ValidationError, match='stage'):
        msgspec.convert(as_json(StageRow('other', 1.0, 1.0, 1.0, 1.0)), StageRow)
