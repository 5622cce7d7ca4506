"""Plans what is read into memory before the first step. Does not import TensorFlow."""

from collections.abc import Iterable, Mapping
from typing import Any

from errors import UsageError, spelled
from hardware.surroundings import free_memory
from inputs.catalog import RECORD_INPUT
from inputs.data_sets import Arrays
from params import Params
from params.input_flags import holds_all_images
from planning.plan import Data

_CROPPED, _KEPT = 'resized_crop', 'padded_crop'


def choose_augmentation(params: Params, usual: str, warnings: list[str]) -> str:
    """How training images are changed at random; warns if that is not as usual for the flags and the data set."""
    if usual != _CROPPED or not holds_all_images(params) or not params.trains:
        return usual
    warnings.append(
        f'{spelled("input_pipeline", params.input_pipeline)}: it keeps each image in one size, so that training shifts '
        f'and flips images and cuts no other parts out of them (--augmentation={_KEPT})'
    )
    return _KEPT


def check_host_memory(params: Params, data: Data) -> None:
    """Raises UsageError if the images that are to be held do not fit into the memory of this process."""
    if not holds_all_images(params) or data.images is None:
        return
    if isinstance(data.images, Arrays) and data.images.images.shape[1:] == data.image_shape:
        return
    _check(params, data, free_memory(), '{} are free here')


def check_gpu_memory(params: Params, data: Data, gpus: Iterable[Mapping[str, Any]]) -> None:
    """Raises UsageError if a GPU cannot hold all images; gpus: their facts, see hardware.gpus."""
    if data.images is not None and holds_all_images(params) and data.input_row.on_devices:
        share = min(params.gpu_memory_frac_for_testing or 1.0, 1.0)
        sizes = [int(share * size) for gpu in gpus if (size := gpu.get('memory_bytes'))]
        _check(params, data, min(sizes, default=None), 'the smallest GPU has {} for them, the model and its work')


def _check(params: Params, data: Data, most: int | None, words: str) -> None:
    assert data.images
    height, width, channels = data.image_shape
    needed = data.images.num_images * height * width * channels
    if most is not None and needed > most:
        raise UsageError(
            f'{spelled("input_pipeline", params.input_pipeline)}: the {data.images.num_images} images of '
            f'--data_dir={data.folder} take {needed} bytes ({height} x {width} x {channels} each), and '
            f'{words.format(most)}; '
            f'write --input_pipeline={RECORD_INPUT} for records, or leave it out'
        )
