"""Collects results from files and folders. Does not import TensorFlow."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.results.document import (
    AnyResult,
    CommandResult,
    Failure,
    Result,
    is_document,
    read_result,
)
from tf_cnn.results.tables import abbreviate
from tf_cnn.system.errors import STDIO, UsageError

# Files that may be the output of runs, which are read if they are named.
_LOGS = ('.log', '.out', '.txt')


@dataclass(frozen=True)
class Collection:
    """The results found in some files and folders.

    Attributes:
      results: the results in the order of their start times; each run once.
      failures: the runs that left no result, in the same order.
      problems: one line for each file that could not be read as a result.
      commands: the runs of other programs, in the order of their start times.
      strangers: files in folders that are no results: other JSON, and logs.
    """

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    problems: tuple[str, ...]
    commands: tuple[CommandResult, ...] = ()
    strangers: tuple[str, ...] = ()


def collect(paths: Sequence[str]) -> Collection:
    """Reads files, and all *.json files in folders and their subfolders.

    A named file must be a result. Other files in a folder, and subfolders that cannot be listed,
    are skipped and reported in `problems`, except files with names that begin with a dot, and those
    of other programs.

    Raises:
      UsageError: a path does not exist, a named file is not a result, a named folder cannot be
        listed, or it has neither a result nor a failure.
    """
    documents: dict[str, AnyResult | Failure] = {}
    problems: list[str] = []
    strangers: list[str] = []
    for name in paths:
        path = Path(name)
        if name == STDIO or not is_folder(path):
            document = read_result(path)
            documents.setdefault(document.id or document.source, document)
            continue
        num_found = 0
        for file in _json_files(path, problems, strangers):
            if file.name.startswith('.'):
                continue
            try:
                document = read_result(file)
            except UsageError as error:
                if is_document(file) is False:
                    strangers.append(str(file))
                else:
                    problems.append(str(error))
                continue
            documents.setdefault(document.id or document.source, document)
            num_found += 1
        if not num_found:
            others = f'only {abbreviate(strangers)}' if strangers else ''
            hint = f' ({reason})' if (reason := next(iter(problems), others)) else ''
            raise UsageError(
                f'{name}: the folder holds no results{hint}; make some with --result_file or sweep'
            )
    ordered = sorted(documents.values(), key=lambda document: str(document.started_at))
    return Collection(
        tuple(document for document in ordered if isinstance(document, Result)),
        tuple(document for document in ordered if isinstance(document, Failure)),
        tuple(problems),
        tuple(document for document in ordered if isinstance(document, CommandResult)),
        tuple(strangers),
    )


def is_folder(path: Path) -> bool:
    """Whether a path that a user named is a folder. Raises UsageError if it does not exist or
    cannot be reached.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        raise UsageError(
            f'{path}: there is no such file or folder; use results that --result_file wrote'
        ) from None
    except OSError as error:
        raise UsageError(
            f'{path}: it cannot be read ({error.strerror}); use results that --result_file wrote'
        ) from None


def _json_files(folder: Path, problems: list[str], strangers: list[str]) -> list[Path]:
    """Returns the *.json files in a folder and its subfolders, linked ones too, sorted.

    Adds a problem for each subfolder that cannot be listed, and each link that leads nowhere; adds
    logs to the strangers.
    """
    errors: list[OSError] = []
    paths: list[Path] = []
    # Each folder counts once: a link may lead to a folder that is read already, or to one above.
    real_folders = set[str]()
    for name, subfolders, files in os.walk(folder, onerror=errors.append, followlinks=True):
        if (real := os.path.realpath(name)) in real_folders:
            subfolders.clear()
            continue
        real_folders.add(real)
        for file in (Path(name, file) for file in files):
            if file.suffix == '.json':
                # A pipe would wait for its writer.
                paths += [] if file.is_fifo() else [file]
            elif file.suffix in _LOGS and not file.name.startswith('.'):
                strangers.append(str(file))
            elif file.is_symlink() and not file.exists():
                problems.append(
                    f'{file}: the link leads nowhere; it may be a folder of results; mend the link '
                    'or remove it'
                )
    for error in errors:
        line = f'{error.filename}: the folder cannot be listed ({error.strerror})'
        if Path(error.filename) == folder:
            raise UsageError(f'{line}; allow this user to read it, or give another one')
        problems.append(f'{line}; allow this user to read it, or move it elsewhere')
    return sorted(paths)
