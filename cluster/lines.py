"""What the launcher prints: the result, its own messages, and lines of the processes."""

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
# How many lines of each process are kept for the case that one fails.
_MAX_HELD = 40
_WARNING, _ERROR = format_warning(''), format_error('')
# A line of TensorFlow's native code: severity, date, time.
_NATIVE = re.compile(r'[IWEF]\d{4} ')
_STEPS = re.compile(r'(Step|\d+)\t')


class Lines:
    """Writes whole lines, from any thread. Stops writing at the first error, which it keeps.

    Args:
      out: receives the result. err: receives all other lines; of a process, with its name in front.
      names: the processes.
      quiet: of the processes, shows warnings, errors and the summary of the chief only, and keeps the last other lines
        for show_held(). On a terminal, a live line shows what the process with the result does.
    """

    def __init__(self, out: TextIO, err: TextIO, names: Sequence[str], *, quiet: bool = False) -> None:
        self.error: OSError | ValueError | None = None
        self._out = out
        self._err = err
        self._prefixes = _prefixes(names, err)
        self._lock = threading.Lock()
        self._held: dict[str, deque[str]] = {name: deque(maxlen=_MAX_HELD) for name in names}
        self._is_quiet = quiet
        # Each warning, and who gave it first.
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
            self._held[name].append(line)
            if is_chief and not _NATIVE.match(line):
                self.phase(line)
        else:
            self._write(self._err, self._prefixes[name] + line)

    def _is_shown(self, name: str, line: str) -> bool:
        # What all processes warn about is shown once.
        is_warning = line.startswith(_WARNING) and self._warned.setdefault(line, name) == name
        return is_warning or line.startswith(_ERROR)

    def show_held(self, names: Iterable[str]) -> None:
        """Writes the lines of these processes that were kept, and forgets them."""
        for name in names:
            held = self._held[name]
            while held:
                self._write(self._err, self._prefixes[name] + held.popleft())

    def message(self, line: str) -> None:
        """Writes a line of the launcher."""
        self._write(self._err, line)

    def detail(self, line: str) -> None:
        """Writes a line of the launcher unless quiet."""
        if not self._is_quiet:
            self.message(line)

    def phase(self, text: str) -> None:
        """Shows in the live line, if there is one, what is going on."""
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
    """The prefix of the lines of each process, all of the same width; in colour on a terminal."""
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
