"""Finds the largest batch size of each configuration that fits in memory, by short runs with several sizes."""

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from errors import UsageError, format_flag
from models.registry import MODELS
from results.document import Failure
from sweeps.configurations import Configuration, SweepPlan
from sweeps.folder import Folder, Outcome
from sweeps.limited_process import MEMORY
from sweeps.runner import Starter, Turn, contestant_of, succeeded

# The first size to try for models from a user's file.
_START_SIZE = 32
# Larger sizes are not tried.
LARGEST = 2**16


class Search:
    """The search for the batch sizes of a plan. Sizes whose results the folder already has are not tried again."""

    def __init__(self, plan: SweepPlan, folder: Folder, starter: Starter) -> None:
        self._plan = plan
        self._folder = folder
        self._starter = starter
        # The result of each configuration's largest size, or its failure, by the configuration's id.
        self.outcomes: dict[str, list[Outcome]] = {one.id: [] for one in plan.configurations}
        for one in plan.configurations:
            if found := folder.outcome(folder.results / f'{one.id}.1.json'):
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
        tries = self._earlier_tries(one)
        start = one.batch_size or _default_size(one.model)
        while size := next_size(start, {size: succeeded(tried) for size, tried in tries.items()}):
            contestant = contestant_of(one, *_length_of_try(one), format_flag('batch_size', size))
            contestant = dataclasses.replace(contestant, caption=f'{one.caption} batch_size={size}')
            tries[size], seconds = self._starter.run(self._folder, contestant, self._try_path(one, size))
            yield Turn(contestant, len(tries), tries[size], seconds)
            if not succeeded(tries[size]) and not _lacks_memory(tries[size]):
                return self._give_up(one, tries[size], f'with --batch_size={size}: {tries[size].reason}')
        largest = largest_size({size: succeeded(tried) for size, tried in tries.items()})
        if largest is None:
            return self._give_up(one, tries[1], f'not even --batch_size=1 fits: {tries[1].reason}')
        return self._folder.copy(self._try_path(one, largest), self._result_path(one))

    def _give_up(self, one: Configuration, tried: Outcome, reason: str) -> Outcome:
        failure = contestant_of(one).failure
        if isinstance(tried, Failure):
            failure = replace(tried, command=failure.command, cluster=failure.cluster, reason=reason)
        else:
            failure = replace(failure, reason=reason, exit_code=tried.ended.exit_code, started_at=tried.started_at)
        return self._folder.write_failure(self._result_path(one), failure)

    def _earlier_tries(self, one: Configuration) -> dict[int, Outcome]:
        found = {}
        for path in self._folder.tries.glob(f'{one.id}.*.json'):
            tried = self._folder.outcome(path)
            if tried and (succeeded(tried) or _lacks_memory(tried)):
                found[int(path.stem.rpartition('.')[2])] = tried
        return found

    def _try_path(self, one: Configuration, size: int) -> Path:
        return self._folder.tries / f'{one.id}.{size}.json'

    def _result_path(self, one: Configuration) -> Path:
        return self._folder.results / f'{one.id}.1.json'


def _length_of_try(one: Configuration) -> list[str]:
    """Returns the flags of a short run, unless the sweep sets its length; the first step already takes all memory."""
    wanted = {'num_warmup_batches': 1}
    if not {'num_epochs', 'target_seconds'} & {*one.given}:
        wanted['num_batches'] = 3
    return [format_flag(name, value) for name, value in wanted.items() if name not in one.given]


def _lacks_memory(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.cause == MEMORY


def _default_size(model: str) -> int:
    try:
        return MODELS.find_model(model).batch_size
    except UsageError:
        return _START_SIZE


def check_search(plan: SweepPlan, *, has_gpu: bool) -> None:
    """Raises UsageError if nothing would end the search: on a CPU, runs take memory until the machine fails."""
    for one in plan.configurations:
        is_on_cpu = one.given.get('device') == format_flag('device', 'cpu') or not has_gpu
        if plan.settings.memory_limit is None and is_on_cpu:
            raise UsageError(
                f'--find_batch_size: {one.caption} runs on the CPU, whose memory has no limit of its own; '
                'add --memory_limit=8GiB or another size'
            )


def next_size(start: int, fits: Mapping[int, bool]) -> int | None:
    """Returns the batch size to try next: doubled until one does not fit, or halved until one fits, then bisected.

    start is the first size; fits has those that were tried. None if the largest one is known, or not even 1 fits.
    """
    if not fits:
        return start
    too_large = min((size for size, fitted in fits.items() if not fitted), default=None)
    largest = largest_size(fits)
    if too_large is None:
        assert largest is not None
        return min(2 * largest, LARGEST) if largest < LARGEST else None
    if largest is None:
        return too_large // 2 or None
    return (largest + too_large) // 2 if too_large - largest > 1 else None


def largest_size(fits: Mapping[int, bool]) -> int | None:
    too_large = min((size for size, fitted in fits.items() if not fitted), default=None)
    fitting = [size for size, fitted in fits.items() if fitted and (too_large is None or size < too_large)]
    return max(fitting, default=None)
