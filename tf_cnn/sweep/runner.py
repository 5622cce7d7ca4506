"""The engine of rounds: commands in turns, each run in a fresh process, each result stored at once.

`sweep`, `--repeat`, `compare --run` and the scripts of benchmarks/ run their commands here.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from tf_cnn.params import parse_argv
from tf_cnn.params.result_flags import STDOUT
from tf_cnn.results.document import (
    SCHEMA_VERSION,
    FailedCluster,
    FailedCommand,
    Failure,
    Result,
    as_json,
)
from tf_cnn.sweep.configurations import Configuration
from tf_cnn.sweep.folder import Folder, Outcome, unfinished_name
from tf_cnn.system.errors import format_flag
from tf_cnn.system.limited_process import ERROR, TIMEOUT, run_process
from tf_cnn.system.place import COMMAND

PROGRAM = (sys.executable, str(COMMAND))


@dataclass(frozen=True)
class Contestant:
    """A command that takes turns with others.

    Attributes:
      name: unique; its results are NAME.1.json, NAME.2.json ... of the folder's results/, and may
        have a folder there.
      words: the words after the program; --result_file is added to them.
      failure: the document of a failure, without what the run makes known.
      is_elsewhere: whether the process with the result is on another host, which may have other
        files.
    """

    name: str
    caption: str
    words: Sequence[str]
    failure: Failure
    is_elsewhere: bool = False


@dataclass(frozen=True)
class Turn:
    """A run that was made; rounds are numbered from 1."""

    contestant: Contestant
    number: int
    outcome: Outcome
    seconds: float


@dataclass(frozen=True)
class Starter:
    """Starts processes of a program with its whole environment (None: that of this process), within
    some seconds.
    """

    program: Sequence[str] = PROGRAM
    environment: Mapping[str, str] | None = None
    timeout_secs: float | None = None

    def run(self, folder: Folder, contestant: Contestant, path: Path) -> tuple[Outcome, float]:
        """Runs a contestant to its end, with its result or the document of its failure in a file of
        the folder.

        Returns the outcome, and the seconds it took. Raises RunError if the disk is full, or fails.
        """
        unfinished = unfinished_name(path)
        unfinished.unlink(missing_ok=True)
        started_at = datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
        target = STDOUT if contestant.is_elsewhere else unfinished
        argv = [*self.program, *contestant.words, format_flag('result_file', target)]
        try:
            log = folder.logs / f'{path.stem}.log'
            ended = run_process(argv, log, self.timeout_secs, self.environment)
            if contestant.is_elsewhere:
                _take_document(log, unfinished)
            reason = ended.reason or 'it ended with exit code 0, and left no result'
            found = folder.outcome(unfinished)
            is_whole = isinstance(found, Result) and found.is_complete == (ended.cause is None)
            if ended.cause == ERROR or not is_whole:
                # Before anything is removed: the failed run may have filled the disk itself.
                folder.check_room(reason)
            if is_whole and ended.cause in (None, ERROR):
                return folder.adopt(unfinished, path), ended.seconds
            if isinstance(found, Result) and is_whole and ended.cause == TIMEOUT:
                # The run did not know why this process ended it.
                found = replace(found, ended=replace(found.ended, reason=reason))
                folder.write(path, json.dumps(as_json(found)))
                found.source = str(path)
                return found, ended.seconds
        finally:
            # Do not trust the result of a run that failed with a complete result.
            unfinished.unlink(missing_ok=True)
        failure = replace(
            contestant.failure,
            reason=reason,
            exit_code=ended.exit_code,
            started_at=started_at,
            cause=ended.cause,
            seconds=round(ended.seconds, 3),
        )
        return folder.write_failure(path, failure), ended.seconds


class Rounds:
    """Contestants that take turns. Results that the folder, which exists, already has are not
    measured again.

    A contestant of which only failures are known is not run again. Call it from the main thread.
    """

    def __init__(
        self,
        contestants: Sequence[Contestant],
        count: int,
        folder: Folder,
        starter: Starter = Starter(),
    ) -> None:
        self._contestants = contestants
        self._count = count
        self._folder = folder
        self._starter = starter
        # Name of the contestant -> number of the round -> outcome.
        self._found: dict[str, dict[int, Outcome]] = {
            contestant.name: {} for contestant in contestants
        }
        for contestant in contestants:
            for number in range(1, count + 1):
                if found := folder.outcome(self._path(contestant, number)):
                    self._found[contestant.name][number] = found

    @property
    def outcomes(self) -> dict[str, list[Outcome]]:
        """The outcomes of each contestant so far, by its name, in the order of the rounds."""
        return {
            name: [found[number] for number in sorted(found)] for name, found in self._found.items()
        }

    @property
    def num_done(self) -> int:
        return sum(map(len, self._found.values()))

    @property
    def num_left(self) -> int:
        return len([*self.left()])

    def left(self) -> Iterator[tuple[Contestant, int]]:
        """Yields the runs that are left, each with the number of its round, in their order."""
        for number in range(1, self._count + 1):
            for index in order_of_round(len(self._contestants), number):
                contestant = self._contestants[index]
                found = self._found[contestant.name]
                if number not in found and (not found or any(map(succeeded, found.values()))):
                    yield contestant, number

    def run(self) -> Iterator[Turn]:
        for contestant, number in self.left():
            outcome, seconds = self._starter.run(
                self._folder, contestant, self._path(contestant, number)
            )
            self._found[contestant.name][number] = outcome
            yield Turn(contestant, number, outcome, seconds)

    def _path(self, contestant: Contestant, number: int) -> Path:
        return self._folder.results / f'{contestant.name}.{number}.json'


def contestant_of(one: Configuration) -> Contestant:
    failure = failure_of(one.argv, one.given, str(one.shape))
    return Contestant(one.id, one.caption, one.command, failure, is_elsewhere=bool(one.launch))


def contestant_of_run(name: str, argv: Sequence[str]) -> Contestant:
    params = parse_argv(argv).params
    return Contestant(name, name, argv, failure_of(argv, params.given, f'1*{params.num_gpus or 1}'))


def failure_of(argv: Sequence[str], given: Mapping[str, str], shape: str) -> Failure:
    command, cluster = FailedCommand(dict(given), argv), FailedCluster(shape)
    return Failure(schema_version=SCHEMA_VERSION, command=command, cluster=cluster, reason='')


def succeeded(outcome: Outcome) -> bool:
    return isinstance(outcome, Result) and outcome.is_complete


def describe(outcome: Outcome) -> str:
    """Describes how a run ended: '123.4 images/sec', for an exchange alone '1.234 ms/step', or why
    it failed.
    """
    if isinstance(outcome, Result) and outcome.is_complete:
        if outcome.run.role == 'exchange-only':
            return f'{1e3 * outcome.step_seconds().mean():.3f} ms/step'
        return f'{outcome.images_per_second:.1f} images/sec'
    return f'failed: {outcome.reason}'


def order_of_round(count: int, round_number: int) -> list[int]:
    """Returns the indices of all configurations in the order in which one round runs them.

    The speed of a machine that warms up, or has other load, changes over minutes, and would look
    like a difference between configurations that make all their runs in a row. So each round runs
    every configuration once, and every second round runs backwards, so that a steady drift over two
    rounds cancels (ABBA; Box, Hunter & Hunter, Statistics for Experimenters, on counterbalancing).
    The first round is in the order of the plan; each later pair of rounds is shuffled, so that no
    configuration always follows the same one.
    """
    order = list(range(count))
    pair, is_second = divmod(round_number - 1, 2)
    if pair:
        random.Random(pair).shuffle(order)
    return order[::-1] if is_second else order


def _take_document(log: Path, path: Path) -> None:
    lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
    if found := [line for line in lines if line.startswith('{"schema"')]:
        path.write_text(f'{found[-1]}\n', encoding='utf-8')
