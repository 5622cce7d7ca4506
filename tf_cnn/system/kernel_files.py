"""Reads the small files in which the Linux kernel describes a machine and a process."""

from collections.abc import Iterator
from pathlib import Path

# The folder with proc/, sys/, dev/ and etc/. Tests hand in another one, with the files of another
# machine.
ROOT = Path('/')


def read_text(path: Path) -> str:
    """Returns the text of a file without white space around it; empty if it cannot be read, as on
    other systems.
    """
    try:
        return path.read_text(encoding='utf-8', errors='replace').strip()
    except OSError:
        return ''


def read_number(path: Path) -> int | None:
    """Returns the whole number in a file; None if it cannot be read or contains something else."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def read_key_values(path: Path) -> dict[str, str]:
    """Returns the rows 'name: value', 'name=value' or 'name value' of a file, by name; the last one
    of each name.
    """
    rows = {}
    for line in read_text(path).splitlines():
        separator = next((mark for mark in line if mark in ':= \t'), '')
        name, _, value = line.partition(separator) if separator else (line, '', '')
        rows[name.strip()] = value.strip()
    return rows


def parse_number_list(text: str) -> Iterator[int]:
    """Yields the numbers in a list such as '0-3,8'; raises ValueError if the text is not such a
    list.
    """
    for span in text.split(','):
        if span.strip():
            first, _, last = span.partition('-')
            yield from range(int(first), int(last or first) + 1)
