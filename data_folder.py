"""What --data_dir holds: which data set it is, its facts, and the files of a run. Does not import TensorFlow."""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import array_files
from data_sets import DATA_SETS, RECORDS, SUBSETS, DataSet, Shards, choose_shards, find_shards, subset_of
from errors import UsageError
from models.catalog import ModelFacts, find_model
from records.check import count_records
from records.layout import LABELS_FILE, read_facts, read_labels

if TYPE_CHECKING:
    from params import Params


@dataclass(frozen=True)
class DataFolder:
    """The data of a run.

    data_set has the facts of this folder where they are not those that were published.
    subset is the one that the run reads, 'train' or 'validation'; shards are its shards, None for a data set that
    array_files reads.
    """

    path: str
    data_set: DataSet
    subset: str
    shards: Shards | None

    def missing(self) -> str | None:
        """One line about what the folder lacks of the subset, if it is known to lack something."""
        if self.shards is not None:
            total = len(self.shards.paths) + self.shards.num_missing
            lacks = f'{self.shards.num_missing} of the {total} shards that the file names promise are missing'
            return f'--data_dir={self.path}: {lacks}; the run uses the others' if self.shards.num_missing else None
        found, published = (_num_images(facts, self.subset) for facts in (self.data_set, DATA_SETS[self.data_set.name]))
        return (
            f'--data_dir={self.path}: it holds {found} {self.subset} images, and {published} are published'
            if found != published
            else None
        )


def find_data(params: 'Params') -> tuple[ModelFacts, DataSet, DataFolder | None]:
    """The model and the data set of a run with their facts, and the folder of its data; None for synthetic images.

    Raises:
      UsageError: as open_folder, and as find_model for the data set that the folder holds.
    """
    model = find_model(params.model, params.data_name)
    if params.data_dir is None:
        return model, DATA_SETS[model.data_set], None
    subset = 'validation' if params.eval else None if params.forward_only else 'train'
    folder = open_folder(params.data_dir, params.data_name, model.data_set, subset)
    name = folder.data_set.name
    told_by = None if params.data_name else f'{name}, which is what --data_dir={params.data_dir} holds'
    return find_model(params.model, name, told_by), folder.data_set, folder


def validation_of(folder: DataFolder) -> DataFolder:
    """The validation images of a folder, as open_folder."""
    name = folder.data_set.name
    return open_folder(folder.path, name, name, 'validation')


def open_folder(path: str, name: str | None, default: str, subset: str | None) -> DataFolder:
    """Finds the data of a run.

    Args:
      path: --data_dir.
      name: --data_name; if None, the folder's files tell which data set it is.
      default: the name of the data set that is missed if they do not.
      subset: what the run reads, 'train' or 'validation'; None for validation images if there are any, else training
        images.

    Raises:
      UsageError: as data_sets.find_shards, array_files.count_images, read_labels and read_facts; or --data_name=records
        and the folder was not made by the word records.
    """
    name = name or recognise(path) or default
    if name in array_files.ARRAY_DATA_SETS:
        return _open_arrays(path, name, subset)
    shards = find_shards(path, subset) if subset else choose_shards(path)
    data_set = _facts_of_records(path) if name == RECORDS else DATA_SETS[name]
    return DataFolder(path, data_set, shards.subset, shards)


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


def _open_arrays(path: str, name: str, subset: str | None) -> DataFolder:
    if subset is None:
        subset = 'validation' if array_files.holds(name, path, 'validation') else 'train'
    # Of the subset that the run reads every file must be there; of the other one they may be missing.
    counts = {
        each: array_files.count_images(name, path, each)
        for each in SUBSETS
        if each == subset or array_files.holds(name, path, each)
    }
    data_set = replace(
        DATA_SETS[name],
        num_train_examples=counts.get('train', 0),
        num_validation_examples=counts.get('validation', 0),
    )
    return DataFolder(path, data_set, subset, shards=None)


def _num_images(data_set: DataSet, subset: str) -> int:
    return data_set.num_train_examples if subset == 'train' else data_set.num_validation_examples


def _facts_of_records(path: str) -> DataSet:
    labels = read_labels(path)
    if labels is None:
        raise UsageError(
            f'--data_name={RECORDS}: --data_dir={path} has no {LABELS_FILE}, which the word records writes and which '
            'names the classes; make it, with one class name a line, or write --data_name=imagenet'
        )
    told = read_facts(path)
    there = {found for name in os.listdir(path) if (found := subset_of(name))}
    counts = {}
    for subset in set(SUBSETS) & there:
        shards, facts = find_shards(path, subset), told.get(subset)
        is_told = facts is not None and facts.shards == len(shards.paths)
        counts[subset] = facts.images if facts and is_told else count_records(shards.paths)
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
