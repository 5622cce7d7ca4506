"""Reads the small files of the Linux kernel that describe a machine and its processes."""

from collections.abc import Iterator
from pathlib import Path

# The folder with proc/, sys/, dev/ and etc/. Tests pass a folder with the files of another machine.
ROOT = Path('/')


def read_text(path: Path) -> str:
    """Returns the stripped text of a file; '' if it cannot be read, as on other systems."""
    try:
        return path.read_text(encoding='utf-8', errors='replace').strip()
    except OSError:
        return ''


def read_number(path: Path) -> int | None:
    """Returns the integer in a file; None if it cannot be read or contains something else."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def read_key_values(path: Path) -> dict[str, str]:
    """Returns the rows 'name: value', 'name=value' or 'name value' of a file as a dict."""
    rows = {}
    for line in read_text(path).splitlines():
        separator = next((mark for mark in line if mark in ':= \t'), '')
        name, _, value = line.partition(separator) if separator else (line, '', '')
        rows[name.strip()] = value.strip()
    return rows


def parse_number_list(text: str) -> Iterator[int]:
    """Yields the numbers of a list such as '0-3,8'; raises ValueError for other text."""
    for span in text.split(','):
        if span.strip():
            first, _, last = span.partition('-')
            yield from range(int(first), int(last or first) + 1)
