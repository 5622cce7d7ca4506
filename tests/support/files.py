"""Reads the data of tests, writes files, and limits their size."""

import contextlib
import csv
import resource
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

DATA = Path(__file__).parents[1] / 'data'


def read_rows(name: str) -> list[dict[str, str]]:
    """Returns the rows of a table in tests/data."""
    with open(DATA / name, encoding='utf-8') as file:
        return [*csv.DictReader(file)]


def quoted(path: object) -> str:
    """Returns a path as a word of a command line: folders of temporary files may have blanks."""
    return shlex.quote(str(path))


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
