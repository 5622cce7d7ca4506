"""A pipeline that ends after a stage does the work of the stages up to it, and no more."""

import itertools
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from preprocessing import ImageOptions
from tests.support.graphs import cpus, open_session
from tests.support.images import encoded, example, write_shard
from tf_cnn.inputs.catalog import RECORD_INPUT, TF_DATA, pipeline_row_for
from tf_cnn.inputs.data_sets import Arrays, Shards, find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.pipeline import InputConfig
from tf_cnn.inputs.pipeline_stages import DECODE, PARSE, STAGES, TRANSFER

pytestmark = pytest.mark.graph

PIXELS = np.zeros([24, 32, 3], np.uint8)


def write(folder: Path, record: bytes) -> Shards:
    folder.mkdir(exist_ok=True)
    write_shard(folder / shard_name('train', 0, 1), [record] * 24)
    return find_shards(str(folder), 'train')


def run(source: Shards | Arrays, name: str, last_stage: str) -> list[str]:
    """Takes two steps of a pipeline that ends after a stage; returns the types of the ops that a
    step runs last.
    """
    options = ImageOptions(height=16, width=16, channels=3, training=True, seed=3)
    config = InputConfig(source, cpus(2), 4, 10, options, last_stage=last_stage)
    with tf.Graph().as_default(), open_session(num_cpus=2) as session:
        pipeline = resolve_name(pipeline_row_for(source, name).pipeline)(config)
        session.run(pipeline.initializers)
        pipeline.warm_up(session)
        for _ in range(2):
            session.run(pipeline.per_step_ops)
        return [op.type for op in pipeline.per_step_ops]


@pytest.mark.parametrize('name', [RECORD_INPUT, TF_DATA])
@pytest.mark.parametrize(
    ('failing', 'record'), [(PARSE, b'\xff' * 40), (DECODE, example(encoded(PIXELS)[:200], 1))]
)
def test_a_fault_shows_in_the_stage_that_meets_it_and_not_before(name, failing, record, tmp_path):
    shards = write(tmp_path, record)
    for stage in itertools.takewhile(lambda stage: stage != failing, STAGES):
        run(shards, name, stage)
    with pytest.raises((tf.errors.DataLossError, tf.errors.InvalidArgumentError)):
        run(shards, name, failing)


@pytest.mark.parametrize('name', [RECORD_INPUT, TF_DATA, 'arrays'])
def test_each_stage_runs_for_several_towers_and_only_the_last_one_stages(name, tmp_path):
    source: Shards | Arrays = write(tmp_path, example(encoded(PIXELS), 1))
    if name == 'arrays':
        source = Arrays('train', np.zeros([8, 20, 20, 3], np.uint8), np.zeros(8, np.int32))
    stages = pipeline_row_for(source, name).stages
    assert [stage for stage in stages if 'Stage' in run(source, name, stage)] == [TRANSFER]
