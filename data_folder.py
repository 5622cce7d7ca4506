"""What --data_dir holds: which data set it is, its facts, and the files of a run. Does not import TensorFlow."""

import os
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

import array_files
from data_sets import DATA_SETS, RECORDS, SUBSETS, DataSet, Shards, find_shards, list_folder, subset_of
from errors import RunError, UsageError
from flag_table import Params
from models.catalog import ModelFacts, find_model
from records.check import count_records
from records.layout import LABELS_FILE, read_facts, read_labels


@dataclass(frozen=True)
class Arrays:
    """The images of a subset, [N, H, W, C] uint8, and their labels, [N] int32."""

    subset: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32]


@dataclass(frozen=True)
class DataFolder:
    """A folder with a data set, whose facts are those of this folder where they differ from the published ones."""

    path: str
    data_set: DataSet

    def subset_of_steps(self, *, forward_only: bool) -> str:
        """What steps read: the training images; the validation images, if there are any, in a forward-only run."""
        if self.data_set.has_records:
            has_validation = any(subset_of(name) == 'validation' for name in os.listdir(self.path))
        else:
            has_validation = array_files.holds(self.data_set.name, self.path, 'validation')
        return 'validation' if forward_only and has_validation else 'train'

    def find(self, subset: str) -> Shards | None:
        """The shards of a subset, None for a data set that is read whole, whose files are looked for.

        Raises:
          UsageError: as data_sets.find_shards and array_files.count_images.
        """
        if self.data_set.has_records:
            return find_shards(self.path, subset)
        array_files.count_images(self.data_set.name, self.path, subset)
        return None

    def open(self, subset: str) -> Shards | Arrays:
        """The images of a subset.

        Raises:
          UsageError: as data_sets.find_shards and array_files.load_arrays.
        """
        shards = self.find(subset)
        return shards or Arrays(subset, *array_files.load_arrays(self.data_set.name, self.path, subset))

    def lacks(self, images: Shards | Arrays) -> str | None:
        """One line about what the folder lacks of a subset, if it is known to lack something."""
        if isinstance(images, Shards):
            total = len(images.paths) + images.num_missing
            lacks = f'{images.num_missing} of the {total} shards that the file names promise are missing'
            return f'--data_dir={self.path}: {lacks}; the run uses the others' if images.num_missing else None
        published = DATA_SETS[self.data_set.name]
        all_of_them = published.num_train_examples if images.subset == 'train' else published.num_validation_examples
        if len(images.images) == all_of_them:
            return None
        return (
            f'--data_dir={self.path}: it holds {len(images.images)} {images.subset} images, and {all_of_them} are '
            'published'
        )


def find_data(params: Params) -> tuple[ModelFacts, DataSet, DataFolder | None]:
    """The model and the data set of a run with their facts, and the folder of its data; None for synthetic images.

    Raises:
      UsageError: the folder does not hold what the run reads, see open_folder and DataFolder.find; or the model is not
        for the data set that it holds.
    """
    model = find_model(params.model, params.data_name)
    if params.data_dir is None:
        return model, DATA_SETS[model.data_set], None
    folder = open_folder(params.data_dir, params.data_name or recognise(params.data_dir) or model.data_set)
    if not params.eval:
        folder.find(folder.subset_of_steps(forward_only=params.forward_only))
    if params.evaluates:
        folder.find('validation')
    name = folder.data_set.name
    told_by = None if params.data_name else f'{name}, which is what --data_dir={params.data_dir} holds'
    return find_model(params.model, name, told_by), folder.data_set, folder


def open_folder(path: str, name: str) -> DataFolder:
    """The folder with the facts of the data set of that name in it.

    Raises:
      UsageError: there is no such folder; as read_labels, read_facts and array_files.count_images; or it is to be one
        of the word records and was not made by it.
    """
    if name in array_files.ARRAY_DATA_SETS:
        return DataFolder(path, _facts_of_arrays(path, name))
    if name != RECORDS:
        list_folder(path, 'train-*-of-* shards')
        return DataFolder(path, DATA_SETS[name])
    return DataFolder(path, _facts_of_records(path))


def recognise(path: str) -> str | None:
    """The name of the data set that a folder holds, as far as the names of its files tell."""
    try:
        names = os.listdir(path)
    except OSError:
        return None
    if any(subset_of(name) for name in names):
        return RECORDS if LABELS_FILE in names else 'imagenet'
    for name in array_files.ARRAY_DATA_SETS:
        if any(array_files.holds(name, path, subset) for subset in SUBSETS):
            return name
    return None


def _facts_of_arrays(path: str, name: str) -> DataSet:
    there = {each for each in SUBSETS if array_files.holds(name, path, each)}
    counts = {each: array_files.count_images(name, path, each) for each in there}
    return replace(
        DATA_SETS[name],
        num_train_examples=counts.get('train', 0),
        num_validation_examples=counts.get('validation', 0),
    )


def _facts_of_records(path: str) -> DataSet:
    names = list_folder(path, 'train-*-of-* shards')
    labels = read_labels(path)
    if labels is None:
        raise UsageError(
            f'--data_name={RECORDS}: --data_dir={path} has no {LABELS_FILE}, which the word records writes and which '
            'names the classes; make it, with one class name a line, or write --data_name=imagenet'
        )
    told = read_facts(path)
    there = {found for name in names if (found := subset_of(name))}
    counts = {}
    for subset in sorted(set(SUBSETS) & there):
        shards, facts = find_shards(path, subset), told.get(subset)
        is_told = facts is not None and facts.shards == len(shards.paths)
        counts[subset] = facts.images if facts and is_told else _count(shards)
    sizes = {(told[subset].height, told[subset].width) if subset in told else (None, None) for subset in counts}
    [(height, width)] = sizes if len(sizes) == 1 else [(None, None)]
    return DataSet(
        RECORDS,
        channels=3,
        num_classes=len(labels),
        num_train_examples=counts.get('train', 0),
        num_validation_examples=counts.get('validation', 0),
        has_records=True,
        image_size=height if height == width else None,
    )


def _count(shards: Shards) -> int:
    try:
        return count_records(shards.paths)
    except RunError as fault:
        # Seen before the run.
        raise UsageError(f'{fault}; see tf_cnn_benchmarks records --check') from fault
