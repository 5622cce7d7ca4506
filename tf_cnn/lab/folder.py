"""The folder of a sweep: its plan, results and logs. All files are written atomically.

sweep.json      the plan, and the version of the program that made it
results/        a document for each run, also for failed ones: ID.1.json, ID.2.json ...
logs/           the output of each run
tries/          with --find_batch_size: the document of each size
table.md        the table, once the sweep has ended
"""

import contextlib
import errno
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

from tf_cnn.cluster.topology import Shape
from tf_cnn.results import VERSION
from tf_cnn.results.collection import SWEEP_FILE, TRIES
from tf_cnn.results.document import AnyResult, Failure, read_result
from tf_cnn.sweep.configurations import SweepPlan
from tf_cnn.system.atomic import lock_folder, move_atomically, write_atomically
from tf_cnn.system.documents import DocumentError, as_json, decode_text, read_json
from tf_cnn.system.errors import RunError, UsageError, read_file

# In the folder of other commands than a sweep's, instead of the plan: a command in each line.
COMMANDS_FILE = 'commands.txt'

_SCHEMA, _SCHEMA_VERSION = 'tf_cnn_benchmarks.sweep', 1
# With less free space than this, the next document may not fit.
_MIN_FREE_BYTES = 64 * 1024

Outcome = AnyResult | Failure


class Folder:
    """The folder of a sweep, or of other commands that InterleavedRuns runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results, self.logs, self.tries = path / 'results', path / 'logs', path / TRIES

    @property
    def resume_command(self) -> str:
        return shlex.join(['tf_cnn_benchmarks', 'sweep', '--resume', str(self.path)])

    def create_for_plan(self, plan: SweepPlan) -> None:
        """Makes the folder and writes the plan.

        Raises UsageError if the folder is not empty or cannot be made, RunError if writing fails.
        """
        self._check_new()
        self._make(self.path)
        # The plan comes first: if the disk is full, the folder stays empty, and the same command
        # works again.
        self.write(
            self.path / SWEEP_FILE, json.dumps(_plan_document(plan), indent=1, ensure_ascii=False)
        )
        self.make_subfolders()

    def make_subfolders(self) -> None:
        self._make(self.path, self.results, self.logs)

    def create_or_resume(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Makes the folder for these commands (name -> words), or continues a folder that has them.

        Raises UsageError if the folder has other contents.
        """
        path = self.path / COMMANDS_FILE
        text = '\n'.join(f'{name}: {shlex.join(words)}' for name, words in commands.items())
        if not path.is_file():
            self._check_new()
        elif decode_text(read_file(path), 'replace').rstrip() != text:
            raise UsageError(
                f'--output={self.path}: it has results of other commands, see {path}; use '
                'another path'
            )
        self._make(self.path)
        self.write(path, text)
        self._make(self.logs, *((self.results / name).parent for name in commands))

    def _check_new(self) -> None:
        if '{' in str(self.path):
            raise UsageError(
                f'--output={self.path}: braces in a path stand for fields of a run; use a '
                'path without braces'
            )
        try:
            if not self.path.exists() or not any(self.path.iterdir()):
                return
        except OSError as error:
            raise UsageError(
                f'--output={self.path}: it cannot be read ({error.strerror}); use another path'
            ) from None
        if (self.path / SWEEP_FILE).exists():
            hint = f'continue it with {self.resume_command}, or use another --output'
            raise UsageError(f'--output={self.path}: it contains a sweep; {hint}')
        raise UsageError(f'--output={self.path}: the folder is not empty; use a new one')

    def _make(self, *folders: Path) -> None:
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f'{self.path}: the folder cannot be made ({error.strerror}); use another path'
            ) from None

    def read_plan(self) -> SweepPlan:
        path = self.path / SWEEP_FILE
        try:
            document = read_json(path, dict[str, Any])
            if document['schema'] != _SCHEMA or document['schema_version'] > _SCHEMA_VERSION:
                raise UsageError(
                    f'{path}: a newer version of this program wrote it; install that version'
                )
            return _parse_plan(document)
        except FileNotFoundError:
            raise UsageError(
                f'{self.path}: it contains no sweep ({SWEEP_FILE} is missing); use sweep '
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

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Locks the folder for a block; raises UsageError if another sweep is running in it."""
        return lock_folder(
            self.path,
            UsageError(f'{self.path}: another sweep is running in it; wait until it has ended'),
        )

    def read_outcome(self, path: Path) -> Outcome | None:
        """Returns the result or failure in a file.

        None if the file is missing or incomplete, such as after a power failure.
        """
        try:
            return read_result(path)
        except UsageError:
            return None

    def move_result(self, unfinished: Path, path: Path) -> Outcome:
        """Moves a complete document to its final name, and returns it. Raises RunError as write()
        does.
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
        """Writes a file atomically; raises RunError if writing fails."""
        with self._convert_write_errors(path):
            write_atomically(text + '\n', path)

    def check_free_space(self, reason: str) -> None:
        """Raises RunError if the disk is full, or if a run failed for this reason."""
        is_full = shutil.disk_usage(self.path).free < _MIN_FREE_BYTES
        # This program's error messages may have it in lower case.
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
            return RunError(
                f'{path}: it cannot be written ({reason}); free some space and start again'
            )
        return RunError(
            f'{path}: it cannot be written ({reason}); completed runs are kept: free some '
            f'space, then run {self.resume_command}'
        )


def unfinished_path(path: Path) -> Path:
    """Returns the path of a file while it is incomplete; readers of results skip dot files."""
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
