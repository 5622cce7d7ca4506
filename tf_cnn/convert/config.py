"""The flags of `records`. Does not import TensorFlow."""

from dataclasses import dataclass

from tf_cnn.flags.spec import flag
from tf_cnn.inputs.data_sets import SUBSETS

# As in ImageNet: 1,281,167 images in 1,024 shards. The minimum allows reading in parallel.
IMAGES_PER_SHARD = 1250
MIN_SHARDS = 8


@dataclass(frozen=True)
class RecordsOptions:
    input: str | None = flag(
        None, 'Folder that contains a folder of images for each class.', is_path=True
    )
    output: str | None = flag(
        None, 'Folder for the shards and labels.txt; made if missing.', is_path=True
    )
    shards: int = flag(
        0,
        f'Number of shards. 0: one for every {IMAGES_PER_SHARD} images, at least {MIN_SHARDS}. '
        'With --validation, the number of training shards; validation shards have about as many '
        'images each.',
        lower_bound=0,
        upper_bound=99999,
    )
    subset: str = flag(
        'train', 'Purpose of the images, part of the names of the shards.', choices=SUBSETS
    )
    validation: float | None = flag(
        None,
        'Share of the images of each class that is written to validation shards; all others are '
        'written to training shards. A class with several images has at least one in each; the '
        'only image of a class is a training image.',
        lower_bound=0.001,
        upper_bound=0.999,
    )
    seed: int = flag(
        1,
        'Seed of the random order of the images across the shards, and of the choice of the '
        'images for --validation.',
    )
    first_label: int = flag(
        1,
        "Label of the first class. 1: as in ImageNet, where label 0 is 'background'. 0: no "
        'background.',
        lower_bound=0,
        upper_bound=1,
    )
    jpeg_quality: int = flag(
        95,
        'JPEG quality of images that must be encoded again: grey, CMYK, rotated, or not JPEG.',
        lower_bound=1,
        upper_bound=100,
    )
    num_processes: int = flag(
        0,
        'Number of processes that decode images, or of threads with --check. 0: one per core.',
        lower_bound=0,
    )
    overwrite: bool = flag(False, 'Replace the existing shards of the subsets that are written.')
    check: str | None = flag(
        None,
        'Write nothing, but check the shards in this folder: all subsets, or the given --subset.',
        is_path=True,
    )
