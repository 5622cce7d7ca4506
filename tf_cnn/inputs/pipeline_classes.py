"""The class of each input pipeline. The other facts about it are in inputs/catalog.py."""

from collections.abc import Callable, Mapping

from tf_cnn.inputs.array_pipeline import ArrayPipeline
from tf_cnn.inputs.catalog import DEVICE, FEED_DICT, RECORD_INPUT, TF_DATA
from tf_cnn.inputs.device_input import DeviceInput
from tf_cnn.inputs.feed_input import FeedInput
from tf_cnn.inputs.pipeline import InputConfig, InputPipeline
from tf_cnn.inputs.record_pipeline import RecordPipeline
from tf_cnn.inputs.synthetic import SyntheticInput
from tf_cnn.inputs.tf_data_pipeline import TfDataPipeline

PIPELINE_CLASSES: Mapping[str, Callable[[InputConfig], InputPipeline]] = {
    'synthetic': SyntheticInput,
    RECORD_INPUT: RecordPipeline,
    TF_DATA: TfDataPipeline,
    'arrays': ArrayPipeline,
    DEVICE: DeviceInput,
    FEED_DICT: FeedInput,
}
