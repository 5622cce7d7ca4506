"""Runs the program and others: in processes of their own, on terminals, or in this process."""

import contextlib
import io
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import pyte

import tf_cnn_benchmarks

ROOT = Path(tf_cnn_benchmarks.__file__).parent
PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))
# Of one process on a loaded machine.
DEADLINE_SECS = 120.0


def environment(**changes: str | None) -> dict[str, str]:
    """Returns what a process inherits, with these changes, and without variables that are None.

    It has no scikit-learn, like users. Where it is there, Keras imports it, and SciPy with it,
    which takes a fifth of the start of each process.
    """
    folders = [str(Path(__file__).parent / 'without_sklearn'), os.environ.get('PYTHONPATH')]
    merged = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, folders)), **changes}
    return {name: value for name, value in merged.items() if value is not None}


class Finished(NamedTuple):
    """The exit code of a process, and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str


def run_process(
    command: Sequence[object],
    cwd: Path | None = None,
    deadline_secs: float = DEADLINE_SECS,
    /,
    **environ: str | None,
) -> Finished:
    """Runs a command to its end. `environ` changes variables as in environment()."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        errors='backslashreplace',
        cwd=cwd,
        timeout=deadline_secs,
        stdin=subprocess.DEVNULL,
        env=environment(**environ),
    )
    assert 'Traceback' not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


def run(flags: str | Sequence[str], cwd: Path | None = None, **environ: str | None) -> Finished:
    """Runs the program in a process of its own; `cluster --workers=2 -- FLAGS` as a cluster."""
    words = shlex.split(flags) if isinstance(flags, str) else flags
    return run_process([*PROGRAM, *words], cwd, **environ)


def run_python(code: str, *words: str, **environ: str | None) -> Finished:
    """Runs Python code that finds the modules of the program, in a process that ends with 0."""
    done = run_process([sys.executable, '-c', code, *words], ROOT, **environ)
    assert done.code == 0, done.err
    return done


def run_main(*argv: object, code: int = 0) -> tuple[str, str]:
    """Runs the program in this process, which must end with this exit code; returns its standard
    output and its standard error.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exit_code = tf_cnn_benchmarks.main([*map(str, argv)])
    assert exit_code == code, err.getvalue()
    assert 'Traceback' not in err.getvalue() or '--verbose' in argv, err.getvalue()
    return out.getvalue(), err.getvalue()


def catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler, as the program has once it runs: the masks of
    proc_pid_status(5).
    """
    caught = re.search(r'SigCgt:\s*(\w+)', Path(f'/proc/{pid}/status').read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


# ---- terminals -----------------------------------------------------------------------------------

_MAX_LINES = 200


class Terminal:
    """The controlling terminal of a process, with its standard streams; Ctrl-C reaches the process.

    `written` is everything that the process has written so far, with control sequences.
    """

    def __init__(self, command: Sequence[str], *, columns: int = 120, **environ: str) -> None:
        self.written = b''
        # The position from which read() searches next.
        self._start = 0
        self._columns = columns
        # While this process has both sides open, the last output of the other process is not lost.
        self._own, self._other = pty.openpty()
        termios.tcsetwinsize(self._other, (_MAX_LINES, columns))
        attributes = termios.tcgetattr(self._other)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._other, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            ['setsid', '--ctty', *command],
            stdin=self._other,
            stdout=self._other,
            stderr=self._other,
            cwd=ROOT,
            env=environment(**{'TERM': 'xterm', **environ}),
        )

    def read(self, until: str | None) -> None:
        """Reads until the process has written this text, after the text awaited before; None: until
        it has ended.
        """
        deadline = time.monotonic() + DEADLINE_SECS
        while until is None or (found := self.written.find(until.encode(), self._start)) < 0:
            if select.select([self._own], [], [], 0.02)[0]:
                self.written += os.read(self._own, 65536)
            elif until is None and self.process.poll() is not None:
                return
            else:
                assert self.process.poll() is None, f'it ended without {until}: {self.written!r}'
                assert time.monotonic() < deadline, f'it does not write {until}: {self.written!r}'
        self._start = found + len(until)

    def type(self, text: str) -> None:
        """Types keys; '\\x03' is Ctrl-C."""
        os.write(self._own, text.encode())

    @property
    def screen(self) -> pyte.Screen:
        screen = pyte.Screen(self._columns, _MAX_LINES)
        pyte.ByteStream(screen).feed(self.written)
        return screen

    @property
    def lines(self) -> list[str]:
        """Returns the lines on the screen, up to the last one that is not empty."""
        return '\n'.join(line.rstrip() for line in self.screen.display).rstrip('\n').split('\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)
        os.close(self._other)
