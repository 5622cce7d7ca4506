"""Runs the configurations of a sweep, each run in a fresh process, and stores every result at once."""

import json
import random
import shlex
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from comparison.ratios import estimate
from errors import RunError, spelled
from params import parse_argv
from params.result_flags import STDOUT
from results.document import FAILURE, SCHEMA_VERSION, Record
from results.sections import FailedRun, FailureDocument
from sweeps.configurations import Configuration, SweepPlan
from sweeps.durations import seconds_left, seconds_of
from sweeps.folder import Folder, Outcome, unfinished_name
from sweeps.limited_process import ERROR, TIMEOUT, Limits, run_process
from sweeps.progress_line import Progress
from sweeps.settings import Settings

PROGRAM = (sys.executable, str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py'))


@dataclass(frozen=True)
class Starter:
    """How processes are started: the program, its whole environment (None: that of this process), and its limits."""

    program: Sequence[str] = PROGRAM
    environment: Mapping[str, str] | None = None
    limits: Limits = field(default_factory=Limits)

    def run(
        self,
        folder: Folder,
        command: Sequence[str],
        facts: FailedRun,
        path: Path,
        *,
        is_elsewhere: bool = False,
    ) -> tuple[Outcome, float]:
        """Runs a command with --result_file to its end.

        Args:
          folder: the folder of the sweep.
          command: the words after the program.
          facts: the values of the keys command and cluster in the document of a failure.
          path: the file for its result, or for the document of its failure.
          is_elsewhere: whether the process with the result is on another host, which may have other files.

        Returns:
          The outcome, and the seconds it took.

        Raises:
          RunError: the disk is full, or fails.
        """
        unfinished = unfinished_name(path)
        unfinished.unlink(missing_ok=True)
        started_at = datetime.now(timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')
        argv = [*self.program, *command, spelled('result_file', STDOUT if is_elsewhere else unfinished)]
        try:
            log = folder.logs / f'{path.stem}.log'
            ended = run_process(argv, log, self.limits, self.environment)
            if is_elsewhere:
                _take_document(log, unfinished)
            reason = ended.reason or 'it ended with exit code 0, and left no result'
            found = folder.outcome(unfinished)
            is_whole = isinstance(found, Record) and found.is_complete == (ended.cause is None)
            if ended.cause == ERROR or not is_whole:
                # Before anything is removed: the failed run may have filled the disk itself.
                folder.check_room(reason)
            if is_whole and ended.cause in (None, ERROR):
                return folder.adopt(unfinished, path), ended.seconds
            if found and is_whole and ended.cause == TIMEOUT:
                return _keep_partial(folder, found.document, reason, path), ended.seconds
        finally:
            # Do not trust the result of a run that took too much memory, or that failed with a complete result.
            unfinished.unlink(missing_ok=True)
        document: FailureDocument = {
            **failure_document(facts, reason, ended.exit_code, started_at),
            'cause': ended.cause,
            'seconds': round(ended.seconds, 3),
        }
        return folder.write_failure(path, document), ended.seconds


def _take_document(log: Path, path: Path) -> None:
    """Writes the last document in a log to a file, if there is one."""
    lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
    if found := [line for line in lines if line.startswith('{"schema"')]:
        path.write_text(f'{found[-1]}\n', encoding='utf-8')


def _keep_partial(folder: Folder, document: Mapping[str, Any], reason: str, path: Path) -> Record:
    """Stores the partial result of a run that this process ended, with the reason, which the run did not know."""
    document = {**document, 'ended': {**document['ended'], 'reason': reason}}
    folder.write(path, json.dumps(document))
    return Record(str(path), document)


def limits_of(settings: Settings) -> Limits:
    """Returns the limits of each run of a sweep."""
    return Limits(settings.timeout_secs, settings.memory_bytes, settings.memory_limit)


def run_repeats(
    argv: Sequence[str],
    repeats: int,
    path: Path,
    on_progress: Callable[[int, Outcome], None] = lambda number, outcome: None,
    starter: Starter = Starter(),
) -> list[Outcome]:
    """Runs one configuration several times, each in a fresh process. Call it from the main thread.

    Args:
      argv: the flags of the run, of one process, without --result_file.
      path: the folder for results/repeat.1.json ... and logs/; created if missing.
      on_progress: called after each run, with its number from 1 and its outcome.

    Raises:
      UsageError: the flags are wrong; then nothing has been started.
      RunError: the folder cannot be written.
    """
    params = parse_argv(argv).params
    folder = Folder(path)
    folder.make()
    facts = facts_of(argv, params.given, f'1*{params.num_gpus or 1}')
    outcomes = []
    for number in range(1, repeats + 1):
        outcome, _ = starter.run(folder, argv, facts, folder.results / f'repeat.{number}.json')
        outcomes.append(outcome)
        on_progress(number, outcome)
    return outcomes


def take_turns(
    sides: Sequence[Sequence[str]],
    rounds: int,
    path: Path,
    on_round: Callable[[Sequence[Sequence[Record]]], bool],
    starter: Starter = Starter(),
) -> None:
    """Runs several commands in turns, each in a fresh process, in the order of order_of_round.

    Args:
      sides: the flags of each command, of one process, without --result_file.
      path: the folder for a/1.json, b/1.json ... and logs/; created if missing.
      on_round: called after each round with the results of each side so far; returns whether they are enough.

    Raises:
      RunError: a run failed, or the folder cannot be written.
    """
    folder = Folder(path)
    folder.make()
    done: list[list[Record]] = [[] for _ in sides]
    for number in range(1, rounds + 1):
        for index in order_of_round(len(sides), number, seed=1):
            name = chr(ord('a') + index)
            params = parse_argv(sides[index]).params
            facts = facts_of(sides[index], params.given, f'1*{params.num_gpus or 1}')
            target = path / name / f'{name}.{number}.json'
            target.parent.mkdir(exist_ok=True)
            outcome, _ = starter.run(folder, sides[index], facts, target)
            if not isinstance(outcome, Record) or not outcome.is_complete:
                raise RunError(f'--run={shlex.join(sides[index])}: {outcome.reason}; the results so far are in {path}')
            done[index].append(outcome)
        if on_round(done):
            return


def facts_of(argv: Sequence[str], given: Mapping[str, str], shape: object) -> FailedRun:
    """Returns the facts about the run in the document of its failure."""
    return {'command': {'argv': list(argv), 'given': dict(given)}, 'cluster': {'shape': str(shape)}}


def failure_document(facts: FailedRun, reason: str, exit_code: int | None, started_at: str) -> FailureDocument:
    """Makes the document of a run that left no result, from the facts of facts_of."""
    return {
        'schema': FAILURE,
        'schema_version': SCHEMA_VERSION,
        'id': uuid.uuid4().hex,
        **facts,
        'reason': reason,
        'exit_code': exit_code,
        'started_at': started_at,
    }


class Sweep:
    """The runs of a plan. Results that the folder already has are not measured again."""

    def __init__(self, plan: SweepPlan, folder: Folder, starter: Starter = Starter()) -> None:
        self._plan = plan
        self._folder = folder
        self._starter = starter
        # Id of the configuration -> number of the repeat -> outcome.
        self._found: dict[str, dict[int, Outcome]] = {one.id: {} for one in plan.configurations}
        self._seconds: dict[str, list[float]] = {one.id: [] for one in plan.configurations}
        for one in plan.configurations:
            for number in range(1, plan.settings.num_repeats + 1):
                if found := folder.outcome(self._path(one, number)):
                    self._keep(one, number, found, seconds_of(found))

    @property
    def outcomes(self) -> dict[str, list[Outcome]]:
        """The outcomes of each configuration so far, by the configuration's id."""
        return {id_: [found[number] for number in sorted(found)] for id_, found in self._found.items()}

    @property
    def num_done(self) -> int:
        """The number of runs that have a document."""
        return sum(map(len, self._found.values()))

    @property
    def num_left(self) -> int:
        """The most runs that are left."""
        return len(self.left())

    @property
    def seconds(self) -> Mapping[str, Sequence[float]]:
        """The seconds that the runs of each configuration took, by the configuration's id."""
        return self._seconds

    def run(self, progress: Progress) -> None:
        """Makes the runs that are left, round by round.

        Raises:
          RunError: the disk is full, or fails.
        """
        settings = self._plan.settings
        for number in range(1, settings.num_repeats + 1):
            for index in order_of_round(len(self._plan.configurations), number, settings.seed):
                one = self._plan.configurations[index]
                if number not in self._found[one.id] and self._num_left(one):
                    self._measure(one, number, progress)

    def _measure(self, one: Configuration, number: int, progress: Progress) -> None:
        repeats = self._plan.settings.num_repeats
        what = f'{one.caption} (repeat {number})' if repeats > 1 else one.caption
        progress.starting(what, seconds_left([left.id for left in self.left()], self._seconds))
        before = self._num_left(one)
        facts = facts_of(one.argv, one.given, one.shape)
        outcome, seconds = self._starter.run(
            self._folder, one.command(), facts, self._path(one, number), is_elsewhere=bool(one.launch)
        )
        self._keep(one, number, outcome, seconds)
        progress.finished(what, describe(outcome), seconds)
        progress.skipped(before - 1 - self._num_left(one))

    def left(self) -> list[Configuration]:
        """Returns the configuration of each run that may be left; some are not made if the interval becomes narrow."""
        return [one for one in self._plan.configurations for _ in range(self._num_left(one))]

    def _num_left(self, one: Configuration) -> int:
        """Returns how many runs of a configuration are left. After a failure none are."""
        settings, outcomes = self._plan.settings, [*self._found[one.id].values()]
        is_settled = settings.interval_share is not None and is_narrow(outcomes, settings.interval_share)
        if is_settled or not all(map(succeeded, outcomes)):
            return 0
        return settings.num_repeats - len(outcomes)

    def _keep(self, one: Configuration, number: int, outcome: Outcome, seconds: float | None) -> None:
        self._found[one.id][number] = outcome
        if seconds is not None:
            self._seconds[one.id].append(seconds)

    def _path(self, one: Configuration, number: int) -> Path:
        return self._folder.results / f'{one.id}.{number}.json'


def succeeded(outcome: Outcome) -> bool:
    """Whether a run left a complete result."""
    return isinstance(outcome, Record) and outcome.is_complete


def describe(outcome: Outcome) -> str:
    """Describes how a run ended: '123.4 images/sec', for an exchange alone '1.234 ms/step', or why it failed."""
    if isinstance(outcome, Record) and outcome.is_complete:
        if outcome.run.get('role') == 'exchange-only':
            return f'{1e3 * outcome.step_seconds().mean():.3f} ms/step'
        return f'{outcome.images_per_second:.1f} images/sec'
    return f'failed: {outcome.reason}'


def is_narrow(outcomes: Sequence[Outcome], share: float) -> bool:
    """Whether the rate is known to +/- this share of it; False with too few runs."""
    records = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    found = estimate(records) if len(records) > 1 else None
    return found is not None and found.plus_minus is not None and found.plus_minus <= share


def order_of_round(count: int, round_number: int, seed: int) -> list[int]:
    """Returns the indices of all configurations in the order in which one round runs them.

    The speed of a machine that warms up, or has other load, changes over minutes. If each configuration made all its
    runs in a row, this would look like a difference between configurations. So each round runs every configuration
    once, and every second round runs backwards, so that a steady drift over two rounds cancels (ABBA; Box, Hunter &
    Hunter, Statistics for Experimenters, on counterbalancing). The first round is in the order of the plan; each later
    pair of rounds is shuffled, so that no configuration always follows the same one.

    Args:
      count: the number of configurations.
      round_number: the number of the round, from 1.
      seed: the seed of the shuffled rounds.
    """
    order = list(range(count))
    pair, is_second = divmod(round_number - 1, 2)
    if pair:
        random.Random(f'{seed} {pair}').shuffle(order)
    return order[::-1] if is_second else order
