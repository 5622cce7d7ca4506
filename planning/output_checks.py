"""Checks that the output files of a run can be written. Does not import TensorFlow."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from errors import Refusals, UsageError, spelled
from params import Params
from params.file_flags import OUTPUTS, Output, outputs_that_are
from params.result_flags import FIELD, STDOUT

_WITH_CHECKPOINTS = ('train_dir', 'backbone_model_path')
_OPENED_BY_TENSORFLOW = (*_WITH_CHECKPOINTS, 'data_dir', 'eval_dir', 'profile_dir', 'export_saved_model')
_WILDCARDS = '*?[\\'
_FOLDERS = (Output.FOLDER, Output.CHIEF_FOLDER, Output.NEW_FOLDER)


def check_outputs(params: Params, *, is_chief: bool = True) -> None:
    """Checks that the files of the run can be written. Creates missing folders and leaves existing files unchanged.

    Args:
      is_chief: whether this process writes the files that a cluster writes once.

    Raises:
      UsageError: a file cannot be written; the message names the flag, the path and the reason.
    """
    refusals = Refusals()
    for name in _OPENED_BY_TENSORFLOW:
        with refusals.collecting():
            _check_name(name, getattr(params, name))
    # Nothing is created under such a name.
    refusals.raise_all()
    for name in outputs_that_are(Output.FILE, *([Output.CHIEF_FILE] if is_chief else [])):
        # What is in braces is not known yet; check_file is called again when it is.
        if (path := getattr(params, name)) and not FIELD.search(path):
            with refusals.collecting():
                check_file(name, path)
    for name in outputs_that_are(Output.PREFIX):
        if prefix := getattr(params, name):
            with refusals.collecting(), _refusing(name, prefix):
                _make_folder(Path(f'{prefix}0').parent)
    if params.eval and params.train_dir and os.path.isfile(params.train_dir):
        refusals.add(
            f'{spelled("train_dir", params.train_dir)}: it is a file; give the folder that the checkpoints are in'
        )
    for name in outputs_that_are(*(_FOLDERS if is_chief else (Output.FOLDER,))):
        if (folder := getattr(params, name)) and not (name == 'train_dir' and params.eval):
            with refusals.collecting(), _refusing(name, folder):
                if OUTPUTS[name] is Output.NEW_FOLDER:
                    _check_new(name, folder)
                    # The folder is renamed into place when complete; until then its parent is written to.
                    folder = os.path.dirname(os.path.abspath(folder))
                _make_folder(Path(folder))
    refusals.raise_all()


def _check_name(name: str, path: str | None) -> None:
    """Refuses a path that TensorFlow cannot open, which it would tell only after it has trained and saved there."""
    try:
        (path or '').encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        reason = (
            'its name is not UTF-8, and TensorFlow opens no other; write another path'
            if encoding == 'utf-8'
            else f'file names are {encoding} in this locale; set PYTHONUTF8=1 if this one is UTF-8'
        )
        raise UsageError(f'{spelled(name, path)}: {reason}') from None
    if name in _WITH_CHECKPOINTS and (found := sorted(set(path or '') & set(_WILDCARDS))):
        raise UsageError(
            f'{spelled(name, path)}: its name contains {" and ".join(found)}, which TensorFlow takes for a pattern '
            'when it reads checkpoints; write another path'
        )


def check_file(name: str, path: str) -> None:
    """Checks that the file which a flag names can be written. Creates its folder if that is missing.

    Raises:
      UsageError: it cannot.
    """
    if path != STDOUT:
        with _refusing(name, path):
            _try_file(Path(path))


def _check_new(name: str, folder: str) -> None:
    """Checks that a folder which will be renamed into place is missing or empty."""
    if os.path.ismount(folder):
        raise UsageError(f'{spelled(name, folder)}: a mounted folder cannot be replaced; name a new folder in it')
    if os.path.islink(folder):
        raise UsageError(f'{spelled(name, folder)}: a link cannot be replaced; write the path of a new folder')
    if os.path.lexists(folder) and any(Path(folder).iterdir()):
        raise UsageError(f'{spelled(name, folder)}: the folder is not empty; write the name of a new one')


@contextlib.contextmanager
def _refusing(name: str, path: str) -> Iterator[None]:
    """Raises UsageError, with the flag and the path, for a path that the block cannot write."""
    if '://' in path:
        raise UsageError(f'{spelled(name, path)}: only files of this machine can be written; write a local path')
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f'{spelled(name, path)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{spelled(name, path)}: it cannot be written ({reason}); write another path') from None


def _try_file(path: Path) -> None:
    # Create and remove the file that a symbolic link points to, not the link.
    file = path.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    existed = file.exists()
    # Appending nothing leaves the content as it is.
    file.open('ab').close()
    if not existed:
        # Another process of the run may have removed it already.
        file.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Makes a folder if it is missing, and writes to it.

    Raises:
      OSError: it cannot be made, or not be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The file is deleted when it is closed.
    tempfile.TemporaryFile(dir=folder).close()
