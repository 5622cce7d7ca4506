"""Reads the runs of each argument, and splits them by host. Does not import TensorFlow."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tf_cnn.lab.measure import COMMANDS_FILE
from tf_cnn.lab.original_logs import Run, read_log
from tf_cnn.lab.runs import MEASURED, WITH, hosts_of
from tf_cnn.machine.run_environment import has_generated_name
from tf_cnn.results.collection import collect, is_folder
from tf_cnn.results.document import (
    MAX_BYTES,
    AnyResult,
    CommandResult,
    Failure,
    Result,
    read_document,
)
from tf_cnn.system.documents import decode_text
from tf_cnn.system.errors import STDIO, UsageError, plural, read_file

Document = TypeVar('Document', bound=AnyResult)

_MAX_TITLE = 14
# (file, why there is no rate, the flags of the run as written if they are known)
Missing = tuple[str, str, Mapping[str, str] | None]
# The end of node1+node2.3.json.
_NUMBER = re.compile(r'(\.\d+)?\.json$')


@dataclass(frozen=True)
class Side:
    """What one argument, or one host, has.

    Attributes:
      name: short, for sentences; '' for a single argument.
      missing: runs without a rate, and files that cannot be read, which may be slow runs.
      strangers: files that are no results of this program.
    """

    name: str
    runs: Sequence[Run]
    missing: Sequence[Missing] = ()
    strangers: Sequence[str] = ()
    path: str = ''


def read_side(path: str, name: str = '') -> Side:
    """Reads a folder of results, a result, a log, or standard input.

    Raises UsageError if there is none, or if a file has no rate.
    """
    if path != STDIO and is_folder(Path(path)):
        if os.path.isfile(f'{path}/{COMMANDS_FILE}'):
            path = f'{path}/results'
        collection = collect([path])
        documents: list[AnyResult] = [*collection.results, *collection.commands]
        runs = [part for document in documents for part in _numbers(_name_host(document, path))]
        missing: list[Missing] = [(f.source, f.reason, f.given_flags) for f in collection.failures]
        missing += _unreadable(collection.problems)
        return Side(name, runs, missing, collection.strangers, path)
    source = 'standard input' if path == STDIO else path
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(
            f'{source}: it cannot be read ({error.strerror}); give a result that --result_file '
            'wrote'
        ) from None
    text = decode_text(data, 'replace')
    if not text.strip():
        raise UsageError(f'{source}: it is empty; was its run stopped before it wrote a result?')
    is_document = text.lstrip().startswith('{')
    run = read_document(text, source) if is_document else read_log(text, source)
    if isinstance(run, Failure) or not run.images_per_second > 0:
        reason = run.reason or 'no step was timed'
        raise UsageError(f'{source}: {reason}; give the result of another run')
    return Side(name, _numbers(run), path=path)


def read_sides(paths: Sequence[str], *, by_name: bool = False) -> list[Side]:
    """Reads all arguments.

    Raises UsageError if two have the same runs: their ratio would say nothing.

    Args:
      by_name: whether a single argument has a name, too.
    """
    if paths.count(STDIO) > 1:
        raise UsageError(
            f'{STDIO}: standard input can be read only once; give the other result as a file'
        )
    arguments = ['standard input' if path == STDIO else path for path in paths]
    names = titles(arguments) if by_name or len(paths) > 1 else ['']
    sides = [read_side(path, name) for path, name in zip(paths, names, strict=True)]
    sides_by_runs: dict[frozenset[str], Side] = {}
    for side in sides:
        runs = frozenset(run.id for run in side.runs)
        if runs and (other := sides_by_runs.setdefault(runs, side)) is not side:
            raise UsageError(
                f'{other.path} and {side.path}: they have the same {plural(len(runs), "run")}, so '
                'their ratio says nothing; give results of two settings'
            )
    return sides


def read_folders(paths: Sequence[str]) -> list[Side]:
    """Reads folders of hosts; one without any result is a problem of its host."""
    sides = []
    for path, name in zip(paths, titles(paths), strict=True):
        try:
            sides.append(read_side(path, name if len(paths) > 1 else ''))
        except UsageError as error:
            if not Path(path).is_dir():
                raise
            sides.append(Side(name, (), _unreadable(error.lines), path=path))
    return sides


def _unreadable(lines: Iterable[str]) -> list[Missing]:
    parts = (line.partition(': ') for line in lines)
    return [(source, reason, None) for source, _, reason in parts]


def titles(paths: Sequence[str]) -> list[str]:
    """Returns short names: the parts of the paths that differ, their first words, or letters."""
    parts = [Path(path).parts for path in paths]
    ends = [path[-1] if path else '.' for path in parts]
    # Of a/results and b/results the first part tells them apart.
    depth = max(map(len, parts))
    padded = [('',) * (depth - len(path)) + path for path in parts]
    differing = [index for index in range(depth) if len({path[index] for path in padded}) > 1]
    middles = ['/'.join(filter(None, (path[i] for i in differing))) for path in padded]
    words = [re.split(r'[^A-Za-z0-9]', name)[0] for name in ends]
    for names in (ends, middles, words):
        if len({*names}) == len(names) and all(0 < len(name) <= _MAX_TITLE for name in names):
            return names
    return [chr(ord('A') + number) for number in range(len(paths))]


def by_host(sides: Sequence[Side]) -> list[Side]:
    """Splits runs by machine and folder: equal names in two folders are two hosts, as names and
    hardware of virtual machines may be equal.
    """
    runs: dict[tuple[str, str, str, str], dict[tuple[str, str], Run]] = {}
    for side in sides:
        for run in side.runs:
            names = WITH.join(hosts_of(run)) or run.source
            fingerprint = run.machine.get('fingerprint') or run.source
            key = names, side.name, _folder(run.source, side.path), fingerprint
            runs.setdefault(key, {})[run.id, str(run.given_flags.get(MEASURED))] = run
    candidates = [
        (host, f'{host} ({side})', f'{host} ({Path(folder).name})', f'{host} ({folder})', f'{key}')
        for key in runs
        for host, side, folder, _ in [key]
    ]
    column = next(c for c in zip(*candidates, strict=True) if len({*c}) == len(c)) if runs else ()
    counts = Counter(names[0] for names in candidates)
    hosts = {
        name if counts[first] > 1 else first: [*own.values()]
        for name, (first, *_), own in zip(column, candidates, runs.values(), strict=True)
    }
    missing: dict[str, list[Missing]] = {}
    for side in sides:
        for each in side.missing:
            missing.setdefault(_host_of_file(each[0], side.path), []).append(each)
    strangers = [name for side in sides for name in side.strangers]
    return [
        Side(name, hosts.get(name, ()), missing.get(name, ()), () if number else strangers)
        for number, name in enumerate(dict.fromkeys([*hosts, *missing]))
    ]


def _folder(source: str, path: str) -> str:
    """Returns the folder of a host: the argument, or the folder below it that has the file."""
    parts = Path(os.path.relpath(source, path)).parts
    return os.path.join(path, parts[0]) if len(parts) > 1 else os.path.dirname(source)


def _host_of_file(source: str, path: str) -> str:
    """Returns the name of the folder below the argument, or of the file: node3/node3.1.json."""
    parts = Path(os.path.relpath(source, path)).parts
    name = parts[0] if parts and parts[0] not in ('.', '..') else Path(path).name
    return name if len(parts) > 1 else _NUMBER.sub('', name).replace('+', WITH)


def _name_host(run: AnyResult, path: str) -> AnyResult:
    """Names a machine by its folder if a container runtime generated its name."""
    folder = Path(run.source).parent
    if not has_generated_name(run.machine) or folder == Path(path):
        return run
    changes: dict[str, Any] = {'machine': {**run.machine, 'hostname': folder.name}}
    if isinstance(run, Result):
        changes['workers'] = [
            msgspec.structs.replace(worker, host=folder.name)
            if worker.host == run.machine['hostname']
            else worker
            for worker in run.workers
        ]
    return _change(run, **changes)


def _numbers(run: Run) -> list[Run]:
    """Returns a run for each number that a command printed: its name is part of the setting."""
    if not isinstance(run, CommandResult) or len(names := [*run.rates, *run.times]) < 2:
        return [run]
    return [
        _change(
            run,
            flags={**run.flags, MEASURED: name},
            rates={key: rate for key, rate in run.rates.items() if key == name},
            times={key: seconds for key, seconds in run.times.items() if key == name},
        )
        for name in names
    ]


def _change(run: Document, **changes: Any) -> Document:
    """Returns the run with other values, from the same file."""
    changed = msgspec.structs.replace(run, **changes)
    changed.source = run.source
    return changed
