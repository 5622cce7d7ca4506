"""The folder of a sweep: its plan, results and logs. Each file appears whole or not at all.

sweep.json      the plan, and the version of the program that made it
results/        one document for each run: ID.1.json, ID.2.json ...; a run that failed has one too
logs/           the output of each run
tries/          with --find_batch_size: the document of each size that was tried
table.md        the table, once the sweep has ended
"""

import contextlib
import errno
import fcntl
import json
import os
import shlex
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import convert

from tf_cnn.cluster.shape import Shape
from tf_cnn.results import VERSION
from tf_cnn.results.collection import SWEEP_FILE, TRIES
from tf_cnn.results.document import Failure, Result, as_json, read_result
from tf_cnn.sweep.configurations import SweepPlan
from tf_cnn.system.atomic import move_atomically, write_atomically
from tf_cnn.system.documents import DocumentError, read_json
from tf_cnn.system.errors import RunError, UsageError, read_regular_file

# Instead of a plan: the commands that take turns, one in a line.
COMMANDS_FILE = 'commands.txt'

_SCHEMA, _SCHEMA_VERSION = 'tf_cnn_benchmarks.sweep', 1
# With less free space than this, the next document may not fit.
_MIN_FREE_BYTES = 64 * 1024

Outcome = Result | Failure


class Folder:
    """The folder of one sweep, or of other commands that take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results, self.logs, self.tries = path / 'results', path / 'logs', path / TRIES

    @property
    def resume_command(self) -> str:
        return shlex.join(['tf_cnn_benchmarks', 'sweep', '--resume', str(self.path)])

    def create_for_plan(self, plan: SweepPlan) -> None:
        """Makes the folder, which must be missing or empty, and writes the plan; raises UsageError
        or RunError.
        """
        self._check_new()
        self._make(self.path)
        # First of all: if the disk is full, the folder stays empty, and the same command can start
        # again.
        self.write(
            self.path / SWEEP_FILE, json.dumps(_plan_document(plan), indent=1, ensure_ascii=False)
        )
        self.make_subfolders()

    def make_subfolders(self) -> None:
        self._make(self.path, self.results, self.logs)

    def create_or_resume(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Makes the folder for commands by name; that of the same commands goes on, another one is
        a UsageError.
        """
        path = self.path / COMMANDS_FILE
        text = '\n'.join(f'{name}: {shlex.join(words)}' for name, words in commands.items())
        if not path.is_file():
            self._check_new()
        elif read_regular_file(path).decode(errors='replace').rstrip() != text:
            raise UsageError(
                f'--output={self.path}: it has results of other commands, see {path}; write '
                'another path'
            )
        self._make(self.path)
        self.write(path, text)
        self._make(self.logs, *((self.results / name).parent for name in commands))

    def _check_new(self) -> None:
        if '{' in str(self.path):
            raise UsageError(
                f'--output={self.path}: runs read braces in a path as fields; write a path '
                'without any'
            )
        try:
            if not self.path.exists() or not any(self.path.iterdir()):
                return
        except OSError as error:
            raise UsageError(
                f'--output={self.path}: it cannot be read ({error.strerror}); write another path'
            ) from None
        if (self.path / SWEEP_FILE).exists():
            hint = f'continue it with {self.resume_command}, or write another --output'
            raise UsageError(f'--output={self.path}: there is a sweep in it; {hint}')
        raise UsageError(
            f'--output={self.path}: the folder is not empty; write the name of a new one'
        )

    def _make(self, *folders: Path) -> None:
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f'{self.path}: the folder cannot be made ({error.strerror}); write another path'
            ) from None

    def read_plan(self) -> SweepPlan:
        path = self.path / SWEEP_FILE
        try:
            document = read_json(path, dict[str, Any])
            if document['schema'] != _SCHEMA or document['schema_version'] > _SCHEMA_VERSION:
                raise UsageError(
                    f'{path}: it was written by a newer version of this program; install that one'
                )
            return _parse_plan(document)
        except FileNotFoundError:
            raise UsageError(
                f'{self.path}: there is no sweep in it ({SWEEP_FILE} is missing); write sweep '
                '--resume DIR'
            ) from None
        except DocumentError as error:
            raise UsageError(
                f'{path}: it cannot be read ({error}); start the sweep again'
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            reason = f'{type(error).__name__}: {" ".join(str(error).split())}'
            raise UsageError(
                f'{path}: it cannot be read ({reason}); start the sweep again'
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other sweeps during the block; UsageError if one is running. A killed process
        leaves no lock.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f'{self.path}: another sweep is running in it; wait for its end'
                ) from None
            except OSError:
                # Some network file systems do not support locks.
                pass
            yield
        finally:
            os.close(descriptor)

    def read_outcome(self, path: Path) -> Outcome | None:
        """Reads the result or failure in a file; None if there is no complete one, such as after a
        power failure.
        """
        try:
            return read_result(path)
        except UsageError:
            return None

    def move_result(self, unfinished: Path, path: Path) -> Outcome:
        """Moves the complete document of a run to its final name, and returns it; raises RunError
        as write().
        """
        with self._convert_write_errors(path):
            move_atomically(unfinished, path)
        return read_result(path)

    def copy(self, source: Path, path: Path) -> Outcome:
        self.write(path, source.read_text(encoding='utf-8').rstrip('\n'))
        return read_result(path)

    def write_failure(self, path: Path, failure: Failure) -> Failure:
        failure.id, failure.source = failure.id or uuid.uuid4().hex, str(path)
        self.write(path, json.dumps(as_json(failure), indent=1, ensure_ascii=False))
        return failure

    def write(self, path: Path, text: str) -> None:
        """Writes a file atomically; raises RunError if the disk is full, or fails."""
        with self._convert_write_errors(path):
            write_atomically(text + '\n', path)

    def check_free_space(self, reason: str) -> None:
        """Raises RunError if the disk is full, or the reason for which a run failed says so."""
        is_full = shutil.disk_usage(self.path).free < _MIN_FREE_BYTES
        # This program's own error lines may have it in lower case.
        if is_full or any(
            os.strerror(code).lower() in reason.lower() for code in (errno.ENOSPC, errno.EDQUOT)
        ):
            raise self._write_error(self.path, os.strerror(errno.ENOSPC))

    @contextlib.contextmanager
    def _convert_write_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished_path(path).unlink(missing_ok=True)
            raise self._write_error(path, error.strerror or str(error)) from error

    def _write_error(self, path: Path, reason: str) -> RunError:
        if not (self.path / SWEEP_FILE).exists():
            return RunError(f'{path}: it cannot be written ({reason}); make room and start again')
        return RunError(
            f'{path}: it cannot be written ({reason}); what was measured before is kept: make '
            f'room, then write {self.resume_command}'
        )


def unfinished_path(path: Path) -> Path:
    """Returns the name of a file until it is complete. Readers of results skip names that begin
    with a dot.
    """
    return path.with_name(f'.{path.name}')


def _plan_document(plan: SweepPlan) -> dict[str, Any]:
    configurations = [
        {**asdict(configuration), 'shape': str(configuration.shape)}
        for configuration in plan.configurations
    ]
    return {
        'schema': _SCHEMA,
        'schema_version': _SCHEMA_VERSION,
        'program': {'version': VERSION},
        **asdict(plan),
        'configurations': configurations,
    }


def _parse_plan(document: Mapping[str, Any]) -> SweepPlan:
    configurations = [
        {**configuration, 'shape': Shape.parse(configuration['shape'])}
        for configuration in document['configurations']
    ]
    return convert({**document, 'configurations': configurations}, SweepPlan)
