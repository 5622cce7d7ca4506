"""The progress of a sweep on standard error: a line for each run, and on a terminal a bar below them."""

from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from results.live import can_redraw
from sweeps.durations import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

# Rare, since drawing takes time from the cores under measurement.
_DRAWS_PER_SECOND = 1


class Progress:
    """Prints the progress of runs; a context manager.

    Args:
      stream: standard error.
      total: how many runs there are; None if unknown.
      done: how many of them were done before.
    """

    def __init__(self, stream: TextIO, total: int | None, done: int = 0) -> None:
        self._stream = stream
        self._total = total
        self._number = done
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> 'Progress':
        if can_redraw(self._stream):
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn('{task.description}'))
            console = Console(file=self._stream, markup=False, highlight=False)
            self._bar = Progress(*columns, console=console, refresh_per_second=_DRAWS_PER_SECOND, transient=True)
            self._task = self._bar.add_task('', total=self._total, completed=self._number)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def starting(self, what: str, seconds_left: float | None) -> None:
        """Shows that a run begins: its configuration, and the seconds until the end of the sweep if known."""
        self._number += 1
        left = '' if seconds_left is None else f'; about {format_seconds(seconds_left)} left'
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=self._number - 1, description=f'{what}{left}', refresh=True)
        else:
            of = '' if self._total is None else f' of {self._total}'
            self._line(f'run {self._number}{of}: {what}{left}')

    def finished(self, what: str, outcome: str, seconds: float) -> None:
        """Shows that the run has ended: how, and after how many seconds."""
        line = f'{outcome}, in {format_seconds(seconds)}'
        self._line(f'{what}: {line}' if self._bar else f'  {line}')
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=self._number)

    def skipped(self, count: int) -> None:
        """Counts runs that are no longer needed, such as repeats of a configuration with a narrow enough interval."""
        if self._total is not None:
            self._total -= count
            if self._bar and self._task is not None:
                self._bar.update(self._task, total=self._total)

    def _line(self, text: str) -> None:
        if self._bar:
            # rich's console erases the bar, prints, and draws the bar again.
            self._bar.console.print(text, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)
