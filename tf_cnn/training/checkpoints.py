"""Saves and restores variables in TensorFlow's checkpoint format. checkpoint_files manages the
files.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.op_errors import error_cause
from tf_cnn.graph.variables import Variable
from tf_cnn.system.atomic import move_atomically
from tf_cnn.system.errors import FULL_DISK_ERRORS, RunError, plural
from tf_cnn.training.checkpoint_files import (
    READY_FOLDER,
    UNFINISHED_FOLDER,
    data_files,
    publish_checkpoint,
    removal_advice,
    remove_stage,
)
from tf_cnn.training.contents import (
    IMAGES_PER_STEP,
    OPTIONAL_PREFIX,
    Tensors,
    abbreviate_names,
    content_difference,
    is_model_tensor,
    read_contents,
)

# Errors of save and restore ops that have another cause than the files: a lost task, or a closed
# session.
_NOT_FILE_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
# A folder has the name of a file, or a file has the name of a folder.
_IN_THE_WAY = (IsADirectoryError, NotADirectoryError, FileExistsError)
# The errors of the save op for ENOSPC and EDQUOT, and for EFBIG (absl::ErrnoToStatusCode).
_FULL_DISK_OP_ERRORS = (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError)
_FREE_SPACE = 'free disk space there, or use another folder'
# The number of variables that a message names.
_MAX_NAMES = 20


@dataclass(frozen=True)
class Slice:
    """A variable, or the slice that starts at the indices `offset` of a variable of shape
    `full_shape`.
    """

    variable: Variable
    offset: tuple[int, ...]
    full_shape: tuple[int, ...]

    @property
    def spec(self) -> str:
        """The slice in the notation of SaveV2: '6 4 2,3:0,4' for rows 2 to 4 of [6, 4]; empty for a
        full variable.
        """
        if self.variable.shape == self.full_shape:
            return ''
        ranges = (
            f'{start},{length}'
            for start, length in zip(self.offset, self.variable.shape, strict=True)
        )
        return f'{" ".join(map(str, self.full_shape))} {":".join(ranges)}'


def full_slice(variable: Variable) -> Slice:
    return Slice(variable, (0,) * len(variable.shape), variable.shape)


def join_slices(slices: Sequence[Slice], values: Sequence[Any]) -> Any:
    """Concatenates the values of the slices of a variable."""
    return values[0] if len(slices) == 1 else tf.concat(values, _split_axis(slices))


def split_value(slices: Sequence[Slice], value: Any) -> list[Any]:
    """Returns the part of a value of the full variable that belongs to each slice."""
    if len(slices) == 1:
        return [value]
    shape, axis = slices[0].full_shape, _split_axis(slices)
    num_ones = next(number for number, length in enumerate(shape) if length > 1)
    # Along the first axis tf.split copies nothing.
    parts = tf.split(
        tf.reshape(value, shape[num_ones:]),
        [variable_slice.variable.shape[axis] for variable_slice in slices],
        axis - num_ones,
    )
    return [
        tf.reshape(part, variable_slice.variable.shape)
        for part, variable_slice in zip(parts, slices, strict=True)
    ]


def _split_axis(slices: Sequence[Slice]) -> int:
    first = slices[0]
    (axis,) = (
        number
        for number, length in enumerate(first.full_shape)
        if first.variable.shape[number] != length
    )
    return axis


class Checkpointer:
    """Saves and restores variables. The constructor adds the ops to the current graph; save and
    restore add none.

    Only one process may save in a folder, see RunLifecycle.join. Checkpoints store
    16-bit variables as float32, so that a run of any precision can read them.

    Args:
      folder: on the machine of this process; made if missing.
      variables: the slices of each variable, by its name in the checkpoint, which stores them as
        one tensor.
      max_to_keep: how many of the checkpoints that the folder's state file lists are kept; 0
        keeps all.
      images_per_step: of this training, which checkpoints store for the run that continues it;
        None to store none.
    """

    def __init__(
        self,
        folder: str,
        variables: Mapping[str, Sequence[Slice]],
        device: str,
        max_to_keep: int,
        images_per_step: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._max_to_keep = max_to_keep
        self._save_lock = threading.Lock()
        self._expected_tensors = {
            name: (_stored_dtype(slices[0].variable).name, list(slices[0].full_shape))
            for name, slices in variables.items()
        }
        named_slices = [(name, piece) for name, slices in variables.items() for piece in slices]
        with tf.name_scope('checkpoint'):
            with tf.device(device):
                self._prefix = tf.placeholder(tf.string, [])
                constants = {}
                if images_per_step is not None:
                    constants[IMAGES_PER_STEP] = tf.constant(images_per_step, tf.int64)
                values = [
                    tf.cast(piece.variable.value, _stored_dtype(piece.variable))
                    for _, piece in named_slices
                ]
                self._save_op = tf.raw_ops.SaveV2(
                    prefix=self._prefix,
                    tensor_names=[*(name for name, _ in named_slices), *constants],
                    shape_and_slices=[*(piece.spec for _, piece in named_slices)]
                    + [''] * len(constants),
                    tensors=[*values, *constants.values()],
                )
            self._restore_ops = self._add_restore(
                [entry for entry in named_slices if not _is_optional(entry[0])], device
            )
            optional = [entry for entry in named_slices if _is_optional(entry[0])]
            self._optional_restore_ops = self._add_restore(optional, device) if optional else None

    def _add_restore(
        self, named_slices: Sequence[tuple[str, Slice]], device: str
    ) -> tuple[tf.Operation, tf.Operation]:
        """Returns the op that restores these (name, slice) pairs, and the op that reads their
        values from the files.
        """
        with tf.device(device):
            restored = tf.raw_ops.RestoreV2(
                prefix=self._prefix,
                tensor_names=[name for name, _ in named_slices],
                shape_and_slices=[piece.spec for _, piece in named_slices],
                dtypes=[_stored_dtype(piece.variable) for _, piece in named_slices],
            )
        assigned = [
            piece.variable.assign(tf.cast(value, piece.variable.value.dtype))
            for (_, piece), value in zip(named_slices, restored, strict=True)
        ]
        return tf.group(*assigned, name='restore'), restored[0].op

    def save(
        self, session: tf.Session, step: int, is_unchanged: Callable[[], bool] = lambda: True
    ) -> str:
        """Writes the variables after `step` steps and returns the prefix of the checkpoint, which
        replaces one of the same step.

        Any thread may save while others run steps. Each variable is read once, but a step may run
        between two reads. is_unchanged is called after all reads; it returns False if a variable
        changed meanwhile.

        Raises:
          RunError: the folder cannot be written, the disk is full, or the variables changed
            meanwhile. Existing checkpoints stay intact.
        """
        name = f'model.ckpt-{step}'
        unfinished, ready = self._folder / UNFINISHED_FOLDER, self._folder / READY_FOLDER
        with self._save_lock, self._explain_write_errors(name):
            publish_checkpoint(self._folder, self._max_to_keep)
            if os.path.lexists(unfinished):
                remove_stage(unfinished)
            # The folder may have been removed during the run.
            unfinished.mkdir(parents=True)
            try:
                session.run(self._save_op, {self._prefix: str(unfinished / name)})
                if not is_unchanged():
                    raise RunError(
                        f'{name} was not saved: a step changed the variables during the save'
                    )
                move_atomically(unfinished, ready)
            except BaseException:
                # The incomplete files would take up the rest of a full disk.
                with contextlib.suppress(OSError):
                    remove_stage(unfinished)
                raise
            publish_checkpoint(self._folder, self._max_to_keep)
        return str(self._folder / name)

    def save_elsewhere(self, session: tf.Session, step: int) -> str:
        """Saves a checkpoint in a new folder within the working folder; returns its prefix."""
        self._folder = Path(tempfile.mkdtemp(prefix='train_dir-', dir=os.getcwd()))
        try:
            return self.save(session, step)
        except BaseException:
            # Only an empty folder is removed.
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            raise

    def restore(
        self,
        session: tf.Session,
        prefix: str,
        *,
        for_training: bool = True,
        names_in_training: Callable[[], Collection[str]] = frozenset,
        ignore_unexpected: bool = False,
    ) -> None:
        """Restores every variable, initialized or not. Optional variables that the checkpoint omits
        stay unchanged.

        Args:
          for_training: if False, the checkpoint may also hold training state: optimizer slots and
            the global step.
          names_in_training: returns all variables of the model in training. If not for_training,
            the checkpoint may also hold these and their slots. Called only if it holds unexpected
            variables, since it may take a second.
          ignore_unexpected: if True, the checkpoint may also hold any other variables.

        Raises:
          RunError: the checkpoint is missing or damaged, or has other names, shapes or dtypes. No
            variable is changed then.
        """
        contents: Tensors = read_contents(prefix)
        if not for_training:
            contents = self._drop_training_state(contents, self._expected_tensors)
            if contents.keys() - self._expected_tensors.keys():
                contents = self._drop_training_state(contents, names_in_training())
        if ignore_unexpected:
            contents = {
                name: tensor for name, tensor in contents.items() if name in self._expected_tensors
            }
        has_optional = all(
            name in contents for name in self._expected_tensors if _is_optional(name)
        )
        expected, contents = (
            {name: tensor for name, tensor in tensors.items() if not _is_optional(name)}
            for tensors in (self._expected_tensors, contents)
        )
        if difference := content_difference(expected, contents):
            raise RunError(
                f'{prefix}: this checkpoint is of another model, number of classes or optimizer: '
                f'{difference}; use the flags and the data of the run that wrote it, or another '
                'folder'
            )
        restores = [self._restore_ops]
        if self._optional_restore_ops and has_optional:
            restores.append(self._optional_restore_ops)
        try:
            for restore, _ in restores:
                session.run(restore, {self._prefix: prefix})
        except tf.errors.OpError as error:
            if error.op not in [read for _, read in restores] or isinstance(
                error, _NOT_FILE_ERRORS
            ):
                raise
            files = ', '.join(data_files(prefix)) or f'{prefix}.data-*'
            raise RunError(
                f'{files}: cannot be read ({error_cause(error)}); {removal_advice(prefix)}'
            ) from error

    def _drop_training_state(self, contents: Tensors, variables: Collection[str]) -> Tensors:
        """Drops the global step, and variables and optimizer slots that are not expected."""
        return {
            name: tensor
            for name, tensor in contents.items()
            if name in self._expected_tensors
            or (name not in variables and is_model_tensor(name, variables))
        }

    @contextlib.contextmanager
    def _explain_write_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = error.filename2 or error.filename
            reason = error.strerror or str(error)
            if error.errno in FULL_DISK_ERRORS:
                advice = _FREE_SPACE
            elif error.errno is None:
                # The line says what to do.
                advice = 'then start it again'
            elif isinstance(error, _IN_THE_WAY) and os.path.lexists(path):
                advice = f'move {path} elsewhere'
            else:
                reason, advice = f'{reason}: {path}', 'use another folder'
            raise self._write_error(name, reason, advice) from error
        except tf.errors.OpError as error:
            if error.op is not self._save_op or isinstance(error, _NOT_FILE_ERRORS):
                raise
            is_full = isinstance(error, _FULL_DISK_OP_ERRORS)
            advice = _FREE_SPACE if is_full else 'use another folder'
            raise self._write_error(name, error_cause(error), advice) from error

    def _write_error(self, name: str, reason: str, advice: str) -> RunError:
        return RunError(
            f'--train_dir={self._folder}: the checkpoint {self._folder / name} cannot be written '
            f'({reason}); {advice}'
        )


def _stored_dtype(variable: Variable) -> tf.DType:
    dtype = variable.value.dtype.base_dtype
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def _is_optional(name: str) -> bool:
    return name.startswith(OPTIONAL_PREFIX)


class WarmStart:
    """Restores the variables of a checkpoint that match the model's by name and shape. Adds its ops
    to the graph.

    Args:
      flag: the flag and its value as the user wrote them, for messages.
      variables: the slices of the model's variables by name, including moving averages but not
        optimizer slots.

    Raises:
      RunError: the checkpoint is missing or cannot be read, or no variable matches.
    """

    def __init__(
        self,
        prefix: str,
        flag: str,
        variables: Mapping[str, Sequence[Slice]],
        device: str,
    ) -> None:
        self._prefix = prefix
        contents = read_contents(prefix)
        matching, unmatched = {}, []
        for name, slices in variables.items():
            dtype, shape = contents.get(name, ('', []))
            # Checkpoints store 16-bit variables as float32.
            if (dtype, list(shape)) == ('float32', list(slices[0].full_shape)):
                matching[name] = slices
            else:
                entry = f'{dtype} {list(shape)}' if dtype else 'absent'
                unmatched.append(
                    f'{name} ({entry} there, float32 {list(slices[0].full_shape)} here)'
                )
        if not matching:
            raise RunError(
                f'{flag}: no variable of the checkpoint has the name and the shape of a variable '
                f'of this model, such as {abbreviate_names(sorted(variables))}; give a checkpoint '
                'of a similar model'
            )
        self.summary = (
            f'{flag}: training starts from {len(matching)} of the '
            f'{plural(len(variables), "variable")} of this model in {prefix}: '
            f'{abbreviate_names(sorted(matching), _MAX_NAMES)}'
        )
        model_names = [name for name in contents if is_model_tensor(name, contents)]
        unused = [name for name in model_names if name not in variables]
        self.warnings = []
        if unmatched:
            self.warnings.append(
                f'{flag}: {len(unmatched)} of the {plural(len(variables), "variable")} of this '
                'model will start from initial values (absent there, or different): '
                f'{abbreviate_names(sorted(unmatched), _MAX_NAMES)}'
            )
        if unused:
            self.warnings.append(
                f'{flag}: {len(unused)} of the {plural(len(model_names), "variable")} of the '
                f'checkpoint will not be used: {abbreviate_names(sorted(unused), _MAX_NAMES)}'
            )
        self._checkpointer = Checkpointer('', matching, device, 1)

    def restore(self, session: tf.Session) -> None:
        """Restores the matching variables; if the checkpoint is damaged, raises RunError and
        changes none.
        """
        self._checkpointer.restore(session, self._prefix, ignore_unexpected=True)
