"""Runs programs on terminals, as users do."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pyte

import tf_cnn_benchmarks
from tests.support.outputs import check_line

ROOT = Path(tf_cnn_benchmarks.__file__).parent


def check_error(line: str, *facts: object) -> None:
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: error: ')


def check_warning(line: str, *facts: object) -> None:
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: warning: ')


# ---- terminals -----------------------------------------------------------------------------------
# Runs processes on a pseudo-terminal, and says what its user sees.

DEADLINE_SECS = 120.0
_MAX_LINES = 200


class Terminal:
    """The controlling terminal of a process, with its standard streams; Ctrl-C reaches the process.

    `written` is everything that the process has written so far, with control sequences.
    """

    def __init__(
        self, command: Sequence[str], *, columns: int, cwd: Path | None, environ: dict[str, str]
    ) -> None:
        self.written = b''
        # The position from which read() searches next.
        self._start = 0
        self._screen = pyte.Screen(columns, _MAX_LINES)
        self._interpreter = pyte.ByteStream(self._screen)
        # While this process has both sides open, the last output of the other process is not lost.
        self._own, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack('4H', _MAX_LINES, columns, 0, 0))
        attributes = termios.tcgetattr(self._other)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._other, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            # The first terminal that a session leader opens becomes its controlling terminal.
            ['sh', '-c', 'exec "$0" "$@" <"$TERMINAL" >"$TERMINAL" 2>&1', *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, 'TERM': 'xterm', 'TERMINAL': os.ttyname(self._other), **environ},
        )

    def read(self, until: str | None) -> None:
        """Reads until the process has written this text, after the text awaited before; None: until
        it has ended.
        """
        deadline = time.monotonic() + DEADLINE_SECS
        while until is None or (found := self.written.find(until.encode(), self._start)) < 0:
            if not select.select([self._own], [], [], 0.02)[0]:
                if until is None and self.process.poll() is not None:
                    return
                assert self.process.poll() is None, f'it ended without {until}: {self.written!r}'
                assert time.monotonic() < deadline, f'it does not write {until}: {self.written!r}'
                continue
            data = os.read(self._own, 65536)
            self.written += data
            self._interpreter.feed(data)
        self._start = found + len(until)

    def type(self, text: str) -> None:
        """Types keys; '\\x03' is Ctrl-C."""
        os.write(self._own, text.encode())

    @property
    def lines(self) -> list[str]:
        """Returns the lines on the screen, up to the last one that is not empty."""
        return '\n'.join(line.rstrip() for line in self._screen.display).rstrip('\n').split('\n')

    @property
    def column(self) -> int:
        return int(self._screen.cursor.x)

    @property
    def is_cursor_visible(self) -> bool:
        return not self._screen.cursor.hidden

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)
        os.close(self._other)


def terminal(
    command: Sequence[str], *, columns: int = 120, cwd: Path | None = None, **environ: str
) -> 'contextlib.closing[Terminal]':
    """Runs a command on a terminal; kills it after the block if it still runs."""
    return contextlib.closing(Terminal(command, columns=columns, cwd=cwd, environ=environ))
