"""Each row of the table of input pipelines has a class, for a source of its own."""

import typing

import pytest

from inputs.catalog import (
    DEVICE,
    FEED_DICT,
    INPUTS,
    PIPELINES,
    PIPELINES_OF_ARRAYS,
    PIPELINES_OF_SYNTHETIC,
    RECORD_INPUT,
    TF_DATA,
    Source,
    input_for,
    record_pipeline,
)
from inputs.data_sets import Shards
from inputs.pipelines import PIPELINE_CLASSES

pytestmark = pytest.mark.unit


def test_each_type_of_source_has_a_row_and_names_are_used_once() -> None:
    assert all(any(issubclass(source, row.reads) for row in INPUTS) for source in typing.get_args(Source))
    assert len({row.name for row in INPUTS}) == len(INPUTS)


def test_records_can_be_read_by_each_named_pipeline_and_in_a_repeatable_order_by_default_if_asked() -> None:
    assert PIPELINES == (RECORD_INPUT, TF_DATA, DEVICE, FEED_DICT)
    assert PIPELINES_OF_ARRAYS == (DEVICE, FEED_DICT)
    assert PIPELINES_OF_SYNTHETIC == (FEED_DICT,)
    shards = Shards('train', ('train-00000-of-00001',), num_missing=0)
    assert [input_for(shards, name).name for name in (None, *PIPELINES)] == [RECORD_INPUT, *PIPELINES]
    assert input_for(None, TF_DATA) == input_for(None, DEVICE) == input_for(None)
    assert record_pipeline(None, deterministic=False).name == RECORD_INPUT
    assert record_pipeline(None, deterministic=True).name == TF_DATA
    assert record_pipeline(RECORD_INPUT, deterministic=True).name == RECORD_INPUT


def test_each_row_has_a_class_and_each_class_a_row() -> None:
    assert [*PIPELINE_CLASSES] == [row.name for row in INPUTS]
