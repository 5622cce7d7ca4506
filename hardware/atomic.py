"""Files and folders that appear as a whole or not at all, even after a power failure. Every room may import it."""

import contextlib
import glob
import os
import re
import shutil
import tempfile
import time
import uuid
from pathlib import Path

from errors import OF_A_FULL_DISK

# The ending of a file that is being written, and the age in seconds after which nobody can still be writing it.
_PART, _OLD_SECS = '.part', 600.0
_TEMPORARY = 'tf_cnn_benchmarks_'


def write_whole(content: str | bytes, path: str | Path) -> None:
    """Writes a file as a whole or not at all; text as UTF-8.

    Raises:
      OSError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        # A pipe or a device, such as /dev/stdout.
        target.write_bytes(data)
        return
    _remove_old_parts(target)
    part = target.with_name(f'.{target.name}.{uuid.uuid4().hex[:8]}{_PART}')
    try:
        part.write_bytes(data)
        move_whole(part, target)
    except OSError as error:
        # A file that is mounted by itself, or whose folder is read-only, can only be written in place.
        if error.errno in OF_A_FULL_DISK or not target.exists():
            raise
        target.write_bytes(data)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def move_whole(source: Path, target: Path) -> None:
    """Renames a file, or a folder with its files, once it is on disk: so it cannot be empty after a power failure.

    Args:
      source: the file or folder.
      target: the new name on the same file system; replaces a file, or an empty folder.

    Raises:
      OSError: the disk fails, or target is a folder with files.
    """
    for folder, _, files in os.walk(source):
        for name in files:
            sync(Path(folder, name))
    sync(source)
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Waits until the contents of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_old_parts(target: Path) -> None:
    """Removes the parts that processes left when they were killed while they wrote the same file."""
    with contextlib.suppress(OSError):
        for part in target.parent.glob(f'.{glob.escape(target.name)}.*{_PART}'):
            if time.time() - part.stat().st_mtime > _OLD_SECS:
                part.unlink(missing_ok=True)


def own_prefix() -> str:
    """Returns the start of the names of this process's temporary folders; first removes those of dead processes."""
    for folder in Path(tempfile.gettempdir()).glob(f'{_TEMPORARY}[0-9]*_*'):
        owner = re.match(rf'{_TEMPORARY}(\d+)_', folder.name)
        with contextlib.suppress(OSError):
            if owner and folder.stat().st_uid == os.getuid() and not Path(f'/proc/{owner[1]}').exists():
                shutil.rmtree(folder, ignore_errors=True)
    return f'{_TEMPORARY}{os.getpid()}_'
