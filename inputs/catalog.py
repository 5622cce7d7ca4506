"""The one table of input pipelines. Does not import TensorFlow.

To add a pipeline, write a module in inputs/ and add a row here, see docs/extending.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any

from inputs.data_sets import Arrays, Shards
from inputs.stages import PREPROCESS, READ, STAGES, TRANSFER
from machine.tensorflow_import import LazyPackage

if TYPE_CHECKING:
    import inputs.array_pipeline
    import inputs.device_input
    import inputs.feed_input
    import inputs.record_pipeline
    import inputs.synthetic
    import inputs.tf_data_pipeline
    import inputs.validation
    from inputs.pipeline import InputParts, InputPipeline
    from inputs.validation import Dataset, Share
    from preprocessing import ImageOptions
else:
    inputs = LazyPackage('inputs')

# The values of --input_pipeline.
RECORD_INPUT, TF_DATA, DEVICE, FEED_DICT = 'record_input', 'tf_data', 'device', 'feed_dict'
# What a run reads: TFRecord shards, arrays in memory, or nothing.
Source = Shards | Arrays | None
# Returns the class of a pipeline. Only the call imports its module, and so TensorFlow.
PipelineClass = Callable[[], Callable[['InputParts'], 'InputPipeline']]
# Returns a function as those of inputs.validation, likewise.
ListExamples = Callable[[], Callable[[Any, int, 'ImageOptions', 'Share'], 'Dataset']]


@dataclass(frozen=True)
class InputRow:
    """One way to bring batches to the devices.

    Attributes:
      name: the value of --input_pipeline, or the name in the documentation if it cannot be chosen.
      examples: returns the function that lists the examples of a source for an evaluation; if None, evaluations take
        that of the first row that reads the source.
      repeatable: whether the seed alone determines the order of the images.
      in_memory: whether all images are read into memory in the model's size before the first step, see
        inputs.validation. The pipeline gets them as Arrays.
      on_devices: whether each device then has all of them in its memory.
      stages: the stages after which the pipeline can end (`until`), in order, for --input_only. The last one is always
        TRANSFER: the whole pipeline.
    """

    name: str
    reads: type | UnionType
    pipeline: PipelineClass
    examples: ListExamples | None
    repeatable: bool = True
    in_memory: bool = False
    on_devices: bool = False
    stages: tuple[str, ...] = (TRANSFER,)


_ALL = tuple(STAGES)
INPUTS = (
    InputRow('synthetic', type(None), lambda: inputs.synthetic.SyntheticInput, None),
    # The order of RecordInput also depends on which of its readers is faster, and on when a batch is taken.
    InputRow(
        RECORD_INPUT,
        Shards,
        lambda: inputs.record_pipeline.RecordPipeline,
        lambda: inputs.validation.record_examples,
        repeatable=False,
        stages=_ALL,
    ),
    InputRow(
        TF_DATA,
        Shards,
        lambda: inputs.tf_data_pipeline.TfDataPipeline,
        lambda: inputs.validation.record_examples,
        stages=_ALL,
    ),
    InputRow(
        'arrays',
        Arrays,
        lambda: inputs.array_pipeline.ArrayPipeline,
        lambda: inputs.validation.array_examples,
        stages=(READ, PREPROCESS, TRANSFER),
    ),
    InputRow(DEVICE, Shards | Arrays, lambda: inputs.device_input.DeviceInput, None, in_memory=True, on_devices=True),
    InputRow(FEED_DICT, Shards | Arrays | None, lambda: inputs.feed_input.FeedInput, None, in_memory=True),
)


def _names_of_readers(source: type) -> tuple[str, ...]:
    return tuple(row.name for row in INPUTS if issubclass(source, row.reads))


# The values of --input_pipeline. All of these pipelines read records; the first is the default.
PIPELINES = _names_of_readers(Shards)
# The values that have an effect on arrays, and on synthetic images.
PIPELINES_OF_ARRAYS = tuple(name for name in PIPELINES if name in _names_of_readers(Arrays))
PIPELINES_OF_SYNTHETIC = tuple(name for name in PIPELINES if name in _names_of_readers(type(None)))


def record_pipeline(name: str | None, *, deterministic: bool) -> InputRow:
    """Returns the row of the pipeline of this name for records; by default the first, or the first repeatable one."""
    rows = [row for row in INPUTS if row.name in PIPELINES]
    if name is not None:
        return next(row for row in rows if row.name == name)
    return next(row for row in rows if row.repeatable or not deterministic)


def input_for(source: Source, name: str | None = None) -> InputRow:
    """Returns the row of the pipeline that reads a source: that of this name if there is one, else the first."""
    rows = [row for row in INPUTS if isinstance(source, row.reads)]
    return next((row for row in rows if row.name == name), rows[0])
