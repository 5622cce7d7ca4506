"""Writes files, and limits their size."""

import contextlib
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        (root / name).write_bytes(data)
    return root


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of files to `size` bytes in the block, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
