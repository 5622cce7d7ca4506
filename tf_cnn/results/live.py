"""One line on a terminal with the progress of a run, overwritten until it is erased."""

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

# Values of TERM for terminals, real or not, that do not understand control sequences.
_PLAIN_TERMINALS = ('', 'dumb', 'unknown')


def can_redraw(stream: TextIO) -> bool:
    """Returns whether the stream is a terminal that can overwrite a line."""
    with contextlib.suppress(ValueError, OSError):
        return stream.isatty() and os.environ.get('TERM', '') not in _PLAIN_TERMINALS
    return False


class LiveLine:
    """The live line. Without a terminal it does nothing.

    The cursor stays visible at the start of the line, so a killed process leaves nothing to
    restore, and the next line overwrites what it left. The Live of rich hides the cursor, writes
    from the background too, and takes a millisecond of the measured time for each drawing.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        # The current text, at any width.
        self.text = ''
        self.can_redraw = can_redraw(stream)
        self._stream = stream
        self._clock = clock
        # The phase, number of steps and time of its first report, to estimate the remaining time.
        self._first = ('', 0, 0.0)
        # Several threads print.
        self._lock = threading.RLock()

    def phase(self, text: str) -> None:
        """Shows the current activity; line breaks and control characters become spaces."""
        self.text = ''.join(character if character.isprintable() else ' ' for character in text)
        self._draw(self.text)

    def steps(
        self, phase: str, num_done: int, total: int, rate_text: str = '', until: str = ''
    ) -> None:
        """Shows the progress of a phase: 'step 57 of 100, 812.3 +/- 4.1 images/sec, 0:00:12 left'.

        until: ends the line, such as ' until the timed steps'.
        """
        now = self._clock()
        if phase != self._first[0] or num_done < self._first[1]:
            self._first = phase, num_done, now
        _, first, began = self._first
        texts = [f'{phase} {num_done} of {total}', rate_text]
        if num_done > first:
            seconds_left = (now - began) / (num_done - first) * (total - num_done)
            time_left = datetime.timedelta(seconds=round(seconds_left))
            texts.append(f'{time_left} left{until}')
        self.phase(', '.join(filter(None, texts)))

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Erases the line while the block writes to its terminal, then draws it again."""
        with self._lock:
            self._draw('')
            yield
            self._draw(self.text)

    def close(self) -> None:
        """Erases the line. The next phase() or steps() shows it again."""
        with self._lock:
            self._draw('')
            self.text = ''

    def _draw(self, text: str) -> None:
        if not self.can_redraw or not self.text:
            return
        from rich.cells import set_cell_size

        with self._lock, contextlib.suppress(OSError, ValueError):
            terminal = self._stream.fileno()
            with contextlib.suppress(OSError):
                if os.tcgetpgrp(terminal) != os.getpgrp():
                    # In the background: another program uses the terminal.
                    return
            # Writing the last column may move the cursor to the next line.
            width = (os.get_terminal_size(terminal).columns or 80) - 1
            self._stream.write(f'\r{set_cell_size(text, width).rstrip()}\x1b[K\r')
            self._stream.flush()
