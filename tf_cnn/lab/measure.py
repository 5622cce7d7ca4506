"""The engine: runs configurations in rounds, and keeps each document at once. Does not import
TensorFlow.

The folder of a command that measures; all its files are written atomically:

commands.txt    the command of each configuration; the same commands continue the folder
results/        a document for each run, also for failed ones: ID.1.json, ID.2.json ...
logs/           the output of each run
"""

import contextlib
import errno
import json
import os
import random
import re
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tf_cnn.cluster.environments import check_alone, remove_cluster_variables
from tf_cnn.lab.configurations import HOST, Configuration
from tf_cnn.lab.probe import LEFT_PROCESSES
from tf_cnn.lab.runs import group
from tf_cnn.results.document import (
    MAX_BYTES,
    SCHEMA_VERSION,
    AnyResult,
    CommandResult,
    FailedCluster,
    FailedCommand,
    Failure,
    Result,
    read_document,
    read_result,
)
from tf_cnn.results.live import can_redraw
from tf_cnn.results.tables import format_number
from tf_cnn.system.atomic import lock_folder, write_atomically
from tf_cnn.system.documents import as_json, decode_text
from tf_cnn.system.errors import RunError, UsageError, read_file, warn
from tf_cnn.system.limited_process import TIMEOUT, ProcessExit, run_processes
from tf_cnn.system.place import FOLDER
from tf_cnn.system.signals import SIGNALS

if TYPE_CHECKING:
    from rich.progress import Progress

COMMANDS_FILE = 'commands.txt'
_DOCUMENT = re.compile(rb'^\{"schema".*\n?', re.MULTILINE)
# With less free space than this, the next document may not fit.
_MIN_FREE_BYTES = 64 * 1024

Outcome = AnyResult | Failure


# A run that has ended: its round from 1, its outcome, and its seconds; None if an earlier command
# made it.
FinishedRun = tuple[Configuration, int, Outcome, float | None]


@dataclass(frozen=True)
class Laboratory:
    """Where configurations run, and the folder that keeps their documents and logs. The same
    configurations with the same folder continue.
    """

    path: Path
    environment: Mapping[str, str] = field(default_factory=lambda: {**os.environ})
    timeout_secs: float | None = None

    @property
    def results(self) -> Path:
        return self.path / 'results'

    @property
    def logs(self) -> Path:
        return self.path / 'logs'

    def create_or_resume(self, configurations: Sequence[Configuration]) -> None:
        """Makes the folder for these commands, or continues a folder that has them.

        Raises UsageError if the folder has other contents.
        """
        path, flag_text = self.path / COMMANDS_FILE, f'--output={self.path}'
        text = '\n'.join(f'{each.name}: {shlex.join(each.argv)}' for each in configurations)
        folders = [self.logs, *((self.results / each.name).parent for each in configurations)]
        try:
            if path.is_file():
                if decode_text(read_file(path), 'replace').rstrip() != text:
                    raise UsageError(
                        f'{flag_text}: it has results of other commands, see {path}; use another '
                        'path'
                    )
            elif '{' in str(self.path):
                raise UsageError(
                    f'{flag_text}: braces in a path stand for fields of a run; use a path without '
                    'braces'
                )
            elif self.path.exists() and any(self.path.iterdir()):
                raise UsageError(f'{flag_text}: the folder is not empty; use a new one')
            self.path.mkdir(parents=True, exist_ok=True)
            self.write(path, text)
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f'{flag_text}: the folder cannot be used ({error.strerror}); use another path'
            ) from None

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Locks the folder for a block; raises UsageError if another command is measuring in it."""
        return lock_folder(
            self.path,
            UsageError(f'{self.path}: another command is measuring in it; wait until it has ended'),
        )

    def write(self, path: Path, text: str) -> None:
        """Writes a file atomically; raises RunError if writing fails."""
        try:
            write_atomically(text + '\n', path)
        except OSError as error:
            raise self._write_error(path, error.strerror or str(error)) from error

    def check_free_space(self) -> None:
        """Raises RunError if the disk is full."""
        if shutil.disk_usage(self.path).free < _MIN_FREE_BYTES:
            raise self._write_error(self.path, os.strerror(errno.ENOSPC))

    def _write_error(self, path: Path, reason: str) -> RunError:
        return RunError(
            f'{path}: it cannot be written ({reason}); completed runs are kept: free some space, '
            f'then use the same command with --output={self.path}'
        )

    def fail(self, configuration: Configuration, number: int, reason: str, **facts: Any) -> Failure:
        """Writes why a run has no result."""
        path = self.result_path(configuration, number)
        failure = Failure(
            schema_version=SCHEMA_VERSION,
            id=uuid.uuid4().hex,
            command=FailedCommand(dict(configuration.given_flags), configuration.argv),
            cluster=FailedCluster(configuration.shape),
            reason=reason,
            **facts,
        )
        failure.source = str(path)
        self.write(path, json.dumps(as_json(failure), indent=1, ensure_ascii=False))
        return failure

    def measure(
        self,
        configurations: Sequence[Configuration],
        rounds: int,
        on_start: Callable[[Configuration], object] = lambda configuration: None,
    ) -> Iterator[FinishedRun]:
        """Yields the runs that the folder has, then each new one. Call it from the main thread.

        A configuration that has only failed is not run again.

        Args:
          on_start: called before runs start, with the first of those that start together.
        """
        done: dict[str, dict[int, Outcome]] = {each.name: {} for each in configurations}
        for configuration in configurations:
            for number in range(1, rounds + 1):
                # A power failure may have left half a file.
                outcome = None
                with contextlib.suppress(UsageError):
                    outcome = read_result(self.result_path(configuration, number))
                if outcome:
                    done[configuration.name][number] = outcome
                    yield configuration, number, outcome, None
        groups = group(configurations, lambda each: each.together or each.name)
        for number in range(1, rounds + 1):
            for index in order_of_round(len(groups), number):
                missing = [
                    configuration
                    for configuration in groups[index]
                    if number not in (outcomes := done[configuration.name])
                    if not outcomes or any(map(succeeded, outcomes.values()))
                ]
                if missing:
                    on_start(missing[0])
                for run in self._run_together(missing, number) if missing else ():
                    configuration, _, outcome, _ = run
                    done[configuration.name][number] = outcome
                    yield run

    def result_path(self, configuration: Configuration, number: int) -> Path:
        return self.results / f'{configuration.name}.{number}.json'

    def _run_together(
        self, configurations: Sequence[Configuration], number: int
    ) -> list[FinishedRun]:
        started_at = datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
        paths = [self.result_path(configuration, number) for configuration in configurations]
        logs = [self.logs / f'{path.stem}.log' for path in paths]
        argvs = {log: each.argv for log, each in zip(logs, configurations, strict=True)}
        environment = self.environment
        if not all(each.has_job for each in configurations):
            environment = remove_cluster_variables(environment)
        exits = run_processes(argvs, self.timeout_secs, environment)
        runs = list[FinishedRun]()
        for configuration, path, log, process_exit in zip(
            configurations, paths, logs, exits, strict=True
        ):
            outcome = read_outcome(log, process_exit)
            if isinstance(outcome, str):
                # The failed run itself may have filled the disk.
                self.check_free_space()
                outcome = self.fail(
                    configuration,
                    number,
                    # Its row names the host.
                    outcome.removeprefix(f'{configuration.setting.get(HOST)}: '),
                    exit_code=process_exit.exit_code,
                    cause=process_exit.cause,
                    started_at=started_at,
                    seconds=round(process_exit.seconds, 3),
                )
            else:
                self.write(path, json.dumps(as_json(outcome)))
                outcome.source = str(path)
            runs.append((configuration, number, outcome, process_exit.seconds))
        return runs


def make_laboratory(name: str, path: str, timeout_secs: float | None) -> Laboratory:
    """Returns where a subcommand measures. Raises UsageError in one of several processes."""
    check_alone(os.environ, name, warn)
    folders = [str(FOLDER), *filter(None, [os.environ.get('PYTHONPATH')])]
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(folders)}
    return Laboratory(Path(path), environment, timeout_secs)


def read_outcome(log: Path, process_exit: ProcessExit) -> Outcome | str:
    """Takes the document out of the end of a log, which may be long; returns why there is none."""
    document = None
    with log.open('rb+') as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_BYTES))
        tail = file.read()
        if documents := [*_DOCUMENT.finditer(tail)]:
            try:
                document = read_document(decode_text(documents[-1][0], 'replace'), str(log))
            except UsageError as error:
                # The disk may be full, so the log keeps its size until that is checked.
                return process_exit.reason or str(error)
            file.seek(documents[-1].start() - len(tail), os.SEEK_END)
            file.write(tail[documents[-1].end() :])
            file.truncate()
    reason = process_exit.reason
    if isinstance(document, Result) and not document.is_complete:
        # Only this process knows about the timeout.
        is_timeout = process_exit.cause == TIMEOUT
        status = replace(document.exit_status, reason=reason) if is_timeout else None
        return replace(document, exit_status=status) if status else document
    if reason or not isinstance(document, AnyResult):
        return reason or 'it ended with exit code 0, but printed no result'
    return document


def order_of_round(count: int, round_number: int) -> list[int]:
    """Returns a round's order of the groups 0, 1 ... count - 1.

    A machine that warms up, or has other load, changes its speed over minutes. If each group made
    all its runs in a row, this drift would look like a difference between them. So each round runs
    every group once, and every second round reverses the order: a steady drift over two rounds
    cancels (ABBA; Box, Hunter & Hunter, Statistics for Experimenters, on counterbalancing). The
    first round keeps the given order; each later pair of rounds is shuffled, so that no group
    always follows the same one.
    """
    order = list(range(count))
    pair, is_second = divmod(round_number - 1, 2)
    if pair:
        random.Random(pair).shuffle(order)
    return order[::-1] if is_second else order


def succeeded(outcome: Outcome) -> bool:
    return isinstance(outcome, AnyResult) and outcome.is_complete


def describe_outcome(outcome: Outcome) -> str:
    """Returns '123.4 images/sec', for --exchange_only '1.234 ms/step', the numbers of a command,
    its wall time, or 'failed: REASON'.
    """
    if isinstance(outcome, CommandResult):
        numbers = [
            (f'{name} ' if len(outcome.rates) + len(outcome.times) > 1 else '')
            + f'{format_number(value)}{unit}'
            + (f' (the last of {count} matches)' if (count := outcome.matches.get(name)) else '')
            for values, unit in ((outcome.rates, ''), (outcome.times, ' s'))
            for name, value in values.items()
        ]
        return ', '.join(numbers) or f'{outcome.seconds:.3f} s'
    if isinstance(outcome, Result) and outcome.is_complete:
        if outcome.run.role == 'exchange-only':
            return f'{1e3 * outcome.step_seconds().mean():.3f} ms/step'
        return f'{outcome.images_per_second:.1f} images/sec'
    return f'failed: {outcome.reason}'


def run_all(
    laboratory: Laboratory,
    configurations: Sequence[Configuration],
    rounds: int,
    so_far: Callable[[], str] | None = None,
    refused: Mapping[str, str] = {},
) -> list[tuple[Configuration, Outcome]]:
    """Makes all runs, with a line for each and a bar on a terminal; returns those that failed.

    Args:
      so_far: returns a sentence about sides that are compared with each other, printed after each
        round from the third on; the first failure then ends all.
      refused: why configurations cannot run, by name.
    """
    failures = list[tuple[Configuration, Outcome]]()
    laboratory.create_or_resume(configurations)
    with laboratory.locked(), SIGNALS.storing(), _make_bar() as bar:
        task = bar.add_task('', total=rounds * len(configurations))
        for each in configurations:
            if each.name in refused and not laboratory.result_path(each, 1).exists():
                laboratory.fail(each, 1, refused[each.name])
        runs = laboratory.measure(
            configurations, rounds, lambda each: bar.update(task, description=each.caption)
        )
        try:
            for number, (each, round_number, outcome, seconds) in enumerate(runs, 1):
                bar.update(task, advance=1)
                failures += [] if succeeded(outcome) else [(each, outcome)]
                if so_far and failures:
                    break
                if seconds is None:
                    continue
                prefix = f'round {round_number}: ' if rounds > 1 else ''
                line = f'{prefix}{each.caption}: {describe_outcome(outcome)}'
                bar.console.print(f'{line}, in {seconds:.0f} s', soft_wrap=True)
                for warning in getattr(outcome, 'warnings', ()):
                    if warning.code == LEFT_PROCESSES and round_number == 1:
                        warn(f'{each.caption}: {warning.text}')
                if so_far and round_number > 2 and number % len(configurations) == 0:
                    print(f'so far: {so_far()}', file=sys.stderr, flush=True)
        finally:
            again = f'the same command with --output={laboratory.path} continues'
            print(f'The results and logs are in {laboratory.path}; {again}', file=sys.stderr)
    return failures


def _make_bar() -> 'Progress':
    """Returns a progress bar, which only a terminal shows."""
    from rich import console, progress, table

    caption = progress.TextColumn(
        '{task.description}', markup=False, table_column=table.Column(no_wrap=True, ratio=1)
    )
    # Drawn rarely, since drawing takes time from the cores under measurement.
    return progress.Progress(
        progress.BarColumn(20),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        caption,
        console=console.Console(file=sys.stderr, markup=False, highlight=False),
        refresh_per_second=1,
        transient=True,
        disable=not can_redraw(sys.stderr),
    )
