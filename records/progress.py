"""A progress bar on standard error, and lines printed above it."""

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Monitor(Progress):
    """Shows the progress of a job of `total` steps while the with block lasts."""

    def __init__(self, description: str, total: int, *, of_bytes: bool = False) -> None:
        done = DownloadColumn() if of_bytes else MofNCompleteColumn()
        columns = (BarColumn(), done, TimeElapsedColumn(), TimeRemainingColumn())
        super().__init__(TextColumn('{task.description}'), *columns, console=Console(file=sys.stderr))
        self._job = self.add_task(description, total=total)

    def count(self, steps: int = 1) -> None:
        self.advance(self._job, steps)

    def print_line(self, line: str) -> None:
        """Prints a line above the bar as plain text, since file names may look like markup."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)
