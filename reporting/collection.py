"""Collects the results in files and folders. Does not import TensorFlow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import UsageError
from reporting.record import Failure, Record, read_file

# The plan of a sweep, in its folder: no result.
SWEEP_FILE = 'sweep.json'


@dataclass(frozen=True)
class Collection:
    """What some files and folders hold.

    Attributes:
      records: the results, in the order in which their runs started; each run once.
      failures: the runs that left no result, in the same order.
      problems: one line for each file that could not be read as a result.
    """

    records: tuple[Record, ...]
    failures: tuple[Failure, ...]
    problems: tuple[str, ...]


def collect(paths: Sequence[str], read: Callable[[Path], Record | Failure] = read_file) -> Collection:
    """Reads files, and all *.json files in folders and their subfolders.

    A file that is named must be a result. In a folder other files are skipped and reported in `problems`, except
    sweep.json and those whose name begins with a dot.

    Raises:
      UsageError: a path does not exist, a named file is no result, or a folder holds neither a result nor a failure.
    """
    documents: dict[str, Record | Failure] = {}
    problems = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise UsageError(f'{name}: there is no such file or folder; give results that --result_file wrote')
        if not path.is_dir():
            found = read(path)
            documents.setdefault(_id(found), found)
            continue
        num_found = 0
        for file in sorted(path.rglob('*.json')):
            if file.name.startswith('.') or file.name == SWEEP_FILE:
                continue
            try:
                found = read(file)
            except UsageError as error:
                problems.append(str(error))
                continue
            documents.setdefault(_id(found), found)
            num_found += 1
        if not num_found:
            hint = f' ({problems[0]})' if problems else ''
            raise UsageError(f'{name}: the folder holds no results{hint}; write some with --result_file or sweep')
    ordered = sorted(documents.values(), key=lambda found: str(found.document.get('started_at')))
    return Collection(
        tuple(found for found in ordered if isinstance(found, Record)),
        tuple(found for found in ordered if isinstance(found, Failure)),
        tuple(problems),
    )


def _id(found: Record | Failure) -> str:
    return str(found.document.get('id', found.source))
