"""The table of input pipelines. Does not import TensorFlow.

To add one, see docs/extending.md.
"""

from dataclasses import dataclass
from types import UnionType

from tf_cnn.inputs.data_sets import Arrays, Shards
from tf_cnn.inputs.pipeline_stages import PREPROCESS, READ, STAGES, TRANSFER

# The values of --input_pipeline.
RECORD_INPUT, TF_DATA, DEVICE, FEED_DICT = 'record_input', 'tf_data', 'device', 'feed_dict'
# TFRecord shards, arrays in memory, or None for synthetic images.
Source = Shards | Arrays | None


@dataclass(frozen=True)
class InputRow:
    """The properties of an input pipeline.

    Attributes:
      name: the value of --input_pipeline, or the name in the documentation if no flag selects it.
      pipeline: its class, 'module:Class'.
      source_type: the sources that it can read.
      repeatable: whether the seed alone determines the order of the images.
      in_memory: whether the run reads all images into memory in the model's size before the first
        step (inputs.validation). The pipeline gets them as Arrays.
      on_devices: whether each device keeps all images in its memory.
      stages: the stages at which --input_only can end the pipeline (`last_stage`), in order. The
        last entry is always TRANSFER, the whole pipeline.
    """

    name: str
    pipeline: str
    source_type: type | UnionType
    repeatable: bool = True
    in_memory: bool = False
    on_devices: bool = False
    stages: tuple[str, ...] = (TRANSFER,)


_ALL_STAGES = tuple(STAGES)
INPUTS = (
    InputRow('synthetic', 'tf_cnn.inputs.synthetic:SyntheticInput', type(None)),
    # The order of RecordInput also depends on how fast its readers are and when a step takes a
    # batch.
    InputRow(
        RECORD_INPUT,
        'tf_cnn.inputs.record_pipeline:RecordPipeline',
        Shards,
        repeatable=False,
        stages=_ALL_STAGES,
    ),
    InputRow(TF_DATA, 'tf_cnn.inputs.tf_data_pipeline:TfDataPipeline', Shards, stages=_ALL_STAGES),
    InputRow(
        'arrays',
        'tf_cnn.inputs.array_pipeline:ArrayPipeline',
        Arrays,
        stages=(READ, PREPROCESS, TRANSFER),
    ),
    InputRow(
        DEVICE,
        'tf_cnn.inputs.device_input:DeviceInput',
        Shards | Arrays,
        in_memory=True,
        on_devices=True,
    ),
    InputRow(
        FEED_DICT, 'tf_cnn.inputs.feed_input:FeedInput', Shards | Arrays | None, in_memory=True
    ),
)


def _pipelines_that_read(source: type) -> tuple[str, ...]:
    return tuple(row.name for row in INPUTS if issubclass(source, row.source_type))


# The values of --input_pipeline. All of these pipelines read records; the first is the default.
PIPELINES = _pipelines_that_read(Shards)
# The values that also read arrays, and those that also make synthetic images.
ARRAY_PIPELINES = tuple(name for name in PIPELINES if name in _pipelines_that_read(Arrays))
SYNTHETIC_PIPELINES = tuple(name for name in PIPELINES if name in _pipelines_that_read(type(None)))


def record_pipeline_row(name: str | None, *, deterministic: bool) -> InputRow:
    """Returns the row of the named pipeline for records.

    Without a name, returns the first row, or the first repeatable one if deterministic.
    """
    rows = [row for row in INPUTS if row.name in PIPELINES]
    if name is not None:
        return next(row for row in rows if row.name == name)
    return next(row for row in rows if row.repeatable or not deterministic)


def pipeline_row_for(source: Source, name: str | None = None) -> InputRow:
    """Returns the row of the named pipeline if it can read the source, else the first that can."""
    rows = [row for row in INPUTS if isinstance(source, row.source_type)]
    return next((row for row in rows if row.name == name), rows[0])
