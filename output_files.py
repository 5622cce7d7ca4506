"""Whether the files that a run is asked for can be written. Does not import TensorFlow."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from errors import UsageError
from flag_spec import spelled

if TYPE_CHECKING:
    from params import Params

# The flags that name one file each.
FILES = ('trace_file', 'tfprof_file', 'graph_file')


def check_outputs(params: 'Params') -> None:
    """Proves that the files of the run can be written; leaves existing ones as they are, and makes --train_dir.

    Raises:
      UsageError: one cannot, with the flag, the path and the reason.
    """
    for name in FILES:
        if path := getattr(params, name):
            with _told_of(name, path):
                _try_file(Path(path))
    if prefix := params.partitioned_graph_file_prefix:
        with _told_of('partitioned_graph_file_prefix', prefix):
            _try_folder(Path(f'{prefix}0').parent)
    for name in ('train_dir', 'eval_dir'):
        if (folder := getattr(params, name)) and not (name == 'train_dir' and params.eval):
            with _told_of(name, folder):
                Path(folder).mkdir(parents=True, exist_ok=True)
                _try_folder(Path(folder))


@contextlib.contextmanager
def _told_of(name: str, path: str) -> Iterator[None]:
    if '://' in path:
        raise UsageError(f'{spelled(name, path)}: only files of this machine can be written; write a local path')
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f'{spelled(name, path)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        folder = Path(path).parent
        if name not in ('train_dir', 'eval_dir') and not folder.exists():
            raise UsageError(f'{spelled(name, path)}: there is no folder {folder}; make it first') from None
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{spelled(name, path)}: it cannot be written ({reason}); write another path') from None


def _try_file(path: Path) -> None:
    # What is made, and taken away again, is the file that a symbolic link names, not the link.
    file = path.resolve()
    existed = file.exists()
    # Appending nothing leaves the content as it is.
    file.open('ab').close()
    if not existed:
        # Another process of the run may have been faster.
        file.unlink(missing_ok=True)


def _try_folder(folder: Path) -> None:
    # Gone as soon as it is closed.
    tempfile.TemporaryFile(dir=folder).close()
