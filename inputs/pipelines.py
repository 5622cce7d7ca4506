"""The class of each input pipeline. The other facts about it are in inputs/catalog.py."""

from collections.abc import Callable, Mapping

from inputs.array_pipeline import ArrayPipeline
from inputs.catalog import DEVICE, FEED_DICT, RECORD_INPUT, TF_DATA
from inputs.device_input import DeviceInput
from inputs.feed_input import FeedInput
from inputs.pipeline import InputParts, InputPipeline
from inputs.record_pipeline import RecordPipeline
from inputs.synthetic import SyntheticInput
from inputs.tf_data_pipeline import TfDataPipeline

PIPELINE_CLASSES: Mapping[str, Callable[[InputParts], InputPipeline]] = {
    'synthetic': SyntheticInput,
    RECORD_INPUT: RecordPipeline,
    TF_DATA: TfDataPipeline,
    'arrays': ArrayPipeline,
    DEVICE: DeviceInput,
    FEED_DICT: FeedInput,
}
