"""The one table of input pipelines. Does not import TensorFlow.

To add a pipeline, write a module in inputs/ and add a row here, see docs/extending.md.
"""

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inputs.data_folder import Arrays
from inputs.data_sets import Shards

if TYPE_CHECKING:
    from inputs.pipeline import InputPipeline

# What a run reads: TFRecord shards, arrays in memory, or nothing.
Source = Shards | Arrays | None


@dataclass(frozen=True)
class InputRow:
    """One way to bring batches to the devices.

    Attributes:
      name: the name in the documentation.
      reads: the type of the source that the pipeline reads.
      pipeline: the class of the pipeline, as 'module:name'. Its constructor takes some of these keyword arguments:
        source, devices, batch_size, num_classes, options (preprocessing.ImageOptions), height, width, channels, seed,
        normalize_on_device, host_device, shift.
      examples: the function that lists the examples of a source for an evaluation, as 'module:name', see
        inputs.validation; None if evaluations use the pipeline itself.
    """

    name: str
    reads: type
    pipeline: str
    examples: str | None


INPUTS = (
    InputRow('synthetic', type(None), 'inputs.synthetic:SyntheticInput', None),
    InputRow('records', Shards, 'inputs.record_pipeline:RecordPipeline', 'inputs.validation:record_examples'),
    InputRow('arrays', Arrays, 'inputs.array_pipeline:ArrayPipeline', 'inputs.validation:array_examples'),
)


def input_for(source: Source) -> InputRow:
    """Returns the row of the pipeline that reads a source."""
    return next(row for row in INPUTS if isinstance(source, row.reads))


def make_pipeline(row: InputRow, **parts: Any) -> 'InputPipeline':
    """Adds the input pipeline of a row to the current graph. Parts that its constructor does not take are ignored."""
    make: Callable[..., InputPipeline] = pkgutil.resolve_name(row.pipeline)
    return make(**{name: parts[name] for name in inspect.signature(make).parameters if name in parts})
