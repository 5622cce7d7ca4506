"""A progress bar on standard error, and lines printed above it."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Monitor:
    """Shows the progress of a job of `total` steps while the with block lasts."""

    def __init__(self, description: str, total: int) -> None:
        self._progress = Progress(
            TextColumn('{task.description}'),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
        )
        self._task = self._progress.add_task(description, total=total)

    def __enter__(self) -> 'Monitor':
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)

    def print_line(self, line: str) -> None:
        """Prints a line above the bar as plain text, since file names may look like markup."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)
