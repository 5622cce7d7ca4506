"""The tables of input pipelines and preprocessors. Does not import TensorFlow.

To add one, see docs/extending.md. All preprocessors crop training images in the same way, see
preprocessing.AREA_RANGE.
"""

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Preprocessor:
    """One way to preprocess the images of records.

    Attributes:
      factor, offsets: see preprocessing.Scale.
      shorter_side: the length in pixels of an image's shorter side after resizing, before its
        centre is evaluated; None for the length that makes the centre 87.5 % of the image.
      is_plain: whether images are resized bilinearly and keep their colours, whatever the flags.
    """

    name: str
    summary: str
    factor: float
    offsets: tuple[float, ...]
    shorter_side: int | None = None
    is_plain: bool = False


# The mean red, green and blue of the images of ImageNet, as the networks of Simonyan and Zisserman
# 2014 (arXiv:1409.1556), section 2.1, subtract them; the numbers come from their published
# weights.
_MEANS = (123.68, 116.78, 103.94)
DEFAULT = 'default'
PREPROCESSORS: Mapping[str, Preprocessor] = {
    row.name: row
    for row in (
        Preprocessor(DEFAULT, 'pixels from -1 to 1', factor=1 / 127.5, offsets=(1.0,)),
        # github.com/tensorflow/models, official/r1/resnet/imagenet_preprocessing.py.
        Preprocessor(
            'official_models_imagenet',
            'as ResNet in github.com/tensorflow/models: the mean colour is subtracted and '
            'nothing divided; evaluation resizes the shorter side to 256 pixels and takes the '
            'centre; no --distortions',
            factor=1.0,
            offsets=_MEANS,
            shorter_side=256,
            is_plain=True,
        ),
    )
}
# The rules of MLPerf Training for ResNet (github.com/mlcommons/training_policies) demand the same
# subtraction. Cropping is the default's.
ML_PERF = Preprocessor('ml_perf', 'pixels minus the mean colour', factor=1.0, offsets=_MEANS)


def preprocessor_for(name: str, *, ml_perf: bool) -> Preprocessor:
    """Returns the row of --input_preprocessor, or of --ml_perf, which changes only the default."""
    return ML_PERF if ml_perf and name == DEFAULT else PREPROCESSORS[name]
