"""The data set and the files in --data_dir. Does not import TensorFlow."""

import contextlib
import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tf_cnn.inputs import array_files
from tf_cnn.inputs.data_sets import (
    DATA_SETS,
    RECORDS,
    SUBSETS,
    Arrays,
    DataSet,
    Shards,
    find_shards,
    list_folder,
    shard_making_hint,
)
from tf_cnn.inputs.file_kinds import open_regular
from tf_cnn.inputs.framing import RUN_SCAN_SECS, count_records, scan_shards
from tf_cnn.inputs.layout import (
    LABELS_FILE,
    SubsetInfo,
    read_dataset_info,
    read_labels,
    subset_of,
)
from tf_cnn.system.errors import RunError, UsageError, plural

_MAX_NAMED_FILES = 5


@dataclass(frozen=True)
class DataFolder:
    """A folder with a data set.

    data_set has the properties of the files, which may differ from the published data set. shards
    maps each subset to its shards, as far as they are known.
    """

    path: str
    data_set: DataSet
    shards: Mapping[str, Shards] = field(default_factory=dict)

    def subset_for_steps(self, *, forward_only: bool) -> str:
        """Returns 'validation' for a forward-only run if the folder has any, else 'train'."""
        if self.data_set.has_records:
            has_validation = any(subset_of(name) == 'validation' for name in os.listdir(self.path))
        else:
            has_validation = array_files.has_files(self.data_set.name, self.path, 'validation')
        return 'validation' if forward_only and has_validation else 'train'

    def check(self, subset: str) -> None:
        """Raises UsageError if a file of the subset cannot be read. Does not read the images."""
        if self.data_set.has_records:
            self._find_shards(subset)
        else:
            array_files.count_images(self.data_set.name, self.path, subset)

    def open(self, subset: str) -> Shards | Arrays:
        """Returns the shards of a subset, or loads its arrays.

        Raises UsageError in the cases of find_shards and load_arrays, and if a shard cannot be
        read, all shards are empty, or a path with a comma also matches other files.
        """
        if self.data_set.has_records:
            shards = self._find_shards(subset)
            # RecordInput would wait forever for a record.
            if not shards.num_bytes:
                raise UsageError(
                    f'--data_dir={self.path}: no record is in its '
                    f'{plural(len(shards.paths), f"{subset} shard")}; {shard_making_hint(subset)}'
                )
            for path in shards.paths:
                # file_pattern replaces a comma in a path by `?`, which matches any character.
                if (
                    len(matching_paths := sorted(glob.glob(glob.escape(path).replace(',', '?'))))
                    > 1
                ):
                    raise UsageError(
                        f'--data_dir={self.path}: TensorFlow cannot tell '
                        f'{" from ".join(matching_paths)}, '
                        'because of the comma; rename one of these files'
                    )
            return shards if self.data_set.name == RECORDS else self._count(shards)
        return Arrays(subset, *array_files.load_arrays(self.data_set.name, self.path, subset))

    def _count(self, shards: Shards) -> Shards:
        """Returns shards with the number of their images, as far as it can be found in time."""
        info_by_subset: dict[str, SubsetInfo] = {}
        # Other programs write files of this name, too.
        with contextlib.suppress(UsageError):
            info_by_subset = read_dataset_info(self.path)
        counted = _with_expected_images(shards, info_by_subset)
        if counted.num_expected_images is None:
            counted = replace(shards, scan=scan_shards(shards.paths, RUN_SCAN_SECS))
        return counted

    def _find_shards(self, subset: str) -> Shards:
        shards = self.shards.get(subset) or find_shards(self.path, subset)
        for path in shards.paths:
            try:
                with open_regular(path) as file:
                    file.read(1)
            except OSError as error:
                raise UsageError(
                    f'{path}: it cannot be read ({error.strerror}); check its permissions, or '
                    'copy it again'
                ) from error
        return shards

    def completeness_warning(self, images: Shards | Arrays) -> str | None:
        """Returns a one-line warning about missing or skipped shards or an unusual image count."""
        warnings = []
        if isinstance(images, Shards):
            if images.num_missing:
                total = len(images.paths) + images.num_missing
                warnings.append(
                    f'missing {images.num_missing} of the {plural(total, "shard")} that the file '
                    'names announce; the run uses the others'
                )
            if images.skipped_files:
                names = ', '.join(images.skipped_files[:_MAX_NAMED_FILES])
                warnings.append(
                    f'passed over {plural(len(images.skipped_files), "file")} that are not shards: '
                    f'{names}'
                )
        else:
            num_published = DATA_SETS[self.data_set.name].num_examples(images.subset)
            if images.num_images != num_published:
                warnings.append(
                    f'the folder contains {plural(images.num_images, f"{images.subset} image")}; '
                    f'the published data set has {num_published}'
                )
        return f'--data_dir={self.path}: {"; ".join(warnings)}' if warnings else None


def open_folder(path: str, name: str) -> DataFolder:
    """Returns the folder and the properties of its data set, read as the data set `name`.

    Raises UsageError if the folder does not exist, or if name is RECORDS and the folder has no
    labels.txt.
    """
    if name in array_files.ARRAY_DATA_SETS:
        return DataFolder(path, _array_data_set(path, name))
    if name != RECORDS:
        list_folder(path, 'train-*-of-* shards')
        return DataFolder(path, DATA_SETS[name])
    return _open_records(path)


def recognise_data_set(path: str) -> str | None:
    """Returns the name of a folder's data set, judging by its file names; None if unknown."""
    try:
        names = os.listdir(path)
    except OSError:
        return None
    if any(subset_of(name) for name in names):
        return RECORDS if LABELS_FILE in names else 'imagenet'
    for name in array_files.ARRAY_DATA_SETS:
        if any(array_files.has_files(name, path, subset) for subset in SUBSETS):
            return name
    return None


def _array_data_set(path: str, name: str) -> DataSet:
    subsets = [subset for subset in SUBSETS if array_files.has_files(name, path, subset)]
    counts = {subset: array_files.count_images(name, path, subset) for subset in subsets}
    return replace(
        DATA_SETS[name],
        num_train_examples=counts.get('train', 0),
        num_validation_examples=counts.get('validation', 0),
    )


def _open_records(path: str) -> DataFolder:
    names = list_folder(path, 'train-*-of-* shards')
    labels = read_labels(path)
    if labels is None:
        raise UsageError(
            f'--data_name={RECORDS}: --data_dir={path} has no {LABELS_FILE} with the names of the '
            'classes, which the subcommand records writes; write it with one class name per line, '
            'or use --data_name=imagenet'
        )
    info_by_subset = read_dataset_info(path)
    present_subsets = {file_subset for name in names if (file_subset := subset_of(name))}
    shards = {
        subset: find_shards(path, subset) for subset in sorted(set(SUBSETS) & present_subsets)
    }
    counts = {}
    for subset, subset_shards in list(shards.items()):
        shards[subset] = counted = _with_expected_images(subset_shards, info_by_subset)
        counts[subset] = counted.num_expected_images or _count_records(subset_shards)
    sizes = {
        (info_by_subset[subset].height, info_by_subset[subset].width)
        if subset in info_by_subset
        else (None, None)
        for subset in counts
    }
    [(height, width)] = sizes if len(sizes) == 1 else [(None, None)]
    data_set = DataSet(
        RECORDS,
        channels=3,
        num_classes=len(labels),
        num_train_examples=counts.get('train', 0),
        num_validation_examples=counts.get('validation', 0),
        has_records=True,
        image_size=height if height == width else None,
        class_names=labels,
    )
    return DataFolder(path, data_set, shards)


def _with_expected_images(shards: Shards, info_by_subset: Mapping[str, SubsetInfo]) -> Shards:
    """Returns shards with the number of their images in dataset.json, if it is about them.

    The run compares this number with the records in the shards before the first step.
    """
    info = info_by_subset.get(shards.subset)
    if info is None or info.shards != len(shards.paths):
        return shards
    return replace(shards, num_expected_images=info.images)


def _count_records(shards: Shards) -> int:
    try:
        return count_records(shards.paths)
    except RunError as error:
        # Before the run starts, a fault in the data is a usage error.
        raise UsageError(f'{error}; see tf_cnn_benchmarks records --check') from error
