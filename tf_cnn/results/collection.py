"""Collects results from files and folders. Does not import TensorFlow."""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from tf_cnn.results.document import AnyResult, CommandResult, Failure, Result, read_result
from tf_cnn.results.sections import Number
from tf_cnn.system.documents import DocumentError, read_json
from tf_cnn.system.errors import STDIO, UsageError

# The file with the plan of a sweep, in the sweep's folder; it is not a result.
SWEEP_FILE = 'sweep.json'
# The subfolder with the runs that searched for the largest batch size; most of the last ones fail.
TRIES = 'tries'


@dataclass(frozen=True)
class ResultSource:
    """Where a result was found.

    Attributes:
      folder: the folder of its sweep; without a sweep, the named folder, or the folder of the named
        file.
      position: the position of its configuration in the plan of its sweep, from 0; None if it
        belongs to no sweep.
      published: images/sec that the plan quotes for the configuration, None if it quotes none.
      published_speed_up: the speed-up that the plan quotes for it, None if it quotes none.
      published_in: the source of these quotes.
    """

    folder: str = ''
    position: int | None = None
    published: float | None = None
    published_speed_up: float | None = None
    published_in: str = ''


class _PlannedConfiguration(Struct):
    id: str
    published: Number | None = None
    published_speed_up: Number | None = None


class _SweepFile(Struct):
    configurations: Sequence[_PlannedConfiguration]
    published_in: str = ''


@dataclass(frozen=True)
class Collection:
    """The results found in some files and folders.

    Attributes:
      results: the results in the order of their start times; each run once.
      failures: the runs that left no result, in the same order.
      problems: one line for each file that could not be read as a result.
      sources: where each result or failure was found, by Result.source.
      commands: the runs of other programs, in the order of their start times.
    """

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    problems: tuple[str, ...]
    sources: Mapping[str, ResultSource] = field(default_factory=dict)
    commands: tuple[CommandResult, ...] = ()

    def source_of(self, document: AnyResult | Failure) -> ResultSource:
        """Returns where a result or a failure was found."""
        return self.sources.get(document.source, ResultSource())


def collect(paths: Sequence[str]) -> Collection:
    """Reads files, and all *.json files in folders and their subfolders.

    A named file must be a result. Other files in a folder, and subfolders that cannot be listed,
    are skipped and reported in `problems`, except sweep.json and files with names that begin
    with a dot. The tries of a sweep count only if their own folder is named.

    Raises:
      UsageError: a path does not exist, a named file is not a result, a named folder cannot be
        listed, or it has neither a result nor a failure.
    """
    documents: dict[str, AnyResult | Failure] = {}
    problems: list[str] = []
    # Sweep folder -> id of a configuration -> its source.
    sweeps: dict[Path, Mapping[str, ResultSource]] = {}
    sources: dict[str, ResultSource] = {}

    def add(document: AnyResult | Failure, file: Path, folder: Path) -> None:
        if documents.setdefault(document.id or document.source, document) is not document:
            return
        sweep = file.parent.parent
        if sweep not in sweeps:
            sweeps[sweep] = _read_sweep_sources(sweep, problems)
        sources[document.source] = sweeps[sweep].get(file.stem.rpartition('.')[0]) or ResultSource(
            str(folder)
        )

    for name in paths:
        path = Path(name)
        if name == STDIO or not is_folder(path):
            add(read_result(path), path, path.parent)
            continue
        num_found = 0
        for file in _json_files(path, problems):
            is_try = (
                file.parent.name == TRIES
                and file.parent != path
                and (file.parent.parent / SWEEP_FILE).exists()
            )
            if file.name.startswith('.') or file.name == SWEEP_FILE or is_try:
                continue
            try:
                document = read_result(file)
            except UsageError as error:
                problems.append(str(error))
                continue
            add(document, file, path)
            num_found += 1
        if not num_found:
            hint = f' ({problems[0]})' if problems else ''
            raise UsageError(
                f'{name}: the folder holds no results{hint}; make some with --result_file or sweep'
            )
    ordered = sorted(documents.values(), key=lambda document: str(document.started_at))
    return Collection(
        tuple(document for document in ordered if isinstance(document, Result)),
        tuple(document for document in ordered if isinstance(document, Failure)),
        tuple(problems),
        sources,
        tuple(document for document in ordered if isinstance(document, CommandResult)),
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


def _json_files(folder: Path, problems: list[str]) -> list[Path]:
    """Returns the *.json files in a folder and its subfolders, linked ones too, sorted.

    Adds a problem for each subfolder that cannot be listed, and each link that leads nowhere.
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


def _read_sweep_sources(folder: Path, problems: list[str]) -> Mapping[str, ResultSource]:
    """Returns the source of each configuration of the sweep in a folder, by id; empty if there is
    no sweep.
    """
    path = folder / SWEEP_FILE
    if not path.exists():
        return {}
    try:
        plan = read_json(path, _SweepFile)
    except (DocumentError, FileNotFoundError) as error:
        problems.append(
            f'{path}: the plan of the sweep cannot be read ({error}); its order is not shown'
        )
        return {}
    return {
        configuration.id: ResultSource(
            str(folder),
            i,
            configuration.published or None,
            configuration.published_speed_up or None,
            plan.published_in,
        )
        for i, configuration in enumerate(plan.configurations)
    }
