"""Each row of the table of input pipelines has a class, for a source of its own."""

import inspect
import typing

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

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
from inputs.data_sets import Arrays, Shards
from inputs.pipeline import InputParts, InputPipeline
from inputs.pipelines import PIPELINE_CLASSES
from preprocessing import ImageOptions
from tests.support.graphs import cpus

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


def test_a_source_finds_the_row_of_its_type() -> None:
    arrays = Arrays('train', np.zeros([1, 2, 2, 3], np.uint8), np.zeros(1, np.int32))
    for source in (None, arrays, Shards('train', ('train-00000-of-00001',), num_missing=0)):
        assert input_for(source).reads is type(source)
        assert isinstance(source, input_for(source, FEED_DICT).reads)
        assert input_for(source, FEED_DICT).name == FEED_DICT


def test_each_row_has_a_class_and_each_class_a_row() -> None:
    assert [*PIPELINE_CLASSES] == [row.name for row in INPUTS]


@pytest.mark.parametrize('name', PIPELINE_CLASSES)
def test_the_class_of_a_row_needs_nothing_but_the_parts(name: str) -> None:
    pipeline = PIPELINE_CLASSES[name]
    assert isinstance(pipeline, type)
    assert issubclass(pipeline, InputPipeline)
    assert not inspect.isabstract(pipeline)
    parameters = inspect.signature(pipeline).parameters.values()
    assert [each.name for each in parameters if each.default is inspect.Parameter.empty] == ['parts']


def test_a_pipeline_is_made_of_the_parts_that_it_needs() -> None:
    options = ImageOptions(height=4, width=5, channels=3, training=True)
    with tf.Graph().as_default():
        pipeline = PIPELINE_CLASSES['synthetic'](InputParts(None, cpus(1), 2, 10, options, shift=0.5))
        assert pipeline.tower_batch(0).images.shape == [2, 4, 5, 3]
