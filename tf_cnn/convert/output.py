"""Protects the output folder: replaced only on request, never half written, never two runs mixed.

Does not import TensorFlow.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tf_cnn.inputs.layout import (
    DATASET_INFO_FILE,
    LABELS_FILE,
    SubsetInfo,
    is_standard_shard_name,
    read_dataset_info,
    read_labels,
    shard_name,
    subset_of,
)
from tf_cnn.system.atomic import lock_folder, move_atomically, remove_own_files, sync
from tf_cnn.system.errors import UsageError, plural
from tf_cnn.system.parallel import delay_signals


def check_output(
    output_dir: str,
    subsets: Collection[str],
    labels: tuple[str, ...],
    *,
    input_dir: str,
    overwrite: bool,
) -> None:
    """Raises UsageError if the shards or labels in the output folder conflict with the new ones.

    overwrite allows replacing shards that `records` wrote, and a labels.txt that no other subset
    needs; nothing else.
    """
    output = Path(output_dir)
    if output.resolve().is_relative_to(Path(input_dir).resolve()):
        raise UsageError(
            f'--output={output}: it is inside --input={input_dir} and would be taken for a class; '
            'use a folder outside it'
        )
    try:
        names = sorted(entry.name for entry in output.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f'--output={output}: {error.strerror}; use a folder that this user may write to'
        ) from error
    present_subsets = {file_subset for name in names if (file_subset := subset_of(name))}
    if foreign_shards := [
        name for name in names if subset_of(name) in subsets and not is_standard_shard_name(name)
    ]:
        raise UsageError(
            f'--output={output}: {foreign_shards[0]} would be read as a '
            f'{subset_of(foreign_shards[0])} shard, but records did not write it; move it '
            'elsewhere, or use another folder'
        )
    if (old_subsets := sorted(present_subsets & {*subsets})) and not overwrite:
        raise UsageError(
            f'--output={output}: it already has {" and ".join(old_subsets)} shards; add '
            '--overwrite to replace them, or use another folder'
        )
    old_labels = read_labels(output_dir)
    other_subsets = sorted(present_subsets - {*subsets})
    if old_labels in (None, labels) or (overwrite and not other_subsets):
        return
    assert old_labels is not None
    pairs = enumerate(itertools.zip_longest(old_labels, labels, fillvalue='no class'))
    label, (old, new) = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
    needed = (
        f' (the {" and ".join(other_subsets)} shards there need it)'
        if other_subsets
        else ', add --overwrite to replace it'
    )
    raise UsageError(
        f'--output={output}: its {LABELS_FILE} does not agree with the classes of '
        f'--input={input_dir} (label {label} is {old} there and {new} here); make the class '
        f'folders (and --first_label) agree with it{needed}, or use another folder'
    )


@contextlib.contextmanager
def unfinished_folder(output: Path, subset: str, report: Callable[[str], None]) -> Iterator[Path]:
    """Makes a hidden folder for unfinished files, and removes both when the block ends.

    A lock on the folder keeps other processes from writing the same subset. Files that a killed run
    left are removed first.
    """
    folder = output / f'.{subset}-unfinished'
    is_written = UsageError(
        f'--output={output}: another process is writing {subset} shards there; wait for it to end'
    )
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_folder(folder, is_written))
            leftovers = remove_own_files(folder, _is_unfinished)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(
                f'--output={output}: it cannot be written to ({reason}); use another folder'
            ) from error
        if leftovers:
            report(
                f'{output}: removed {plural(leftovers, "unfinished file")} that an interrupted '
                'run left'
            )
        try:
            yield folder
        finally:
            remove_own_files(folder, _is_unfinished)
            folder.rmdir()


def _is_unfinished(name: str) -> bool:
    return name.isdecimal() or name in (LABELS_FILE, DATASET_INFO_FILE)


def publish_shards(
    shards: Mapping[str, Sequence[Path]],
    info: Mapping[str, SubsetInfo],
    labels: tuple[str, ...],
    output: Path,
) -> None:
    """Moves the finished shards of each subset to their final names.

    Removes the old shards first, so that a crash in between leaves shards missing rather than
    mixed. labels.txt and dataset.json are replaced too; dataset.json keeps its
    entries for other subsets.

    Args:
      shards: the files of each subset in order, all in hidden folders.
      info: the description of each subset.
    """
    folder = next(iter(shards.values()))[0].parent
    new_labels, new_info = folder / LABELS_FILE, folder / DATASET_INFO_FILE
    new_labels.write_bytes(''.join(f'{name}\n' for name in labels).encode())
    info_by_subset = {**_info_of_other_subsets(output, shards), **info}
    new_info.write_bytes(
        msgspec.json.format(msgspec.json.encode(info_by_subset, order='deterministic')) + b'\n'
    )
    with delay_signals():
        for entry in list(output.iterdir()):
            if subset_of(entry.name) in shards and is_standard_shard_name(entry.name):
                entry.unlink()
        move_atomically(new_labels, output / LABELS_FILE)
        move_atomically(new_info, output / DATASET_INFO_FILE)
        for subset, paths in shards.items():
            for index, path in enumerate(paths):
                path.replace(output / shard_name(subset, index, len(paths)))
        sync(output)


def _info_of_other_subsets(output: Path, subsets: Collection[str]) -> dict[str, SubsetInfo]:
    try:
        info_by_subset = read_dataset_info(str(output))
    except UsageError:
        # dataset.json is about to be replaced; a run counts shards without an entry.
        return {}
    present_subsets = {subset_of(entry.name) for entry in output.iterdir()}
    return {
        other: info
        for other, info in info_by_subset.items()
        if other not in subsets and other in present_subsets
    }
