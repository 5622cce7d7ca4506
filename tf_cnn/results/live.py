"""One line on a terminal with the progress of a run, redrawn a few times a second until it is
erased.
"""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

_REDRAW_SECS = 0.25
_END_SECS = 1.0
_ERASE = '\r\x1b[K'
# Values of TERM for terminals, real or not, that do not understand control sequences.
_PLAIN_TERMINALS = ('', 'dumb', 'unknown')


def can_redraw(stream: TextIO) -> bool:
    """Returns whether the stream is a terminal that can overwrite a line."""
    with contextlib.suppress(ValueError, OSError):
        return stream.isatty() and os.environ.get('TERM', '') not in _PLAIN_TERMINALS
    return False


class LiveLine:
    """The live line. Without a terminal it does nothing.

    A thread draws it; phase() and steps() only store what to draw. The cursor stays visible at the
    start of the line, so a killed process leaves nothing to restore, and the next line overwrites
    what it left.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        # The current text, at any width.
        self.text = ''
        self._stream = stream
        self._clock = clock
        self.can_redraw = can_redraw(stream)
        # The phase, number of steps and time of its first report, to estimate the remaining time.
        self._first = ('', 0, 0.0)
        # The text on the terminal. The lock guards it, and writing to the terminal.
        self._visible_text = ''
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def phase(self, text: str) -> None:
        """Shows the current activity; line breaks and control characters become spaces."""
        self.text = ''.join(character if character.isprintable() else ' ' for character in text)
        if self._thread or not self.can_redraw:
            return
        with self._lock:
            if self._thread is None:
                self._is_closed = threading.Event()
                self._thread = threading.Thread(
                    target=self._redraw, args=(self._is_closed,), daemon=True
                )
                self._thread.start()
                # In case an exception prevents the caller from closing the line.
                atexit.register(self.close)

    def steps(
        self, phase: str, num_done: int, total: int, rate_text: str = '', until: str = ''
    ) -> None:
        """Shows the progress of a phase: 'step 57 of 100, 812.3 +/- 4.1 images/sec, 0:12 left'.

        until: ends the line, such as ' until the timed steps'.
        """
        now = self._clock()
        if phase != self._first[0] or num_done < self._first[1]:
            self._first = phase, num_done, now
        _, first, began = self._first
        texts = [f'{phase} {num_done} of {total}', rate_text]
        if num_done > first:
            seconds_left = (now - began) / (num_done - first) * (total - num_done)
            texts.append(f'{format_duration(seconds_left)} left{until}')
        self.phase(', '.join(filter(None, texts)))

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Erases the line while the block writes to its terminal; the next redraw shows it
        again.
        """
        with self._lock:
            self._erase()
            yield

    def close(self) -> None:
        """Erases the line. The next phase() or steps() shows it again."""
        if thread := self._thread:
            self._thread = None
            self._is_closed.set()
            # A terminal that the user has stopped must not prevent the process from ending.
            thread.join(_END_SECS)
            atexit.unregister(self.close)
        with self._lock:
            self._erase()
        self.text = ''

    def _redraw(self, is_closed: threading.Event) -> None:
        while True:
            with self._lock, contextlib.suppress(OSError, ValueError):
                if not self._is_in_background():
                    # Writing the last column may move the cursor to the next line.
                    line = self.text[
                        : (os.get_terminal_size(self._stream.fileno()).columns or 80) - 1
                    ]
                    if line != self._visible_text:
                        self._visible_text = line
                        self._write(f'\r{line}\x1b[K\r')
            if is_closed.wait(_REDRAW_SECS):
                return

    def _erase(self) -> None:
        if self._visible_text:
            self._visible_text = ''
            with contextlib.suppress(OSError, ValueError):
                self._write(_ERASE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _is_in_background(self) -> bool:
        """Whether the user has sent this program to the background, so that another one uses the
        terminal.
        """
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(self._stream.fileno()) != os.getpgrp()
        # The stream is not this process's controlling terminal.
        return False


def format_duration(seconds: float) -> str:
    """Formats minutes and seconds, 0:12, with hours if there are any, 1:02:03."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{secs:02}' if hours else f'{minutes}:{secs:02}'
