"""The files of checkpoints. A kill at any moment leaves the last complete checkpoint intact.

A checkpoint is two files, .index and .data-00000-of-00001, and no file system renames two files at
once. Hence stages:

  .unfinished-checkpoint/   TensorFlow writes the files here; after a kill, the next save discards
                            them;
  .ready-checkpoint/        the same folder, renamed; after a kill, the next save repeats the
                            stages below;
  model.ckpt-STEP.*         links to the same files, the index last: without its index a
                            checkpoint does not exist;
  checkpoint                the state file, which now names the checkpoint as the newest. Then
                            expired checkpoints and the ready folder are deleted.

training-ended exists while no run trains in the folder and the last one reached its end.
training-begun exists while a cluster's training there has not reached its last step, which the
file states. TensorFlow, which takes seconds to import, is imported only for the state file.
"""

import contextlib
import filecmp
import glob
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.system.atomic import move_atomically, remove_own_files, sync, write_atomically
from tf_cnn.system.documents import DocumentError, read_json
from tf_cnn.system.errors import RunError, UsageError

UNFINISHED_FOLDER, READY_FOLDER = '.unfinished-checkpoint', '.ready-checkpoint'
_STATE_FILE = 'checkpoint'
_ENDED_FILE, _BEGUN_FILE = 'training-ended', 'training-begun'
_STEP_COUNT = Meta(ge=0, le=2**63 - 1)
_PREFIX = re.compile(r'model\.ckpt-\d+')
# The files in both folders. TensorFlow adds a suffix to the name of a file while it writes it.
_STAGE_FILES = re.compile(r'model\.ckpt-\d+\..+|checkpoint|twin')


class _UnfinishedTraining(Struct):
    """The content of training-begun."""

    length: list[Annotated[int, _STEP_COUNT]]
    end: Annotated[int, _STEP_COUNT]


def latest_checkpoint(folder: str) -> str | None:
    """Returns the prefix of the newest complete checkpoint: by the state file, else by the highest
    step.
    """
    state = _read_state(Path(folder))
    if state and _is_complete(state[-1]):
        return state[-1]
    prefixes = [
        prefix
        for parent in (folder, os.path.join(folder, READY_FOLDER))
        for prefix in _list_checkpoints(parent)
    ]
    return max(filter(_is_complete, prefixes), key=checkpoint_step, default=None)


def may_hold_checkpoint(path: str) -> bool:
    """Whether a path names a checkpoint, or a folder with files of one, complete or not. Does not
    import TensorFlow.
    """
    names = (_STATE_FILE, '*.index', f'{READY_FOLDER}/*.index')
    return parse_checkpoint_prefix(path) is not None or any(
        glob.glob(os.path.join(glob.escape(path), name)) for name in names
    )


def incomplete_checkpoint_warning(folder: str, checkpoint: str | None) -> str | None:
    """Returns a warning if a newer checkpoint lacks a file, else None.

    checkpoint is the prefix that latest_checkpoint returned for the folder.
    """
    state = _read_state(Path(folder))
    newest = (
        state[-1] if state else max(_list_checkpoints(folder), key=checkpoint_step, default=None)
    )
    # After a kill, the files of the newest checkpoint may be in the ready folder.
    is_used = newest and checkpoint and os.path.basename(newest) == os.path.basename(checkpoint)
    if newest is None or is_used or _is_complete(newest):
        return None
    missing = 'data' if os.path.isfile(f'{newest}.index') else 'index'
    fallback = f'{checkpoint} is used instead' if checkpoint else 'no other checkpoint is there'
    return f'{newest}: the {missing} file of the newest checkpoint is missing; {fallback}'


def listed_checkpoints(folder: str) -> list[str]:
    """Returns the prefixes of the complete checkpoints that the state file names, the newest
    last.
    """
    return [prefix for prefix in _read_state(Path(folder)) if _is_complete(prefix)]


def removal_advice(prefix: str) -> str:
    """Returns what to remove if a checkpoint is damaged, and which one is the newest then."""
    folder, name = os.path.split(prefix)
    if os.path.basename(folder) == READY_FOLDER:
        folder = os.path.dirname(folder)
    rest = [
        path
        for path in filter(_is_complete, _list_checkpoints(folder or '.'))
        if os.path.basename(path) != name
    ]
    newest = max(rest, key=checkpoint_step, default=None)
    outcome = f'then {newest} is the newest' if newest else 'no other checkpoint is there'
    return f'remove {prefix}.*; {outcome}'


def find_checkpoint(path: str, argument: str) -> str:
    """Returns the prefix of a checkpoint.

    Args:
      path: the prefix, a file of the checkpoint, or a folder for its newest checkpoint.
      argument: the path or flag as the user wrote it, for errors.

    Raises:
      UsageError: there is no such folder or checkpoint.
      RunError: the folder holds no checkpoint.
    """
    if os.path.isdir(path):
        newest = latest_checkpoint(path)
        if newest is None:
            raise RunError(
                f'{argument}: the folder holds no checkpoint; give the --train_dir of a run that '
                'saved one'
            )
        return newest
    prefix = re.sub(r'\.(index|data-\d+-of-\d+)$', '', path)
    if not os.path.isfile(f'{prefix}.index'):
        raise UsageError(
            f'{argument}: there is no such folder or checkpoint; give the --train_dir of a run'
        )
    return prefix


def parse_checkpoint_prefix(path: str) -> str | None:
    """Returns the path if it names a checkpoint, such as DIR/model.ckpt-100; None if it is a
    folder.

    The checkpoint may be missing: as in the original program, a name that ends with ckpt-STEP is a
    prefix unless a folder has this name.
    """
    prefix = path.rstrip('/')
    is_prefix = os.path.isfile(f'{prefix}.index') or (
        re.search(r'ckpt-\d+$', prefix) and not os.path.isdir(prefix)
    )
    return prefix if is_prefix else None


def mark_training_ended(folder: str, has_ended: bool) -> None:
    """Records whether training in the folder has ended, for evaluators that wait for checkpoints.
    Ignores OS errors.
    """
    file = Path(folder) / _ENDED_FILE
    with contextlib.suppress(OSError):
        if has_ended:
            file.touch()
        else:
            file.unlink(missing_ok=True)


def mark_training_begun(folder: str, length: Sequence[int] | None, end_step: int) -> None:
    """Records the last step of a training that begins, for the run that continues it. Ignores OS
    errors.

    Only a run with the same length continues to this step; length is None if no run will.
    """
    mark_training_ended(folder, False)
    if length is None:
        clear_training_begun(folder)
        return
    with contextlib.suppress(OSError):
        write_atomically(
            json.dumps({'length': length, 'end': end_step}), Path(folder) / _BEGUN_FILE
        )


def clear_training_begun(folder: str) -> None:
    """Records that a training is complete, so that the next run trains anew. Ignores OS errors."""
    with contextlib.suppress(OSError):
        (Path(folder) / _BEGUN_FILE).unlink(missing_ok=True)


def read_end_step(folder: str, length: Sequence[int] | None) -> int | None:
    """Returns the last step of a cluster's unfinished training; None if there is none of this
    length.

    Raises UsageError if the file is damaged.
    """
    path = Path(folder) / _BEGUN_FILE
    try:
        unfinished = read_json(path, _UnfinishedTraining)
    except FileNotFoundError:
        return None
    except DocumentError as error:
        raise UsageError(
            f'{path}: it cannot be used ({error}), so the step at which the training should end '
            'is unknown; remove the file, and the run takes all of its steps'
        ) from None
    return unfinished.end if unfinished.length == length else None


def has_training_ended(folder: str) -> bool:
    return (Path(folder) / _ENDED_FILE).exists()


def checkpoint_step(prefix: str) -> int:
    """Returns the step in the name of a checkpoint, 100 for DIR/model.ckpt-100; raises RunError if
    there is none.
    """
    match = re.search(r'-(\d+)$', prefix)
    if match is None:
        raise RunError(
            f'{prefix}: the name does not end with a step; rename the checkpoint, for example '
            'to model.ckpt-100'
        )
    return int(match[1])


def publish_checkpoint(folder: Path, max_to_keep: int) -> None:
    """Publishes the ready checkpoint, if there is one. May be repeated after a kill."""
    ready = folder / READY_FOLDER
    if ready.is_symlink():
        raise OSError(f'{ready} is a link; remove it')
    for prefix in filter(_is_complete, _list_checkpoints(str(ready))):
        name = os.path.basename(prefix)
        published = folder / name
        if not _has_same_files(prefix, str(published)):
            # Delete the published files first: an old index must never exist beside new data.
            _delete_checkpoint(str(published))
            for file in (*data_files(prefix), f'{prefix}.index'):
                _link_or_copy(Path(file), folder / os.path.basename(file))
            sync(folder)
        names = [listed for listed in _listed_names(folder) if listed != name] + [name]
        complete_names = [listed for listed in names if _is_complete(str(folder / listed))]
        # The slice from -0 on is the whole list: 0 keeps all.
        names_to_keep = complete_names[-max_to_keep:]
        _write_state(folder, names)
        if names_to_keep != names:
            for expired in set(names) - set(names_to_keep):
                _delete_checkpoint(str(folder / expired))
            # Drop the names only after the files: after a kill in between, no save would delete
            # unnamed files.
            _write_state(folder, names_to_keep)
    if os.path.lexists(ready):
        remove_stage(ready)


def remove_stage(folder: Path) -> None:
    """Removes the folder of a stage; raises OSError, without changes, if it is a link or holds
    other files.
    """
    remove_own_files(folder, _STAGE_FILES.fullmatch)
    folder.rmdir()


def _link_or_copy(file: Path, target: Path) -> None:
    twin = file.with_name('twin')
    twin.unlink(missing_ok=True)
    try:
        os.link(file, twin)
    except OSError:
        # Not every file system supports links.
        shutil.copyfile(file, twin)
        sync(twin)
    twin.replace(target)


def _delete_checkpoint(prefix: str) -> None:
    """Deletes the files of a checkpoint, the index first, so that a kill leaves no index without
    data.
    """
    for file in (f'{prefix}.index', *data_files(prefix), f'{prefix}.meta'):
        Path(file).unlink(missing_ok=True)


def _list_checkpoints(folder: str) -> list[str]:
    """Returns the prefixes of all checkpoints with names like model.ckpt-STEP, complete or not."""
    paths = [path.with_suffix('') for path in Path(folder).glob('*.index')]
    return [str(prefix) for prefix in paths if _PREFIX.fullmatch(prefix.name)]


def data_files(prefix: str) -> list[str]:
    return sorted(glob.glob(f'{glob.escape(prefix)}.data-[0-9]*-of-[0-9]*'))


def _is_complete(prefix: str) -> bool:
    """Returns whether the index and all data files exist. Other programs may write several data
    files.
    """
    files = data_files(prefix)
    return (
        os.path.isfile(f'{prefix}.index')
        and bool(files)
        and len(files) == int(files[0].rpartition('-')[2])
    )


def _has_same_files(ready: str, published: str) -> bool:
    # filecmp caches results by modification time and size.
    filecmp.clear_cache()
    suffixes = [file.removeprefix(ready) for file in (*data_files(ready), f'{ready}.index')]
    return _is_complete(published) and all(
        filecmp.cmp(ready + suffix, published + suffix, shallow=False) for suffix in suffixes
    )


def _read_state(folder: Path) -> list[str]:
    """Returns the prefixes that the state file names, the newest last; empty if it is missing or
    malformed.
    """
    import_tensorflow()
    import tensorflow.compat.v1 as tf

    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except ValueError:
        return []
    if state is None:
        return []
    newest = state.model_checkpoint_path
    return [*(prefix for prefix in state.all_model_checkpoint_paths if prefix != newest), newest]


def _listed_names(folder: Path) -> list[str]:
    """Returns the names of the checkpoints in the folder that its state file lists. Only these may
    be deleted.
    """
    prefixes = [Path(prefix) for prefix in _read_state(folder)]
    return [prefix.name for prefix in prefixes if prefix.parent.resolve() == folder.resolve()]


def _write_state(folder: Path, names: Sequence[str]) -> None:
    import tensorflow.compat.v1 as tf

    # Relative names remain valid when the folder is moved; TensorFlow keeps them relative if the
    # folder is absolute.
    state = tf.train.generate_checkpoint_state_proto(str(folder.absolute()), names[-1], list(names))
    path = folder / READY_FOLDER / _STATE_FILE
    path.write_text(str(state))
    move_atomically(path, folder / _STATE_FILE)
