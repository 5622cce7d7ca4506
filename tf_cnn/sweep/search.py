"""Finds the largest batch size of each configuration that fits in memory, by short runs with
several sizes.
"""

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from tf_cnn.params import parse_argv
from tf_cnn.results.document import Failure
from tf_cnn.sweep.configurations import Configuration, SweepPlan
from tf_cnn.sweep.folder import Folder, Outcome
from tf_cnn.sweep.runner import Starter, Turn, contestant_of, succeeded
from tf_cnn.system.errors import UsageError, format_flag
from tf_cnn.system.limited_process import MEMORY

# The first size to try, unless the sweep gives one.
_START_SIZE = 32
# Larger sizes are not tried.
LARGEST = 2**16


class Search:
    """The search for the batch sizes of a plan. Sizes whose results the folder already has are not
    tried again.
    """

    def __init__(self, plan: SweepPlan, folder: Folder, starter: Starter) -> None:
        self._plan = plan
        self._folder = folder
        self._starter = starter
        # The result of each configuration's largest size, or its failure, by the configuration's
        # id.
        self.outcomes: dict[str, list[Outcome]] = {one.id: [] for one in plan.configurations}
        for one in plan.configurations:
            if found := folder.outcome(self._result_path(one)):
                self.outcomes[one.id].append(found)

    @property
    def num_done(self) -> int:
        return sum(map(len, self.outcomes.values()))

    @property
    def num_left(self) -> int:
        return len(self._plan.configurations) - self.num_done

    def run(self) -> Iterator[Turn]:
        self._folder.make()
        self._folder.tries.mkdir(exist_ok=True)
        for one in self._plan.configurations:
            if not self.outcomes[one.id]:
                self.outcomes[one.id].append((yield from self._search(one)))

    def _search(self, one: Configuration) -> Generator[Turn, None, Outcome]:
        start, fits = parse_argv(one.argv).params.batch_size or _START_SIZE, dict[int, bool]()
        while size := next_size(start, fits):
            path = self._folder.tries / f'{one.id}.{size}.json'
            tried = self._folder.outcome(path)
            if not tried or not (succeeded(tried) or _lacks_memory(tried)):
                contestant = contestant_of(_with_size(one, size))
                tried, seconds = self._starter.run(self._folder, contestant, path)
                yield Turn(contestant, 1, tried, seconds)
            fits[size] = succeeded(tried)
            if not fits[size] and (size == 1 or not _lacks_memory(tried)):
                ended = tried.exit_code if isinstance(tried, Failure) else tried.ended.exit_code
                reason, failure = (
                    f'with --batch_size={size}: {tried.reason}',
                    contestant_of(one).failure,
                )
                failure = replace(
                    failure, reason=reason, exit_code=ended, started_at=tried.started_at
                )
                return self._folder.write_failure(self._result_path(one), failure)
        largest = max(size for size, fitted in fits.items() if fitted)
        return self._folder.copy(
            self._folder.tries / f'{one.id}.{largest}.json', self._result_path(one)
        )

    def _result_path(self, one: Configuration) -> Path:
        return self._folder.results / f'{one.id}.1.json'


def _with_size(one: Configuration, size: int) -> Configuration:
    """Returns a configuration with a batch size; its run is short, unless the sweep sets its
    length.
    """
    more = [format_flag('batch_size', size)]
    if not {'num_batches', 'num_epochs', 'target_seconds'} & one.given.keys():
        # The first step already takes all memory.
        more += ['--num_warmup_batches=1', '--num_batches=3']
    argv, varied = (*one.argv, *more), {**one.varied, 'batch_size': str(size)}
    return dataclasses.replace(
        one, argv=argv, given=dict(parse_argv(argv).params.given), varied=varied
    )


def _lacks_memory(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.cause == MEMORY


def check_search(plan: SweepPlan, *, has_gpu: bool, has_limit: bool) -> None:
    """Raises UsageError if the sweep sets what the search finds, or nothing would end it.

    On a CPU, runs take memory until the machine fails, unless a container has_limit.
    """
    if 'batch_size' in plan.columns or plan.settings.repeats > 1:
        raise UsageError(
            '--find_batch_size: it tries each size once; leave --repeats and the values of '
            'batch_size out'
        )
    for one in plan.configurations:
        if not has_limit and (not has_gpu or parse_argv(one.argv).params.device == 'cpu'):
            raise UsageError(
                f'--find_batch_size: {one.caption} runs on the CPU, whose memory has no limit of '
                'its own; run it on a GPU, or in a container with a limit (docker run --memory=8g)'
            )


def next_size(start: int, fits: Mapping[int, bool]) -> int | None:
    """Returns the batch size to try next: doubled until one does not fit, or halved until one fits,
    then bisected.

    start is the first size; fits has those that were tried. None if the largest one is known, or
    not even 1 fits.
    """
    largest = max((size for size, fitted in fits.items() if fitted), default=0)
    too_large = min((size for size, fitted in fits.items() if not fitted), default=None)
    if too_large is None:
        return min(2 * largest, LARGEST) or start if largest < LARGEST else None
    return (largest + too_large) // 2 if too_large - largest > 1 else None
