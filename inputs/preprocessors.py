"""The one table of --input_preprocessor: how pixels become numbers, and which part of an image is evaluated.

Does not import TensorFlow. What a training image is cut to is the same in all of them: see preprocessing.AREA_RANGE.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preprocessor:
    """One way to preprocess the images of records.

    Attributes:
      name: the value of the flag. summary: for its help.
      factor, offsets: a pixel of 0 to 255 becomes factor * pixel - offset; offsets are for red, green and blue, or one
        for all.
      shorter_side: to how many pixels the shorter side of an image is brought before its centre is evaluated; None: to
        as many as make that centre 87.5 % of the image.
      plain: whether images are resized bilinearly and never change colours, whatever the flags.
    """

    name: str
    summary: str
    factor: float
    offsets: tuple[float, ...]
    shorter_side: int | None = None
    plain: bool = False


# The mean red, green and blue of the images of ImageNet, as the networks of Simonyan and Zisserman 2014
# (arXiv:1409.1556), section 2.1, subtract them; the numbers are those of their published weights.
_MEANS = (123.68, 116.78, 103.94)
DEFAULT = 'default'
PREPROCESSORS: Mapping[str, Preprocessor] = {
    row.name: row
    for row in (
        Preprocessor(DEFAULT, 'pixels from -1 to 1', factor=1 / 127.5, offsets=(1.0,)),
        # github.com/tensorflow/models, official/r1/resnet/imagenet_preprocessing.py.
        Preprocessor(
            'official_models_imagenet',
            'that of ResNet in github.com/tensorflow/models: the mean colour is subtracted and nothing divided; '
            'evaluation resizes the shorter side to 256 pixels and takes the centre; no --distortions',
            factor=1.0,
            offsets=_MEANS,
            shorter_side=256,
            plain=True,
        ),
    )
}
# The rules of MLPerf Training for ResNet (github.com/mlcommons/training_policies) demand the subtraction too; what is
# cut out of an image stays as it is.
ML_PERF = Preprocessor('ml_perf', 'pixels less the mean colour', factor=1.0, offsets=_MEANS)


def preprocessor_for(name: str, *, ml_perf: bool) -> Preprocessor:
    """The row of --input_preprocessor, or that of --ml_perf, which changes the default only."""
    return ML_PERF if ml_perf and name == DEFAULT else PREPROCESSORS[name]
