"""Facts about data sets, and the shards of one in a folder. Does not import TensorFlow."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from errors import UsageError


@dataclass(frozen=True)
class DataSet:
    """What a model and an input pipeline have to know of a data set.

    num_classes counts the classes that a label can name: labels are in [0, num_classes).
    has_records tells that --data_dir holds it as TFRecord shards, else it is read by array_files.
    image_size is the height and width of all its images in pixels, or None where they differ or are not known.
    augmentation is what its training images customarily undergo, see preprocessing.ImageOptions.
    """

    name: str
    channels: int
    num_classes: int
    num_train_examples: int
    num_validation_examples: int
    has_records: bool
    image_size: int | None = None
    augmentation: str = 'resized_crop'


# ImageNet: ILSVRC 2012, Russakovsky et al. 2015 (arXiv:1409.0575), table 2. Its TFRecords number the classes from 1 and
# keep 0 for "background", hence 1001. MNIST: LeCun et al. 1998, section III.A. CIFAR-10: Krizhevsky 2009 (Learning
# Multiple Layers of Features from Tiny Images), chapter 3; its published test batch is what others validate on.
DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet('imagenet', 3, 1001, 1_281_167, 50_000, has_records=True),
        DataSet('cifar10', 3, 10, 50_000, 10_000, has_records=False, image_size=32, augmentation='padded_crop'),
        DataSet('mnist', 1, 10, 60_000, 10_000, has_records=False, image_size=28, augmentation='none'),
    )
}
# A folder made by the word `records`: its facts are its own, see data_folder.
RECORDS = 'records'
DATA_NAMES = (*DATA_SETS, RECORDS)

SUBSETS = ('train', 'validation')
_SHARD = re.compile(r'(?P<subset>[a-z]+)-(?P<index>\d+)-of-(?P<total>\d+)')


def shard_name(subset: str, index: int, num_shards: int) -> str:
    """The file name of a shard: train-00003-of-00128."""
    return f'{subset}-{index:05d}-of-{num_shards:05d}'


def subset_of(file_name: str) -> str | None:
    """The subset that a file name says it is a shard of; None if it is not named like a shard."""
    match = _SHARD.fullmatch(file_name)
    return match['subset'] if match else None


@dataclass(frozen=True)
class Shards:
    """The shards of one subset in a folder, in order; num_missing counts those that the names promise but lack."""

    subset: str
    paths: tuple[str, ...]
    num_missing: int


def list_folder(data_dir: str, content: str, flag: str = '--data_dir') -> list[str]:
    """The names of what a folder holds, sorted; content says in an error what it should hold.

    Raises:
      UsageError: it is missing, not a folder, or unreadable.
    """
    try:
        return sorted(os.listdir(data_dir))
    except OSError as error:
        reason = {FileNotFoundError: 'there is no such folder', NotADirectoryError: 'it is not a folder'}.get(
            type(error), f'it cannot be read ({error.strerror})'
        )
        raise UsageError(f'{flag}={data_dir}: {reason}; give the folder that holds {content}') from error


def how_to_make(subset: str) -> str:
    """What to do where there are no shards of a subset, for an error."""
    flag = '' if subset == SUBSETS[0] else f' --subset={subset}'
    return f'make shards from a folder of images with: tf_cnn_benchmarks records --input=DIR --output=DIR{flag}'


def find_shards(data_dir: str, subset: str, flag: str = '--data_dir') -> Shards:
    """Finds the shards of a subset ('train' or 'validation'); flag is the one that gave data_dir.

    Raises:
      UsageError: the folder is missing, not a folder, unreadable, or holds no shard of the subset; or its shards cannot
        be read or are not of one set.
    """
    folder = Path(data_dir)
    names = list_folder(data_dir, f'{subset}-*-of-* shards', flag)
    found = [match for name in names if (match := _SHARD.fullmatch(name))]
    shards = [match for match in found if match['subset'] == subset]
    if not shards:
        others = sorted({match['subset'] for match in found})
        holds = (
            f'it holds {", ".join(f"{other}-*-of-*" for other in others)}'
            if others
            else f'{len(names)} other files'
            if names
            else 'it is empty'
        )
        raise UsageError(
            f'{flag}={data_dir}: no file is named like {shard_name(subset, 0, 1)} ({holds}); {how_to_make(subset)}'
        )
    paths = tuple(str(folder / match.string) for match in shards)
    for path in paths:
        if not os.path.isfile(path):
            raise UsageError(f'{flag}={data_dir}: {path} is named like a shard and is no file; move it elsewhere')
        if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise UsageError(f'{flag}={data_dir}: {path} cannot be read; check its permissions')
    totals = {int(match['total']) for match in shards}
    if len(totals) > 1:
        raise UsageError(
            f'{flag}={data_dir}: the {subset} shards are of several sets '
            f'(of {", ".join(map(str, sorted(totals)))} shards); keep one set in a folder'
        )
    total = totals.pop()
    seen: set[int] = set()
    for match in shards:
        index = int(match['index'])
        if index >= total or index in seen:
            reason = 'is there twice' if index in seen else f'cannot be one of {total}, which are numbered from 0'
            raise UsageError(f'{flag}={data_dir}: {match.string}: shard {index} {reason}; keep one set in a folder')
        seen.add(index)
    return Shards(subset, paths, num_missing=total - len(paths))
