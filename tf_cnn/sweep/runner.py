"""Runs commands repeatedly and interleaved: each in a fresh process, each result stored at once.

`sweep`, `--repeat`, `compare` and `cluster --each` run their commands here.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from tf_cnn.lab.folder import Folder, Outcome, unfinished_path
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.results.document import (
    SCHEMA_VERSION,
    AnyResult,
    CommandResult,
    FailedCluster,
    FailedCommand,
    Failure,
    Result,
)
from tf_cnn.sweep.configurations import Configuration
from tf_cnn.system.documents import as_json
from tf_cnn.system.errors import STDIO, format_flag
from tf_cnn.system.limited_process import ERROR, TIMEOUT, ProcessExit, run_processes
from tf_cnn.system.place import COMMAND

PROGRAM = (sys.executable, str(COMMAND))


@dataclass(frozen=True)
class RepeatedCommand:
    """A command that runs once in every round.

    Attributes:
      name: unique; its results are NAME.1.json, NAME.2.json ... in the folder's results/. It may
        contain a subfolder.
      argv: the words after the program; the runner adds --result_file.
      failure: the document of a failed run, without the reason, the times and the exit code.
      is_remote: whether the process with the result is on another host. Then its output contains
        the document, since that host may not share files.
      group: commands of one group run at the same time; empty: the command runs alone.
      measure: of a command of another program, which runs alone: runs it with (log, file for the
        result, --timeout_secs), and writes the result unless it fails.
    """

    name: str
    caption: str
    argv: Sequence[str]
    failure: Failure
    is_remote: bool = False
    group: str = ''
    measure: Callable[[Path, Path, float | None], ProcessExit] | None = None


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended. Rounds are numbered from 1."""

    command: RepeatedCommand
    round_number: int
    outcome: Outcome
    seconds: float


@dataclass(frozen=True)
class Runner:
    """Runs commands of a program.

    Attributes:
      environment: all environment variables of the process; None: the variables of this process.
      timeout_secs: ends a run that takes longer; None: no limit.
    """

    program: Sequence[str] = PROGRAM
    environment: Mapping[str, str] | None = None
    timeout_secs: float | None = None

    def run(self, folder: Folder, command: RepeatedCommand, path: Path) -> tuple[Outcome, float]:
        """Runs a command, and writes its result, or the document of its failure, to `path`.

        Returns the outcome and the seconds it took. Raises RunError if the disk is full or fails.
        """
        [outcome_and_seconds] = self.run_together(folder, {path: command})
        return outcome_and_seconds

    def run_together(
        self, folder: Folder, commands: Mapping[Path, RepeatedCommand]
    ) -> list[tuple[Outcome, float]]:
        """Runs commands at the same time, each as run() does."""
        argvs: dict[Path, list[str]] = {}
        for path, command in commands.items():
            unfinished_path(path).unlink(missing_ok=True)
            target = STDIO if command.is_remote else unfinished_path(path)
            argvs[folder.logs / f'{path.stem}.log'] = [
                *self.program,
                *command.argv,
                format_flag('result_file', target),
            ]
        started_at = datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
        try:
            exits = [
                command.measure(log, unfinished_path(path), self.timeout_secs)
                for log, (path, command) in zip(argvs, commands.items(), strict=True)
                if command.measure
            ] or run_processes(argvs, self.timeout_secs, self.environment)
            return [
                (
                    self._outcome(folder, command, path, process_exit, started_at),
                    process_exit.seconds,
                )
                for (path, command), process_exit in zip(commands.items(), exits, strict=True)
            ]
        finally:
            # A run that failed with a complete result is not trusted.
            for path in commands:
                unfinished_path(path).unlink(missing_ok=True)

    def _outcome(
        self,
        folder: Folder,
        command: RepeatedCommand,
        path: Path,
        process_exit: ProcessExit,
        started_at: str,
    ) -> Outcome:
        unfinished = unfinished_path(path)
        if command.is_remote:
            _extract_document(folder.logs / f'{path.stem}.log', unfinished)
        reason = process_exit.reason or 'it ended with exit code 0, but wrote no result'
        outcome = folder.read_outcome(unfinished)
        is_consistent = isinstance(outcome, AnyResult) and outcome.is_complete == (
            process_exit.cause is None
        )
        if process_exit.cause == ERROR or not is_consistent:
            # Checked before files are removed: the failed run itself may have filled the disk.
            folder.check_free_space(reason)
        if is_consistent and process_exit.cause in (None, ERROR):
            return folder.move_result(unfinished, path)
        if isinstance(outcome, Result) and is_consistent and process_exit.cause == TIMEOUT:
            # The run could not know why this process stopped it.
            outcome = replace(outcome, exit_status=replace(outcome.exit_status, reason=reason))
            folder.write(path, json.dumps(as_json(outcome)))
            outcome.source = str(path)
            return outcome
        failure = replace(
            command.failure,
            reason=reason,
            exit_code=process_exit.exit_code,
            started_at=started_at,
            cause=process_exit.cause,
            seconds=round(process_exit.seconds, 3),
        )
        return folder.write_failure(path, failure)


class InterleavedRuns:
    """Commands, each run once in every round. Results that the folder already has are kept.

    The commands of a group run at the same time. A command that has only failed is not run again.
    The folder must exist. Call run() from the main thread.
    """

    def __init__(
        self,
        commands: Sequence[RepeatedCommand],
        num_rounds: int,
        folder: Folder,
        runner: Runner = Runner(),
    ) -> None:
        self._commands = commands
        self._num_rounds = num_rounds
        self._folder = folder
        self._runner = runner
        # Name of the command -> number of the round -> outcome.
        self._outcomes_by_round: dict[str, dict[int, Outcome]] = {
            command.name: {} for command in commands
        }
        for command in commands:
            for number in range(1, num_rounds + 1):
                if outcome := folder.read_outcome(self._result_path(command, number)):
                    self._outcomes_by_round[command.name][number] = outcome

    @property
    def outcomes(self) -> dict[str, list[Outcome]]:
        """The outcomes so far: name of the command -> outcomes in the order of the rounds."""
        return {
            name: [by_round[number] for number in sorted(by_round)]
            for name, by_round in self._outcomes_by_round.items()
        }

    @property
    def num_done(self) -> int:
        return sum(map(len, self._outcomes_by_round.values()))

    @property
    def num_remaining(self) -> int:
        return sum(len(commands) for commands, _ in self._remaining_groups())

    @property
    def next_caption(self) -> str:
        """The caption of the first remaining run; empty if there is none."""
        return next((commands[0].caption for commands, _ in self._remaining_groups()), '')

    def _remaining_groups(self) -> Iterator[tuple[list[RepeatedCommand], int]]:
        """Yields the remaining runs in their order: (commands of a group, number of the round)."""
        groups: dict[str, list[RepeatedCommand]] = {}
        for command in self._commands:
            groups.setdefault(command.group or command.name, []).append(command)
        for number in range(1, self._num_rounds + 1):
            for index in order_of_round(len(groups), number):
                commands = []
                for command in [*groups.values()][index]:
                    by_round = self._outcomes_by_round[command.name]
                    if number not in by_round and (
                        not by_round or any(map(succeeded, by_round.values()))
                    ):
                        commands.append(command)
                if commands:
                    yield commands, number

    def run(self) -> Iterator[FinishedRun]:
        for commands, number in self._remaining_groups():
            runs = self._runner.run_together(
                self._folder, {self._result_path(command, number): command for command in commands}
            )
            for command, (outcome, _) in zip(commands, runs, strict=True):
                self._outcomes_by_round[command.name][number] = outcome
            for command, (outcome, seconds) in zip(commands, runs, strict=True):
                yield FinishedRun(command, number, outcome, seconds)

    def _result_path(self, command: RepeatedCommand, number: int) -> Path:
        return self._folder.results / f'{command.name}.{number}.json'


def command_of_configuration(configuration: Configuration) -> RepeatedCommand:
    failure = make_failure(configuration.argv, configuration.given, str(configuration.shape))
    return RepeatedCommand(
        configuration.id,
        configuration.caption,
        configuration.command,
        failure,
        is_remote=bool(configuration.launch),
    )


def command_of_flags(name: str, argv: Sequence[str]) -> RepeatedCommand:
    params = parse_argv(argv).params
    return RepeatedCommand(
        name,
        name,
        argv,
        make_failure(argv, params.given_flags, f'1*{params.devices.num_gpus or 1}'),
    )


def make_failure(argv: Sequence[str], flags: Mapping[str, str], shape: str) -> Failure:
    command, cluster = FailedCommand(dict(flags), argv), FailedCluster(shape)
    return Failure(schema_version=SCHEMA_VERSION, command=command, cluster=cluster, reason='')


def succeeded(outcome: Outcome) -> bool:
    return isinstance(outcome, AnyResult) and outcome.is_complete


def describe_outcome(outcome: Outcome) -> str:
    """Returns '123.4 images/sec', for --exchange_only '1.234 ms/step', for another program '123.4'
    or '1.234 s', or 'failed: REASON'.
    """
    if isinstance(outcome, CommandResult):
        return f'{outcome.seconds:.3f} s' if outcome.rate is None else f'{outcome.rate:g}'
    if isinstance(outcome, Result) and outcome.is_complete:
        if outcome.run.role == 'exchange-only':
            return f'{1e3 * outcome.step_seconds().mean():.3f} ms/step'
        return f'{outcome.images_per_second:.1f} images/sec'
    return f'failed: {outcome.reason}'


def order_of_round(count: int, round_number: int) -> list[int]:
    """Returns a round's order of the commands 0, 1 ... count - 1.

    A machine that warms up, or has other load, changes its speed over minutes. If each command made
    all its runs in a row, this drift would look like a difference between the commands. So each
    round runs every command once, and every second round reverses the order: a steady drift over
    two rounds cancels (ABBA; Box, Hunter & Hunter, Statistics for Experimenters, on
    counterbalancing). The first round keeps the given order; each later pair of rounds is shuffled,
    so that no command always follows the same one.
    """
    order = list(range(count))
    pair, is_second = divmod(round_number - 1, 2)
    if pair:
        random.Random(pair).shuffle(order)
    return order[::-1] if is_second else order


def _extract_document(log: Path, path: Path) -> None:
    lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
    if documents := [line for line in lines if line.startswith('{"schema"')]:
        path.write_text(f'{documents[-1]}\n', encoding='utf-8')
