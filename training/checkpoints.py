"""Checkpoints in TensorFlow's own format, of which a kill at any moment leaves the last one whole.

A checkpoint is two files, model.ckpt-STEP.index and model.ckpt-STEP.data-00000-of-00001, and no file system renames two
at once. Hence one comes to be in stages:

  .unfinished-checkpoint/   TensorFlow writes the files in here; what a kill leaves, the next saving throws away;
  .ready-checkpoint/        the same folder under its new name: the checkpoint is whole, the next saving publishes it
                            should this one not get to it;
  model.ckpt-STEP.*         the same files under a second name, the index last: without one there is no checkpoint;
  checkpoint                the state file, which names it as the newest. Now those too many go, and the ready folder.

Beside them, the file training-ended tells, while no run trains there, that the last one reached its end.
"""

import contextlib
import fcntl
import filecmp
import glob
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from errors import RunError, UsageError
from training.contents import OPTIMIZER, OPTIONAL, TRAINING, cause, difference, group_of, read_contents
from training.variables import Variable

_UNFINISHED, _READY, _STATE = '.unfinished-checkpoint', '.ready-checkpoint', 'checkpoint'
_ENDED = 'training-ended'
_PREFIX = re.compile(r'model\.ckpt-\d+')
# Faults that an op that reads or writes files has for other reasons: a lost task, or the end of the session.
_NOT_OF_FILES = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@dataclass(frozen=True)
class Slice:
    """A variable, or a part of one that is spread over several devices.

    Attributes:
      variable: what holds the values.
      offset: where the part starts in the whole, for each axis; all zeros if it is the whole.
      full: the shape of the whole.
    """

    variable: Variable
    offset: tuple[int, ...]
    full: tuple[int, ...]

    @property
    def spec(self) -> str:
        """As TensorFlow's savers write it: '6 4 2,3:0,4' for rows 2 to 4 of [6, 4]; nothing for the whole."""
        if self.variable.shape == self.full:
            return ''
        parts = (f'{start},{length}' for start, length in zip(self.offset, self.variable.shape, strict=True))
        return f'{" ".join(map(str, self.full))} {":".join(parts)}'


def whole(variable: Variable) -> Slice:
    """A variable that is in one piece."""
    return Slice(variable, (0,) * len(variable.shape), variable.shape)


def joined(parts: Sequence[Slice], values: Sequence[Any]) -> Any:
    """The tensor of a variable, given those of its parts."""
    if len(parts) == 1:
        return values[0]
    first = parts[0]
    (axis,) = (number for number, length in enumerate(first.full) if first.variable.shape[number] != length)
    return tf.concat(values, axis)


class Checkpointer:
    """Saves and restores variables. Adds its ops to the current graph; saving and restoring add none.

    Variables of 16 bits are float32 in a checkpoint, so that a run of any precision reads it.

    Args:
      folder: where the checkpoints go, on the machine of this process; it must exist when one is saved.
      variables: what a checkpoint holds, by its name in there. The slices of a name are one tensor in the file.
      device: the CPU of this process, through which all values go on their way from and to their devices.
      max_to_keep: how many checkpoints the folder keeps, of those that its state file names.
    """

    def __init__(self, folder: str, variables: Mapping[str, Sequence[Slice]], device: str, max_to_keep: int) -> None:
        self._folder = Path(folder)
        self._max_to_keep = max_to_keep
        self._saving = threading.Lock()
        self._expected = {
            name: (_stored_dtype(slices[0].variable).name, list(slices[0].full)) for name, slices in variables.items()
        }
        parts = [(name, part) for name, parts in variables.items() for part in parts]
        with tf.name_scope('checkpoint'):
            with tf.device(device):
                self._prefix = tf.placeholder(tf.string, [])
                self._save = tf.raw_ops.SaveV2(
                    prefix=self._prefix,
                    tensor_names=[name for name, _ in parts],
                    shape_and_slices=[part.spec for _, part in parts],
                    tensors=[tf.cast(part.variable.value, _stored_dtype(part.variable)) for _, part in parts],
                )
            self._restore = self._add_restore([entry for entry in parts if not _is_optional(entry[0])], device)
            optional = [entry for entry in parts if _is_optional(entry[0])]
            self._restore_optional = self._add_restore(optional, device) if optional else None

    def _add_restore(self, parts: Sequence[tuple[str, Slice]], device: str) -> tuple[tf.Operation, tf.Operation]:
        """The op that gives these slices their values, by name, and the one that reads them for it."""
        with tf.device(device):
            restored = tf.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=[name for name, _ in parts],
                shape_and_slices=[part.spec for _, part in parts],
                dtypes=[_stored_dtype(part.variable) for _, part in parts],
            )
        assigned = [
            part.variable.assign(tf.cast(value, part.variable.value.dtype))
            for (_, part), value in zip(parts, restored, strict=True)
        ]
        return tf.group(*assigned, name='restore'), restored[0].op

    def save(self, session: tf.Session, step: int, is_still: Callable[[], bool] = lambda: True) -> str:
        """Writes the variables as they are at this moment, and returns the prefix of the checkpoint.

        Any thread may save while others run steps: each variable is read once, after some step of theirs. A checkpoint
        of the same step is replaced.

        Args:
          is_still: asked when all variables were read whether they are of one moment.

        Raises:
          RunError: the folder is gone or cannot be written, the disk is full, another process is saving there, or the
            variables changed meanwhile. The checkpoints that were there are still whole.
        """
        name = f'model.ckpt-{step}'
        unfinished, ready = self._folder / _UNFINISHED, self._folder / _READY
        with self._saving, self._telling(name), _locked(self._folder):
            _publish(self._folder, self._max_to_keep)
            if unfinished.exists():
                shutil.rmtree(unfinished)
            unfinished.mkdir()
            session.run(self._save, {self._prefix: str(unfinished / name)})
            if not is_still():
                raise RunError(f'{name} was given up: a step changed the variables while they were saved')
            # Renaming orders names, not contents: unsynced, a file may be empty under its new name after a power cut.
            for file in unfinished.iterdir():
                sync(file)
            unfinished.rename(ready)
            _publish(self._folder, self._max_to_keep)
        return str(self._folder / name)

    def restore(self, session: tf.Session, prefix: str, *, for_training: bool = True, partly: bool = False) -> None:
        """Gives every variable its value in a checkpoint; those that have none yet too. Optional ones that the
        checkpoint lacks stay as they are.

        Args:
          for_training: whether the checkpoint must hold nothing else. If not, what training has beside the variables
            of the model may be left over.
          partly: whether anything may be left over.

        Raises:
          RunError: the checkpoint is gone or damaged, or does not hold exactly these names with their shapes and
            dtypes, optional ones aside. No variable is changed then.
        """
        found = read_contents(prefix)
        if not for_training:
            found = {name: facts for name, facts in found.items() if not self._is_of_training(name)}
        if partly:
            found = {name: facts for name, facts in found.items() if name in self._expected}
        has_optional = all(name in found for name in self._expected if _is_optional(name))
        expected, found = (
            {name: fact for name, fact in tensors.items() if not _is_optional(name)}
            for tensors in (self._expected, found)
        )
        if changed := difference(expected, found):
            raise RunError(
                f'{prefix}: this checkpoint is of another model or optimizer: {changed}; '
                'give the flags it was written with, or another folder; '
                f'all that it holds: tf_cnn_benchmarks checkpoint {prefix}'
            )
        restores = [self._restore]
        if self._restore_optional and has_optional:
            restores.append(self._restore_optional)
        try:
            for restore, _ in restores:
                session.run(restore, {self._prefix: prefix})
        except tf.errors.OpError as error:
            if error.op not in [read for _, read in restores] or isinstance(error, _NOT_OF_FILES):
                raise
            files = ', '.join(_data_files(prefix)) or f'{prefix}.data-*'
            raise RunError(f'{files}: it cannot be read ({cause(error)}); restore another checkpoint') from error

    def _is_of_training(self, name: str) -> bool:
        """Whether a checkpoint has this beside the variables of a model: what has no layer, as the global step, and
        what an optimizer has beside a variable, under its name."""
        return name not in self._expected and group_of(name, self._expected) in (TRAINING, OPTIMIZER)

    @staticmethod
    def latest(folder: str) -> str | None:
        """The prefix of the newest complete checkpoint: what the state file names, else the one of the highest step."""
        state = _read_state(Path(folder))
        if state and _is_complete(state[-1]):
            return state[-1]
        found = [prefix for place in (folder, os.path.join(folder, _READY)) for prefix in _checkpoints_in(place)]
        return max(filter(_is_complete, found), key=step_of, default=None)

    @contextlib.contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Tells of files that cannot be written as a fault of the run."""
        try:
            yield
        except OSError as error:
            raise self._unwritable(name, error.strerror or str(error)) from error
        except tf.errors.OpError as error:
            if error.op is not self._save or isinstance(error, _NOT_OF_FILES):
                raise
            raise self._unwritable(name, cause(error)) from error

    def _unwritable(self, name: str, reason: str) -> RunError:
        return RunError(
            f'--train_dir={self._folder}: the checkpoint {self._folder / name} cannot be written ({reason}); '
            'make room there, or write another folder'
        )


def named_checkpoints(folder: str) -> list[str]:
    """The prefixes of the complete checkpoints that the state file names, the newest last."""
    return [prefix for prefix in _read_state(Path(folder)) if _is_complete(prefix)]


def all_checkpoints(folder: str) -> list[str]:
    """The prefixes of all complete checkpoints of a folder: those of ours that the state file does not name by their
    steps, then those that it names, the newest last."""
    named = named_checkpoints(folder)
    known = {os.path.realpath(prefix) for prefix in named}
    others = [prefix for prefix in _checkpoints_in(folder) if os.path.realpath(prefix) not in known]
    return [*sorted(filter(_is_complete, others), key=step_of), *named]


def find_checkpoint(path: str, written: str) -> str:
    """The prefix of a checkpoint, given that, or one of its files, or a folder, whose newest is taken.

    Args:
      written: how the path was given, for errors.

    Raises:
      UsageError: there is no such folder or checkpoint.
      RunError: the folder holds none.
    """
    if os.path.isdir(path):
        newest = Checkpointer.latest(path)
        if newest is None:
            raise RunError(f'{written}: the folder holds no checkpoint; give the --train_dir of a run that saved one')
        return newest
    prefix = re.sub(r'\.(index|data-\d+-of-\d+)$', '', path)
    if not os.path.isfile(f'{prefix}.index'):
        raise UsageError(f'{written}: there is no such folder, and no such checkpoint; give the --train_dir of a run')
    return prefix


def mark_ended(folder: str, ended: bool) -> None:
    """Notes for who waits for checkpoints whether more are to come; a folder that is gone tells nothing."""
    file = Path(folder) / _ENDED
    with contextlib.suppress(OSError):
        if ended:
            file.touch()
        else:
            file.unlink(missing_ok=True)


def has_ended(folder: str) -> bool:
    """Whether the training that saves in the folder has reached its end."""
    return (Path(folder) / _ENDED).exists()


def _stored_dtype(variable: Variable) -> tf.DType:
    """The type that a variable has in a checkpoint."""
    dtype = variable.value.dtype.base_dtype
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def _is_optional(name: str) -> bool:
    return name.startswith(OPTIONAL)


def step_of(prefix: str) -> int:
    """The step of a checkpoint, which ends its name: 100 of DIR/model.ckpt-100.

    Raises:
      RunError: the name has no step.
    """
    match = re.search(r'-(\d+)$', prefix)
    if match is None:
        raise RunError(f'{prefix}: its name does not tell the step; name the checkpoint like model.ckpt-100')
    return int(match[1])


def _publish(folder: Path, max_to_keep: int) -> None:
    """Gives the checkpoint that is ready its place, if there is one. Killed at any point, it can be done again."""
    ready = folder / _READY
    for prefix in filter(_is_complete, _checkpoints_in(str(ready))):
        name = os.path.basename(prefix)
        published = folder / name
        if not _is_same(prefix, str(published)):
            # Else the old index would go with the new data for a moment, in which only the ready one is complete.
            _delete(str(published))
            for file in (*_data_files(prefix), f'{prefix}.index'):
                _name_also(Path(file), folder / os.path.basename(file))
            sync(folder)
        names = [known for known in _named(folder) if known != name] + [name]
        kept = [known for known in names if _is_complete(str(folder / known))][-max_to_keep:]
        _write_state(folder, names)
        if kept != names:
            for expired in set(names) - set(kept):
                _delete(str(folder / expired))
            # Only now: what no state file names would stay for ever, if a kill came between.
            _write_state(folder, kept)
    if ready.exists():
        shutil.rmtree(ready)


def _name_also(file: Path, name: Path) -> None:
    """Gives a file a second name, in place of what had it."""
    twin = file.with_name('twin')
    twin.unlink(missing_ok=True)
    try:
        os.link(file, twin)
    except OSError:
        # Not every file system has links.
        shutil.copyfile(file, twin)
        sync(twin)
    twin.replace(name)


def _delete(prefix: str) -> None:
    """Deletes a checkpoint or what is left of it, the index first: without one it is none, should a kill come."""
    for file in (f'{prefix}.index', *_data_files(prefix), f'{prefix}.meta'):
        Path(file).unlink(missing_ok=True)


def _checkpoints_in(folder: str) -> list[str]:
    """The prefixes of what is named like a checkpoint of ours."""
    found = [path.with_suffix('') for path in Path(folder).glob('*.index')]
    return [str(prefix) for prefix in found if _PREFIX.fullmatch(prefix.name)]


def _data_files(prefix: str) -> list[str]:
    return sorted(glob.glob(f'{glob.escape(prefix)}.data-[0-9]*-of-[0-9]*'))


def _is_complete(prefix: str) -> bool:
    """Whether the index and all data files are there; others write several of those."""
    files = _data_files(prefix)
    return os.path.isfile(f'{prefix}.index') and bool(files) and len(files) == int(files[0].rpartition('-')[2])


def _is_same(ready: str, published: str) -> bool:
    """Whether the ready checkpoint is published already, byte for byte."""
    # It takes files for those that it has compared if their times and sizes are those.
    filecmp.clear_cache()
    files = [file.removeprefix(ready) for file in (*_data_files(ready), f'{ready}.index')]
    return _is_complete(published) and all(filecmp.cmp(ready + end, published + end, shallow=False) for end in files)


def _read_state(folder: Path) -> list[str]:
    """The prefixes that the state file names, the newest last; none if there is no such file or it makes no sense."""
    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except ValueError:
        return []
    if state is None:
        return []
    newest = state.model_checkpoint_path
    return [*(prefix for prefix in state.all_model_checkpoint_paths if prefix != newest), newest]


def _named(folder: Path) -> list[str]:
    """The names of the checkpoints of the folder that its state file names. Others are not ours to delete."""
    prefixes = [Path(prefix) for prefix in _read_state(folder)]
    return [prefix.name for prefix in prefixes if prefix.parent.resolve() == folder.resolve()]


def _write_state(folder: Path, names: Sequence[str]) -> None:
    # Relative names, which hold when the folder is moved; TensorFlow takes them as such beside an absolute folder.
    state = tf.train.generate_checkpoint_state_proto(str(folder.absolute()), names[-1], list(names))
    written = folder / _READY / _STATE
    written.write_text(str(state))
    sync(written)
    written.replace(folder / _STATE)


def sync(path: Path) -> None:
    """Has the disk hold what was written to a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from saving in the folder at the same time, on file systems that have locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f'--train_dir={folder}: another run is saving a checkpoint there; give each run a folder of its own'
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
