"""Atomic writes: a file or folder appears complete or not at all, even after a power failure.

Every package may import this module.
"""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_cnn.system.errors import FULL_DISK_ERRORS, BenchmarkError


def write_atomically(content: str | bytes, path: str | Path) -> None:
    """Writes a file completely or not at all, with text as UTF-8.

    A file that it replaces keeps its mode and owner. A process that is killed during the write
    leaves a hidden .tf_cnn_benchmarks-*.part beside the file.
    """
    data = content.encode() if isinstance(content, str) else content
    path = Path(path)
    if path.exists() and not path.is_file():
        # A pipe or a device, such as /dev/stdout, cannot be replaced.
        path.write_bytes(data)
        return
    target = path.resolve()
    # A fixed length, since a long name plus a suffix might be too long.
    temporary = target.with_name(f'.tf_cnn_benchmarks-{secrets.token_hex(8)}.part')
    try:
        with temporary.open('xb') as file:
            _copy_access(target, file.fileno())
            file.write(data)
        move_atomically(temporary, target)
    except OSError as error:
        # A file that is a mount point or in a read-only folder can only be written in place.
        if error.errno in FULL_DISK_ERRORS or not target.exists():
            raise
        target.write_bytes(data)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Creates a folder if it is missing. Raises OSError if it is not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def _copy_access(source: Path, target: Path | int) -> None:
    """Copies owner, group and mode of an existing file, as far as the system allows."""
    with contextlib.suppress(OSError):
        status = source.stat()
        # In a user namespace, chown fails for users and groups of other processes.
        with contextlib.suppress(OSError):
            os.chown(target, status.st_uid, status.st_gid)
        os.chmod(target, status.st_mode & 0o777)


def move_atomically(source: Path, target: Path) -> None:
    """Renames a file or folder after syncing it, so that a power failure cannot leave it empty.

    target must be on the same file system. It may be a file or an empty folder, and keeps its mode
    and owner.
    """
    for folder, _, files in os.walk(source):
        for name in files:
            sync(Path(folder, name))
    sync(source)
    _copy_access(target, source)
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folder(folder: Path, conflict: BenchmarkError) -> Iterator[None]:
    """Locks a folder until the block or this process ends, if the file system has locks.

    Raises `conflict` if another process has the lock, and OSError if the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise conflict from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def remove_own_files(folder: Path, is_own_name: Callable[[str], object]) -> int:
    """Removes the files that a killed process of this program left in a folder; returns the count.

    Raises OSError, and removes nothing, if the folder is a link or contains anything else.

    is_own_name: returns whether a name belongs to such a file.
    """
    if folder.is_symlink():
        raise OSError(f'{folder} is a link; remove it')
    entries = list(folder.iterdir())
    for entry in entries:
        if not is_own_name(entry.name) or (entry.is_dir() and not entry.is_symlink()):
            raise OSError(f'{entry} does not belong to this program; move it elsewhere')
    for entry in entries:
        entry.unlink()
    return len(entries)
