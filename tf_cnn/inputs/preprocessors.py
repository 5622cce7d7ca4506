"""The table of --input_preprocessor: the scale of pixels, and the part of an image to evaluate.

Does not import TensorFlow. All preprocessors crop training images in the same way, see
preprocessing.AREA_RANGE.
"""

from collections.abc import Mapping
from dataclasses import dataclass


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
