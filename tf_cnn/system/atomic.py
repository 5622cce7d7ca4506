"""Files and folders that appear as a whole or not at all, even after a power failure. Every room
may import it.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from tf_cnn.system.errors import FULL_DISK_ERRORS


def write_atomically(content: str | bytes, path: str | Path) -> None:
    """Writes a file as a whole or not at all; text as UTF-8. A file that it replaces keeps its mode
    and owner.

    A process that is killed while it writes leaves a hidden .tf_cnn_benchmarks-*.part beside the
    file.
    """
    data = content.encode() if isinstance(content, str) else content
    target = resolve_safely(Path(path))
    if target.exists() and not target.is_file():
        # A pipe or a device, such as /dev/stdout.
        target.write_bytes(data)
        return
    # Its length does not depend on that of the name.
    temporary = target.with_name(f'.tf_cnn_benchmarks-{secrets.token_hex(8)}.part')
    try:
        with temporary.open('xb') as file:
            _copy_access(target, file.fileno())
            file.write(data)
        move_atomically(temporary, target)
    except OSError as error:
        # A file that is mounted by itself, or whose folder is read-only, can only be written in
        # place.
        if error.errno in FULL_DISK_ERRORS or not target.exists():
            raise
        target.write_bytes(data)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def resolve_safely(path: Path) -> Path:
    """Returns the file to which a path leads; OSError if a link on the way could be of another
    user.

    Who can write to a folder such as /tmp could lead a file of this process to one that only this
    user may write.
    """
    path = path.absolute()
    for component in (path, *path.parents):
        if component.is_symlink():
            owner, is_open = component.lstat().st_uid, component.parent.stat().st_mode & 0o002
            if is_open or owner not in (0, os.geteuid()):
                raise OSError(
                    errno.EPERM, 'it leads through a link in a folder that others can write'
                )
    return (
        resolve_safely(path.parent / path.readlink())
        if path.is_symlink() and path.exists()
        else path.resolve()
    )


def _copy_access(source: Path, target: Path | int) -> None:
    """Gives a file the owner, group and mode of another one, if that exists, as far as the system
    allows.
    """
    with contextlib.suppress(OSError):
        status = source.stat()
        # OSError: in a user namespace only the owner and group of the process have a number.
        with contextlib.suppress(OSError):
            os.chown(target, status.st_uid, status.st_gid)
        os.chmod(target, status.st_mode & 0o777)


def move_atomically(source: Path, target: Path) -> None:
    """Renames a file, or a folder with its files, once it is on disk: so it cannot be empty after a
    power failure.

    target, on the same file system, may be a file or an empty folder; its mode and owner are kept.
    """
    for folder, _, files in os.walk(source):
        for name in files:
            sync(Path(folder, name))
    sync(source)
    _copy_access(target, source)
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Waits until the contents of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_own_files(folder: Path, is_own_name: Callable[[str], object]) -> int:
    """Removes the files that a killed process of this program left in a folder, and returns their
    number.

    is_own tells their names. If the folder is a link, or holds anything else, raises OSError and
    removes nothing.
    """
    if folder.is_symlink():
        raise OSError(f'{folder} is a link; remove it')
    entries = list(folder.iterdir())
    for entry in entries:
        if not is_own_name(entry.name) or (entry.is_dir() and not entry.is_symlink()):
            raise OSError(f'{entry} is not of this program; move it elsewhere')
    for entry in entries:
        entry.unlink()
    return len(entries)
