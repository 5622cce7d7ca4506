"""Checks the shards of a folder."""

import hashlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tf_cnn.inputs.data_sets import DATA_SETS, Shards, find_shards
from tf_cnn.inputs.framing import Fault
from tf_cnn.inputs.layout import (
    DATASET_INFO_FILE,
    LABELS_FILE,
    SHARD_NAME,
    SubsetInfo,
    read_dataset_info,
    read_labels,
    shard_name,
    subset_of,
)
from tf_cnn.inputs.shard_check import check_shards
from tf_cnn.system.errors import RunError, UsageError, plural

if TYPE_CHECKING:
    from rich.progress import Progress

# The most files listed for one problem, and the most faults listed for one subset.
MAX_LISTED = 20


def show_progress() -> 'Progress':
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True))


def format_count(number: int, noun: str) -> str:
    return f'{number:,} {noun}{"s" * (number != 1)}'


def check_folder(data_dir: str, subsets: list[str], num_threads: int) -> int:
    present = (
        {subset_of(name) for name in os.listdir(data_dir)} if Path(data_dir).is_dir() else set()
    )
    shards_by_subset = [
        find_shards(data_dir, subset, '--check') for subset in subsets if subset in present
    ]
    shards_by_subset = shards_by_subset or [find_shards(data_dir, subsets[0], '--check')]
    names = read_labels(data_dir)
    num_classes = DATA_SETS['imagenet'].num_classes if names is None else len(names)
    source = (
        f"ImageNet's, as there is no {LABELS_FILE}" if names is None else f'as in {LABELS_FILE}'
    )
    print(f'{data_dir}: labels 0..{num_classes - 1}, {source}')
    stated_counts, fault = _read_stated_counts(data_dir, has_labels=names is not None)
    num_faults, listed_faults = 0, list[Fault]()
    if fault:
        num_faults, listed_faults = 1, [fault]
        print(f'{Path(fault.path).name}:\n  faults: {fault.kind} 1')
    for shards in shards_by_subset:
        subset_counts = stated_counts.get(shards.subset) if stated_counts else None
        kinds, first_faults = _check_subset(
            data_dir, shards, subset_counts, num_classes, num_threads
        )
        num_faults += kinds.total()
        listed_faults += first_faults
    if not num_faults:
        return 0
    for fault in listed_faults:
        print(fault)
    if num_faults > len(listed_faults):
        print(f'and {num_faults - len(listed_faults):,} more')
    raise RunError(
        f'--check={data_dir}: {format_count(num_faults, "fault")}, first {listed_faults[0]}'
    )


def _read_stated_counts(
    data_dir: str, *, has_labels: bool
) -> tuple[dict[str, SubsetInfo] | None, Fault | None]:
    """Returns the counts of each subset in dataset.json, or the fault that makes it unusable."""
    path = str(Path(data_dir) / DATASET_INFO_FILE)
    try:
        info = read_dataset_info(data_dir)
    except UsageError as error:
        reason = str(error).removeprefix(f'{path}: ')
        # Without labels.txt, the file may be another program's.
        fault = Fault(path, None, '', 'unusable dataset.json', reason)
        return None, fault if has_labels else None
    if info and not has_labels:
        reason = f'it is missing, and {DATASET_INFO_FILE} belongs to it; copy it again'
        labels_path = str(Path(data_dir) / LABELS_FILE)
        return None, Fault(labels_path, None, '', 'missing labels.txt', reason)
    return info, None


def _find_wrong_number(
    stated_counts: SubsetInfo, subset: str, num_shards: int, num_records: int | None
) -> str | None:
    """Describes a count in dataset.json that differs from the shards, or returns None.

    num_records is None if it is unknown.
    """
    for noun, stated, actual in (
        ('shards', stated_counts.shards, num_shards),
        ('images', stated_counts.images, num_records),
    ):
        if actual is not None and stated != actual:
            return (
                f'it says {stated:,} {subset} {noun}, but there are {actual:,}; '
                'remove it, then the shards are counted'
            )
    return None


def _missing_shards(shards: Shards) -> list[str]:
    """Returns the names of the shards that the numbers of the others say are missing."""
    matches = [SHARD_NAME.fullmatch(Path(path).name) for path in shards.paths]
    numbered = [match for match in matches if match and match['index']]
    count = len(numbered) + shards.num_missing
    return [
        f'{shard_name(shards.subset, index, count)}{numbered[0]["suffix"] or ""}'
        for index in sorted({*range(count)} - {int(match['index']) for match in numbered})
    ]


def _find_duplicates(paths: Sequence[str]) -> Iterator[Fault]:
    """Yields the fault of each shard that has the bytes of an earlier one."""
    paths_by_size: dict[int, list[str]] = defaultdict(list)
    for path in filter(os.path.isfile, paths):
        paths_by_size[os.path.getsize(path)].append(path)
    for size, equal in paths_by_size.items():
        originals: dict[bytes, str] = {}
        for path in equal if size and len(equal) > 1 else ():
            with open(path, 'rb') as file:
                digest = hashlib.file_digest(file, 'sha256').digest()
            if (original := originals.setdefault(digest, path)) != path:
                reason = f'it has the bytes of {Path(original).name}; copy it again'
                yield Fault(path, None, '', 'duplicate shard', reason)


def _check_subset(
    data_dir: str,
    shards: Shards,
    stated_counts: SubsetInfo | None,
    num_classes: int,
    num_threads: int,
) -> tuple[Counter[str], list[Fault]]:
    """Checks the shards of a subset and prints a summary.

    Returns the number of faults of each kind, and the first faults.
    """
    total, num_records, labels = len(shards.paths) + shards.num_missing, 0, set[int]()
    # False if a shard is missing or cannot be read to its end: then num_records is too small.
    is_complete = not shards.num_missing
    kinds, first_faults = Counter[str](), list[Fault]()

    def add(fault: Fault) -> None:
        kinds[fault.kind] += 1
        if len(first_faults) < MAX_LISTED:
            first_faults.append(fault)

    for name in _missing_shards(shards):
        add(Fault(str(Path(data_dir) / name), None, '', 'missing shard', 'the shard is missing'))
    for name in shards.skipped_files:
        print(
            f'passed over {Path(data_dir) / name}: only .tfrecord or .tfrecords may follow the '
            'name of a shard',
            file=sys.stderr,
        )
    # A broken symbolic link has no size.
    num_bytes = sum(os.path.getsize(path) for path in shards.paths if os.path.exists(path))
    with show_progress() as progress:
        task = progress.add_task(shards.subset, total=num_bytes)
        for record in check_shards(shards.paths, num_classes, num_threads):
            progress.advance(task, record.num_bytes)
            num_records += record.num_bytes > 0
            if record.label is not None:
                labels.add(record.label)
            if record.fault:
                add(record.fault)
                is_complete &= record.num_bytes > 0
    for fault in _find_duplicates(shards.paths):
        add(fault)
    wrong_number = stated_counts and _find_wrong_number(
        stated_counts, shards.subset, total, num_records if is_complete else None
    )
    if wrong_number:
        info_path = str(Path(data_dir) / DATASET_INFO_FILE)
        add(Fault(info_path, None, '', 'wrong dataset.json', wrong_number))
    num_seen = sum(0 <= label < num_classes for label in labels)
    print(
        f'{shards.subset}: {len(shards.paths)} of {plural(total, "shard")}, '
        f'{format_count(num_records, "record")}, '
        f'{num_seen} of {plural(num_classes, "label")} seen'
    )
    print(
        '  faults: '
        + (', '.join(f'{kind} {number:,}' for kind, number in kinds.most_common()) or 'none')
    )
    return kinds, first_faults
