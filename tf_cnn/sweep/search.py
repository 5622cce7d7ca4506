"""--find_batch_size: finds the largest batch size of each configuration that fits in memory."""

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from tf_cnn.lab.folder import Folder, Outcome
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.results.document import Failure, Result
from tf_cnn.sweep.configurations import Configuration, SweepPlan
from tf_cnn.sweep.runner import FinishedRun, Runner, command_of_configuration, succeeded
from tf_cnn.system.errors import UsageError, format_flag
from tf_cnn.system.limited_process import MEMORY

# The first size, unless the configuration has a --batch_size.
_START_SIZE = 32
MAX_SIZE = 2**16


class BatchSizeSearch:
    """Searches the largest batch sizes of a plan with short runs.

    Does not repeat the sizes that already have a result in the folder.
    """

    def __init__(self, plan: SweepPlan, folder: Folder, runner: Runner) -> None:
        self._plan = plan
        self._folder = folder
        self._runner = runner
        # Id of the configuration -> the result of its largest size, or its failure.
        self.outcomes: dict[str, list[Outcome]] = {
            configuration.id: [] for configuration in plan.configurations
        }
        for configuration in plan.configurations:
            if outcome := folder.read_outcome(self._result_path(configuration)):
                self.outcomes[configuration.id].append(outcome)

    @property
    def num_done(self) -> int:
        return sum(map(len, self.outcomes.values()))

    @property
    def num_remaining(self) -> int:
        return len(self._plan.configurations) - self.num_done

    # A size that ended may be the last one of its configuration, or not.
    next_caption = ''

    def run(self) -> Iterator[FinishedRun]:
        self._folder.make_subfolders()
        self._folder.tries.mkdir(exist_ok=True)
        for configuration in self._plan.configurations:
            if not self.outcomes[configuration.id]:
                self.outcomes[configuration.id].append(
                    (yield from self._find_largest_size(configuration))
                )

    def _find_largest_size(
        self, configuration: Configuration
    ) -> Generator[FinishedRun, None, Outcome]:
        start = parse_argv(configuration.argv).params.run.batch_size or _START_SIZE
        fits: dict[int, bool] = {}
        while size := next_size(start, fits):
            path = self._folder.tries / f'{configuration.id}.{size}.json'
            outcome = self._folder.read_outcome(path)
            if not outcome or not (succeeded(outcome) or _ran_out_of_memory(outcome)):
                command = command_of_configuration(_set_batch_size(configuration, size))
                outcome, seconds = self._runner.run(self._folder, command, path)
                yield FinishedRun(command, 1, outcome, seconds)
            fits[size] = succeeded(outcome)
            if not fits[size] and (size == 1 or not _ran_out_of_memory(outcome)):
                exit_code = (
                    outcome.exit_status.exit_code
                    if isinstance(outcome, Result)
                    else outcome.exit_code
                )
                failure = replace(
                    command_of_configuration(configuration).failure,
                    reason=f'with --batch_size={size}: {outcome.reason}',
                    exit_code=exit_code,
                    started_at=outcome.started_at,
                )
                return self._folder.write_failure(self._result_path(configuration), failure)
        largest = max(size for size, fitted in fits.items() if fitted)
        return self._folder.copy(
            self._folder.tries / f'{configuration.id}.{largest}.json',
            self._result_path(configuration),
        )

    def _result_path(self, configuration: Configuration) -> Path:
        return self._folder.results / f'{configuration.id}.1.json'


def _set_batch_size(configuration: Configuration, size: int) -> Configuration:
    """Returns the configuration with a batch size and, unless it has a length, a short run."""
    extra_flags = [format_flag('batch_size', size)]
    if not {'num_batches', 'num_epochs', 'target_seconds'} & configuration.given.keys():
        # The first step already allocates all the memory.
        extra_flags += ['--num_warmup_batches=1', '--num_batches=3']
    argv = (*configuration.argv, *extra_flags)
    return dataclasses.replace(
        configuration,
        argv=argv,
        given=dict(parse_argv(argv).params.given_flags),
        varied={**configuration.varied, 'batch_size': str(size)},
    )


def _ran_out_of_memory(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.cause == MEMORY


def check_search(plan: SweepPlan, *, has_gpu: bool, has_limit: bool) -> None:
    """Raises UsageError if the sweep varies the batch size, or if nothing limits the memory.

    On a CPU, runs take memory until the machine fails, unless a container has a limit (has_limit).
    """
    if 'batch_size' in plan.columns or plan.settings.repeats > 1:
        raise UsageError(
            '--find_batch_size: it runs each size once; remove --repeats and the values of '
            'batch_size'
        )
    for configuration in plan.configurations:
        if not has_limit and (
            not has_gpu or parse_argv(configuration.argv).params.devices.device == 'cpu'
        ):
            raise UsageError(
                f'--find_batch_size: {configuration.caption} runs on the CPU, where nothing '
                'limits the memory; use a GPU, or a container with a limit (docker run --memory=8g)'
            )


def next_size(start: int, fits: Mapping[int, bool]) -> int | None:
    """Returns the batch size to try next, or None if the search has ended.

    Doubles the size until one does not fit, or halves it until one fits; then bisects. The search
    ends when the largest size is known, or when not even 1 fits.

    Args:
      start: the first size.
      fits: the sizes tried so far, and whether each fits.
    """
    largest = max((size for size, fitted in fits.items() if fitted), default=0)
    too_large = min((size for size, fitted in fits.items() if not fitted), default=None)
    if too_large is None:
        return min(2 * largest, MAX_SIZE) or start if largest < MAX_SIZE else None
    return (largest + too_large) // 2 if too_large - largest > 1 else None
