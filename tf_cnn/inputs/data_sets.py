"""The table of data sets; finds the shards in a folder. Does not import TensorFlow."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tf_cnn.inputs.layout import SHARD_NAME, has_shard_suffix, shard_name
from tf_cnn.system.errors import UsageError, plural

if TYPE_CHECKING:
    # Importing NumPy takes longer than all other imports for parsing a command line.
    import numpy as np
    import numpy.typing as npt

    from tf_cnn.inputs.framing import ScanSummary


@dataclass(frozen=True)
class DataSet:
    """The properties of a data set that models and input pipelines need.

    Attributes:
      has_records: whether --data_dir contains TFRecord shards; otherwise array_files loads it.
      image_size: height and width of all images in pixels; None if they differ or are unknown.
      augmentation: the default for training images, see preprocessing.ImageOptions.
      class_names: the names of labels 0, 1, ...; None if unknown.
    """

    name: str
    channels: int
    num_classes: int
    num_train_examples: int
    num_validation_examples: int
    has_records: bool
    image_size: int | None = None
    augmentation: str = 'resized_crop'
    class_names: tuple[str, ...] | None = None

    def num_examples(self, subset: str) -> int:
        return self.num_train_examples if subset == SUBSETS[0] else self.num_validation_examples


# ImageNet: ILSVRC 2012, Russakovsky et al. 2015 (arXiv:1409.0575), table 2. Its TFRecords number
# the classes from 1 and keep 0 for "background", hence 1001. MNIST: LeCun et al. 1998, section
# III.A. CIFAR-10: Krizhevsky 2009 (Learning Multiple Layers of Features from Tiny Images), chapter
# 3; its published test batch is customarily used for validation, and its class names are in
# batches.meta.txt.
_CIFAR10_CLASSES = (
    'airplane',
    'automobile',
    'bird',
    'cat',
    'deer',
    'dog',
    'frog',
    'horse',
    'ship',
    'truck',
)
_MNIST_CLASSES = tuple('0123456789')
DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet('imagenet', 3, 1001, 1_281_167, 50_000, has_records=True),
        DataSet('cifar10', 3, 10, 50_000, 10_000, False, 32, 'padded_crop', _CIFAR10_CLASSES),
        DataSet('mnist', 1, 10, 60_000, 10_000, False, 28, 'none', _MNIST_CLASSES),
    )
}
# A folder made by the subcommand `records`; data_folder reads its properties from the folder.
RECORDS = 'records'
DATA_NAMES = (*DATA_SETS, RECORDS)

SUBSETS = ('train', 'validation')


@dataclass(frozen=True)
class Shards:
    """The shards of one subset in a folder, in order.

    Attributes:
      num_missing: the total in the file names (-of-01024) minus the number of files.
      num_expected_images: the number of images according to dataset.json; None if unknown.
      scan: of the shards, if it was needed to count their images.
      skipped_files: the names of files that look like shards except for the extension.
    """

    subset: str
    paths: tuple[str, ...]
    num_missing: int
    num_expected_images: int | None = None
    skipped_files: tuple[str, ...] = ()
    scan: 'ScanSummary | None' = None

    @property
    def num_stated_images(self) -> int | None:
        """The number of images by dataset.json or a complete scan; None if neither is there."""
        if self.scan and self.scan.is_complete:
            return self.scan.num_records
        return self.num_expected_images

    @property
    def num_images(self) -> int:
        """The number of records, counted by reading the length of each.

        Raises RunError if a shard is truncated or unreadable.
        """
        # Parsing a command line should not import the modules that read records.
        from tf_cnn.inputs.framing import count_records

        return count_records(self.paths)

    @property
    def num_bytes(self) -> int:
        return sum(os.path.getsize(path) for path in self.paths)

    @property
    def sha256(self) -> str:
        """Identifies the shards by their names and sizes, whatever folder they are in."""
        texts = [f'{os.path.basename(path)} {os.path.getsize(path)}' for path in self.paths]
        return hashlib.sha256('\n'.join(texts).encode(errors='surrogateescape')).hexdigest()

    @property
    def mean_record_bytes(self) -> float | None:
        """The mean size of a record, from a few of the shards; None if it is unknown."""
        from tf_cnn.inputs.framing import mean_record_bytes

        return mean_record_bytes(self.paths)

    @property
    def folder(self) -> Path:
        return Path(self.paths[0]).parent

    @property
    def file_pattern(self) -> str:
        """The file pattern for RecordInput: one glob per shard, in order, separated by commas.

        With a single glob, the file system would determine the order, and the seed alone would not
        determine the first shard. A comma in a path cannot be escaped; `?` replaces it.
        """
        special = {',': '?'} | {letter: f'\\{letter}' for letter in '*?[]\\'}
        return ','.join(
            ''.join(special.get(letter, letter) for letter in path) for path in self.paths
        )


@dataclass(frozen=True)
class Arrays:
    """The images of a subset, [N, H, W, C] uint8, and their labels, [N] int32."""

    subset: str
    images: 'npt.NDArray[np.uint8]'
    labels: 'npt.NDArray[np.int32]'

    @property
    def num_images(self) -> int:
        return len(self.images)

    @property
    def sha256(self) -> str:
        """Identifies the images by their number and size."""
        return hashlib.sha256(f'{self.subset} {self.images.shape}'.encode()).hexdigest()


def list_folder(data_dir: str, content: str, flag: str = '--data_dir') -> list[str]:
    """Returns the sorted names in a folder.

    Raises UsageError, naming the flag and the expected content, if the folder is unreadable.
    """
    try:
        return sorted(os.listdir(data_dir))
    except OSError as error:
        raise UsageError(
            f'{flag}={data_dir}: {error.strerror}; use the folder that contains {content}'
        ) from error


def shard_making_hint(subset: str) -> str:
    flag = '' if subset == SUBSETS[0] else f' --subset={subset}'
    return (
        'make shards from a folder of images with: tf_cnn_benchmarks records --input=DIR '
        f'--output=SHARDS{flag}'
    )


def find_shards(data_dir: str, subset: str, flag: str = '--data_dir') -> Shards:
    """Finds the shards of a subset ('train' or 'validation').

    Raises UsageError if the folder is unreadable or contains no shard of the subset, or if its
    shards belong to several sets. `flag` names the folder in the error.
    """
    folder = Path(data_dir)
    names = list_folder(data_dir, f'{subset}-*-of-* shards', flag)
    matches = [
        match
        for name in names
        if name.startswith(f'{subset}-') and (match := SHARD_NAME.fullmatch(name))
    ]
    shards = [match for match in matches if has_shard_suffix(match)]
    skipped_files = tuple(match.string for match in matches if not has_shard_suffix(match))
    if not shards:
        content = (
            f'contains {plural(len(names), "other file")}, such as {names[0]}'
            if names
            else 'is empty'
        )
        raise UsageError(
            f'{flag}={data_dir}: no file is named like {shard_name(subset, 0, 1)} (the folder '
            f'{content}); use the folder that contains the shards, or {shard_making_hint(subset)}'
        )
    paths = tuple(str(folder / match.string) for match in shards)
    numbered = [match for match in shards if match['index']]
    totals = {int(match['total']) for match in numbered}
    if len(totals) > 1:
        raise UsageError(
            f'{flag}={data_dir}: the {subset} shards belong to several sets (of '
            f'{", ".join(map(str, sorted(totals)))} shards); keep one set in a folder'
        )
    total = totals.pop() if totals else 0
    seen_indices: set[int] = set()
    for match in numbered:
        index = int(match['index'])
        if index >= total or index in seen_indices:
            reason = (
                'appears twice'
                if index in seen_indices
                else f'is not one of {total} shards, numbered from 0'
            )
            raise UsageError(
                f'{flag}={data_dir}: {match.string}: shard {index} {reason}; keep one set in a '
                'folder'
            )
        seen_indices.add(index)
    return Shards(subset, paths, num_missing=total - len(seen_indices), skipped_files=skipped_files)
