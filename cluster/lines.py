"""Prints the output of the launcher: the result, its own messages, and lines of the processes."""

import contextlib
import itertools
import re
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TextIO

from errors import format_error, format_warning
from results.live import LiveLine
from results.summary import is_summary

# Without red, which looks like an error.
_COLOURS = ('cyan', 'green', 'magenta', 'yellow', 'blue')
# How many hidden lines of each process are kept, to be shown if one fails.
_MAX_KEPT = 40
_WARNING, _ERROR = format_warning(''), format_error('')
# A line of TensorFlow's native code: severity, date, time.
_NATIVE = re.compile(r'[IWEF]\d{4} ')
_STEPS = re.compile(r'(Step|\d+)\t')


class Lines:
    """Writes whole lines, from any thread. Stops writing at the first error.

    Args:
      out: receives the result.
      err: receives all other lines; those of a process follow its name.
      names: the names of the processes.
      quiet: whether to show only warnings, errors and the summary of the chief, and to keep the last other lines for
        show_kept(). On a terminal, a live line then shows what the process with the result does.

    Attributes:
      error: the first error of a write; None if there was none.
    """

    def __init__(self, out: TextIO, err: TextIO, names: Sequence[str], *, quiet: bool = False) -> None:
        self.error: OSError | ValueError | None = None
        self._out = out
        self._err = err
        self._prefixes = _prefixes(names, err)
        self._lock = threading.Lock()
        self._kept: dict[str, deque[str]] = {name: deque(maxlen=_MAX_KEPT) for name in names}
        self._is_quiet = quiet
        # The process that first printed each warning.
        self._warned: dict[str, str] = {}
        self._live = LiveLine(err) if quiet else None

    def result(self, line: str) -> None:
        """Writes a line of the result."""
        self._write(self._out, line)
        if _STEPS.match(line):
            self.phase('Running the timed steps')

    def of_process(self, name: str, line: str, *, is_chief: bool = False) -> None:
        """Writes or keeps another line of a process.

        Args:
          is_chief: whether it is the process with the result.
        """
        if self._is_quiet and not self._is_shown(name, line) and not (is_chief and is_summary(line)):
            self._kept[name].append(line)
            if is_chief and not _NATIVE.match(line):
                self.phase(line)
        else:
            self._write(self._err, self._prefixes[name] + line)

    def _is_shown(self, name: str, line: str) -> bool:
        # A warning of several processes is shown once.
        is_warning = line.startswith(_WARNING) and self._warned.setdefault(line, name) == name
        return is_warning or line.startswith(_ERROR)

    def show_kept(self, names: Iterable[str]) -> None:
        """Writes the lines of these processes that were kept, and forgets them."""
        for name in names:
            lines = self._kept[name]
            while lines:
                self._write(self._err, self._prefixes[name] + lines.popleft())

    def message(self, line: str) -> None:
        """Writes a line of the launcher."""
        self._write(self._err, line)

    def detail(self, line: str) -> None:
        """Writes a line of the launcher unless quiet."""
        if not self._is_quiet:
            self.message(line)

    def phase(self, text: str) -> None:
        """Shows the current phase in the live line, if there is one."""
        if self._live:
            self._live.phase(text)

    def close(self) -> None:
        """Erases the live line."""
        if self._live:
            self._live.close()

    def _write(self, stream: TextIO, line: str) -> None:
        with self._lock, self._live.hidden() if self._live else contextlib.nullcontext():
            if self.error:
                return
            try:
                stream.write(f'{line}\n')
                stream.flush()
            except (OSError, ValueError) as error:  # ValueError: the stream's encoding lacks a character
                self.error = error


def _prefixes(names: Sequence[str], stream: TextIO) -> dict[str, str]:
    """Returns the prefix of each process's lines, all of the same width; in colour on a terminal."""
    width = max(map(len, names), default=0)
    prefixes = {name: f'{name:<{width}} | ' for name in names}
    if stream.isatty():
        # Rich knows which colours the terminal has, and whether its user wants any.
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream)
        for (name, prefix), colour in zip(prefixes.items(), itertools.cycle(_COLOURS), strict=False):
            with console.capture() as capture:
                console.print(Text(prefix, colour), end='', soft_wrap=True)
            prefixes[name] = capture.get()
    return prefixes
