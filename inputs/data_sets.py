"""Facts about data sets; finds the shards in a folder. Does not import TensorFlow."""

import glob
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from errors import UsageError, alternatives, nearest, plural
from records.file_kinds import other_kind, start_of
from records.layout import SHARD_NAME, ends_like_no_shard, shard_name, subset_of

if TYPE_CHECKING:
    # NumPy would take longer to import than everything else that parsing a command line needs.
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class DataSet:
    """The facts about a data set that models and input pipelines need.

    Attributes:
      has_records: whether --data_dir contains TFRecord shards; if not, array_files reads the data set.
      image_size: height and width of all images in pixels; None if they differ or are unknown.
      augmentation: that of its training images, see preprocessing.ImageOptions.
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
# Multiple Layers of Features from Tiny Images), chapter 3; its published test batch is customarily used for validation.
DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet('imagenet', 3, 1001, 1_281_167, 50_000, has_records=True),
        DataSet('cifar10', 3, 10, 50_000, 10_000, has_records=False, image_size=32, augmentation='padded_crop'),
        DataSet('mnist', 1, 10, 60_000, 10_000, has_records=False, image_size=28, augmentation='none'),
    )
}
# A folder made by the subcommand `records`; its facts are read from the folder, see data_folder.
RECORDS = 'records'
DATA_NAMES = (*DATA_SETS, RECORDS)

SUBSETS = ('train', 'validation')
# What is looked at to say what a folder contains.
_COMPARED_NAMES = 1000
_SEARCHED_FOLDERS = 20
_RECORDS = re.compile(r'(?i)tf_?rec|-of-')
_ARCHIVE = re.compile(r'(?i)\.(tar|tar\.\w+|tgz|tbz2?|txz|zip|7z|rar)$')


@dataclass(frozen=True)
class Shards:
    """The shards of one subset in a folder, in order.

    Attributes:
      num_missing: the total in the file names minus the number of files.
      num_recorded: the number of images that dataset.json states; None if it states none.
      passed_over: the names of files that are named like these shards, but have the ending of another kind of file.
    """

    subset: str
    paths: tuple[str, ...]
    num_missing: int
    num_recorded: int | None = None
    passed_over: tuple[str, ...] = ()

    @property
    def num_images(self) -> int:
        """The number of records; reads the length of each. RunError if a shard is truncated or cannot be read."""
        # Imported here because parsing a command line should not import the modules that read records.
        from records.framing import count_records

        return count_records(self.paths)

    @property
    def num_bytes(self) -> int:
        return sum(os.path.getsize(path) for path in self.paths)

    @property
    def mean_record_bytes(self) -> float | None:
        """The mean size of a record, from a few of the shards; None if it is unknown."""
        from records.framing import mean_record_bytes

        return mean_record_bytes(self.paths)

    @property
    def folder(self) -> Path:
        return Path(self.paths[0]).parent

    @property
    def file_pattern(self) -> str:
        """The pattern by which RecordInput finds exactly these shards: one glob per shard, in order, comma-separated.

        With a single glob, the order would be that of the file system, and the seed alone would not determine which
        shard is read first. A comma in a path cannot be escaped and is replaced by `?`, see check_shard_names.
        """
        special = {',': '?'} | {letter: f'\\{letter}' for letter in '*?[]\\'}
        return ','.join(''.join(special.get(letter, letter) for letter in path) for path in self.paths)


@dataclass(frozen=True)
class Arrays:
    """The images of a subset, [N, H, W, C] uint8, and their labels, [N] int32."""

    subset: str
    images: 'npt.NDArray[np.uint8]'
    labels: 'npt.NDArray[np.int32]'

    @property
    def num_images(self) -> int:
        return len(self.images)


def list_folder(data_dir: str, content: str, flag: str = '--data_dir') -> list[str]:
    """Returns the sorted names in a folder; its UsageError names the flag and what the folder should contain."""
    try:
        return sorted(os.listdir(data_dir))
    except OSError as error:
        reason = {
            FileNotFoundError: 'the folder does not exist',
            NotADirectoryError: 'it is not a folder',
        }.get(type(error), f'it cannot be read ({error.strerror})')
        raise UsageError(f'{flag}={data_dir}: {reason}; give the folder that contains {content}') from error


def how_to_make(subset: str, folder: str = 'DIR') -> str:
    flag = '' if subset == SUBSETS[0] else f' --subset={subset}'
    images = shlex.quote(folder)
    return f'make shards from a folder of images with: tf_cnn_benchmarks records --input={images} --output=SHARDS{flag}'


def find_shards(data_dir: str, subset: str, flag: str = '--data_dir') -> Shards:
    """Finds the shards of a subset ('train' or 'validation').

    Raises UsageError if the folder is unreadable or contains no shard of the subset; or if its shards cannot be read or
    belong to several sets. `flag` names the folder in the error.
    """
    folder = Path(data_dir)
    names = list_folder(data_dir, f'{subset}-*-of-* shards', flag)
    found = [match for name in names if name.startswith(f'{subset}-') and (match := SHARD_NAME.fullmatch(name))]
    shards = [match for match in found if not ends_like_no_shard(match.string)]
    passed_over = tuple(match.string for match in found if ends_like_no_shard(match.string))
    if not shards:
        content, advice = _instead_of_shards(data_dir, names, subset, passed_over, flag)
        raise UsageError(f'{flag}={data_dir}: no file is named like {shard_name(subset, 0, 1)} ({content}); {advice}')
    paths = tuple(str(folder / match.string) for match in shards)
    for path in paths:
        if not os.path.isfile(path):
            raise UsageError(f'{flag}={data_dir}: {path} is named like a shard but is not a file; move it elsewhere')
        if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise UsageError(f'{flag}={data_dir}: {path} cannot be read; check its permissions')
    numbered = [match for match in shards if match['index']]
    totals = {int(match['total']) for match in numbered}
    if len(totals) > 1:
        raise UsageError(
            f'{flag}={data_dir}: the {subset} shards belong to several sets '
            f'(of {", ".join(map(str, sorted(totals)))} shards); keep one set in a folder'
        )
    total = totals.pop() if totals else 0
    seen: set[int] = set()
    for match in numbered:
        index = int(match['index'])
        if index >= total or index in seen:
            reason = 'occurs twice' if index in seen else f'is not one of {total} shards, numbered from 0'
            raise UsageError(f'{flag}={data_dir}: {match.string}: shard {index} {reason}; keep one set in a folder')
        seen.add(index)
    return Shards(subset, paths, num_missing=total - len(seen), passed_over=passed_over)


def _instead_of_shards(
    data_dir: str, names: list[str], subset: str, passed_over: tuple[str, ...], flag: str
) -> tuple[str, str]:
    """Returns (what a folder without shards of the subset contains, what to do)."""

    if elsewhere := look_elsewhere(data_dir, flag, lambda folder: subset in _subsets_in(folder)):
        content, advice = elsewhere
        others = [
            os.path.relpath(folder, data_dir) for folder in _folders_below(data_dir) if _subsets_in(folder) - {subset}
        ]
        return content, f'{advice}, or move these shards and those in {", ".join(others)} here' if others else advice
    if passed_over:
        name = passed_over[0]
        kind = other_kind(start_of(os.path.join(data_dir, name)), 'TFRecords')
        return f'the folder contains {name}', kind or 'remove the ending if it is a whole shard'
    if others := sorted({other for name in names if (other := subset_of(name))}):
        content = f'the folder contains {", ".join(f"{other}-*-of-*" for other in others)}'
        # Shards of other names, as val-00000-of-00001, may be those that are looked for.
        renamed = '' if set(others) <= set(SUBSETS) else 'name them like this, or '
        return content, f'{renamed}{how_to_make(subset)}'
    if not names:
        return 'the folder is empty', how_to_make(subset)
    similar = nearest(shard_name(subset, 0, 1), names[:_COMPARED_NAMES]) or names[0]
    advice = f'name them like {shard_name(subset, 0, 1)}' if _RECORDS.search(similar) else how_to_make(subset, data_dir)
    return f'the folder contains {plural(len(names), "other file")}, such as {similar}', advice


def look_elsewhere(data_dir: str, flag: str, holds: Callable[[str], bool]) -> tuple[str, str] | None:
    """Looks for files that are not in their folder: in folders below it, and in archives.

    Returns (what the folder contains, what to do), or None; `holds` says whether a folder contains the files.
    """
    below = [folder for folder in _folders_below(data_dir) if holds(folder)]
    if below:
        names = ', '.join(os.path.relpath(folder, data_dir) for folder in below)
        return f'they are in its folder {names}', f'write {alternatives([f"{flag}={folder}" for folder in below])}'
    archives = [name for name in sorted(os.listdir(data_dir)) if _ARCHIVE.search(name)]
    return (f'it contains {archives[0]}', 'unpack it') if archives else None


def _folders_below(folder: str, depth: int = 2) -> Iterator[str]:
    """Yields the folders in a folder, to this depth; of many folders, as of classes, only the first."""
    try:
        with os.scandir(folder) as entries:
            paths = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith('.'))
    except OSError:
        return
    for path in paths[:_SEARCHED_FOLDERS]:
        yield path
        if depth > 1:
            yield from _folders_below(path, depth - 1)


def _subsets_in(folder: str) -> set[str]:
    try:
        return {subset for name in os.listdir(folder) if (subset := subset_of(name)) in SUBSETS}
    except OSError:
        return set()


def check_shard_names(shards: Shards) -> None:
    """Checks that RecordInput can read the shards.

    Raises UsageError if they contain no record (RecordInput would wait for ever), or if another path differs from
    theirs only in place of a comma.
    """
    folder = shards.folder
    if not any(Path(path).stat().st_size for path in shards.paths):
        raise UsageError(
            f'--data_dir={folder}: no record is in its {plural(len(shards.paths), f"{shards.subset} shard")}; '
            f'{how_to_make(shards.subset)}'
        )
    for path in (str(folder), *(path for path in shards.paths if ',' in Path(path).name)):
        if others := set(glob.glob(glob.escape(path).replace(',', '?'))) - {path}:
            raise UsageError(
                f'--data_dir={folder}: TensorFlow cannot distinguish {path} from {min(others)} because of its comma; '
                'rename it'
            )
