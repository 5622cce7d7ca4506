"""Signals that ask this process to stop. A thread stores them, and each phase of a run checks them.

Native code that calls Python may swallow an exception of a signal handler. So handlers raise
nothing. Python also writes the number of each signal to a pipe, at once, and the thread reads it.
SIGNALS.check() raises the first signal, and phases call that wherever they can stop. If no phase
checks in time, or at a second signal, another thread stops the process.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

# Batch systems send the last four before they kill a process.
STOP_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
    signal.SIGALRM,
)
# `timeout` sends its signal twice, and a signal from a terminal may arrive by two ways. Signals
# within this time are one request.
_SAME_SECS = 0.2
# How long phases have to check before the thread stops the process, and how often it looks.
GRACE_SECS = 1.5
_POLL_SECS = 0.05
# How long a handler waits for the thread.
_STORED_SECS = 1.0


class Stopped(KeyboardInterrupt):
    """A signal has asked this process to stop. exit_code is 128 + its number, as in shells."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        how = 'interrupted' if number == signal.SIGINT else 'stopped'
        self.reason = f'{how} by {signal.Signals(number).name}'


class Signals:
    """The signals that this process has received. SIGNALS is the only instance.

    Methods that install handlers do nothing outside the main thread. They keep handlers that the
    user installed, and ignored signals such as SIGHUP under nohup.
    """

    def __init__(self) -> None:
        self._reset()
        # Held by the thread that exits the process; then check() does not return.
        self._lock = threading.RLock()
        self._is_command = self._ends_at_once = False
        self._wakeup_fd, self._previous_wakeup_fd, self._thread = -1, -1, threading.Thread()
        self._on_signal: Callable[[Stopped, int], object] = lambda stop, count: None
        self._finish: Callable[[Stopped], object] | None = None
        self._grace: Callable[[int], float] = lambda count: GRACE_SECS

    def _reset(self) -> None:
        # The number of each signal, and how many of them check() has raised.
        self._numbers: list[int] = []
        self._num_answered = 0
        self._has_stored = threading.Event()
        # The (read, write) ends of the pipe that wakes wait(), while handlers are installed.
        self._wake_pipe: tuple[int, ...] = ()

    # ---- for phases ------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of signals so far; a signal that arrives twice at once counts once."""
        return len(self._numbers)

    @property
    def received(self) -> Stopped | None:
        """The first signal, or None."""
        return Stopped(self._numbers[0]) if self._numbers else None

    def check(self) -> None:
        """Raises Stopped if a signal has arrived since the last Stopped."""
        if stop := self.take_stop():
            raise stop

    def take_stop(self) -> Stopped | None:
        """Returns the Stopped that check() would raise, or None."""
        with self._lock:
            count = self.count
            stop = self.received if count > self._num_answered else None
            self._num_answered = count
        return stop

    def wait(self, secs: float | None, *descriptors: int) -> list[int]:
        """Waits until a descriptor can be read, at most this long; returns those that can.

        Raises Stopped like check(). For the main thread.
        """
        deadline = None if secs is None else time.monotonic() + secs
        while True:
            self.check()
            remaining_secs = None if deadline is None else max(0.0, deadline - time.monotonic())
            # Unlike select(2), poll(2) takes any number of descriptors.
            poll = select.poll()
            for number in (*descriptors, *self._wake_pipe[:1]):
                poll.register(number, select.POLLIN)
            events = poll.poll(None if remaining_secs is None else 1e3 * remaining_secs)
            readable = [number for number, _ in events]
            if not readable or {*readable} & {*descriptors}:
                return [number for number in readable if number in descriptors]
            os.read(readable[0], 64)

    # ---- for code that runs phases ---------------------------------------------------------------

    def exit_on_signal(self) -> None:
        """Makes signals exit this process with one line, until the first storing().

        For the start of the command.
        """
        if not self._is_command:
            self._is_command = self._ends_at_once = True
            self._install()

    @contextlib.contextmanager
    def storing(
        self,
        finish: Callable[[Stopped], object] | None = None,
        *,
        on_signal: Callable[[Stopped, int], object] = lambda stop, count: None,
        grace: Callable[[int], float] = lambda count: GRACE_SECS,
        may_exit: bool = False,
    ) -> Iterator[None]:
        """Stores signals during the block, for check().

        If this process is the command, it stores later signals too. In another program, the end of
        the block raises Stopped for a signal that nobody checked.

        Args:
          finish: called on another thread, which then exits the process, if no phase checks in
            time. Only if the process is the command or may_exit is set.
          on_signal: called on another thread at each signal, with the first signal and the number
            of signals so far.
          grace: returns how many seconds after the first signal a phase must have checked, given
            the number of signals so far.
        """
        installed = {} if self._wake_pipe else self._install()
        previous = self._on_signal, self._finish, self._grace
        self._on_signal, self._grace = on_signal, grace
        self._finish = finish if may_exit or self._is_command else None
        self._ends_at_once = False
        stop = None
        try:
            yield
        finally:
            self._on_signal, self._finish, self._grace = previous
            if installed:
                stop = self._remove(installed)
        if stop:
            raise stop

    def ignore(self) -> None:
        """Ignores signals while Python exits, when its handlers are already removed."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def exit(self, exit_code: int) -> NoReturn:
        """Exits at once, without cleanup."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    # ---- handlers and threads --------------------------------------------------------------------

    def _install(self) -> dict[signal.Signals, Any]:
        """Installs the handlers and starts the thread; returns the previous handlers."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        replaced = {
            number: before
            for number in STOP_SIGNALS
            if (before := signal.getsignal(number)) in defaults
        }
        self._wake_pipe = _pipe()
        reading, self._wakeup_fd = _pipe()
        self._thread = threading.Thread(
            target=self._watch, args=(reading, {*replaced}), name='signals', daemon=True
        )
        self._thread.start()
        # Python runs handlers only between calls to native code, but writes the signal's number to
        # the wakeup descriptor at once.
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        for number in replaced:
            signal.signal(number, self._handle)
        return replaced

    def _remove(self, installed: dict[signal.Signals, Any]) -> Stopped | None:
        """Restores the handlers and ends the thread; returns a signal that nobody checked."""
        for number, before in installed.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        # This ends the thread.
        os.close(self._wakeup_fd)
        self._thread.join()
        stop = self.take_stop()
        for descriptor in self._wake_pipe:
            os.close(descriptor)
        self._reset()
        return stop

    def _handle(self, number: int, _frame: object) -> None:
        # The code that the signal interrupted may check next.
        self._has_stored.wait(_STORED_SECS)
        if number == signal.SIGINT and not self._is_command:
            # A second Ctrl-C interrupts code of another program between two steps.
            signal.signal(number, signal.default_int_handler)

    def _watch(self, reading: int, numbers: Iterable[int]) -> None:
        last_at = 0.0
        with os.fdopen(reading, 'rb', buffering=0) as file:
            while data := file.read(1):
                [number], now = data, time.monotonic()
                if number not in numbers:
                    continue
                # The kernel repeats SIGXCPU each second.
                is_same = self._numbers and (now - last_at < _SAME_SECS or number == signal.SIGXCPU)
                last_at = now
                if not is_same:
                    self._store(number)

    def _store(self, number: int) -> None:
        self._numbers.append(number)
        self._has_stored.set()
        stop, count = Stopped(self._numbers[0]), self.count
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_pipe[1], b'!')
        # Ctrl-C never exits another program, such as a notebook.
        if (self._ends_at_once or count > 2) and (self._is_command or number != signal.SIGINT):
            _exit_now(stop)
        if count == 1 and self._finish:
            threading.Thread(
                target=self._answer, args=(stop, self._finish), name='answer', daemon=True
            ).start()
        self._on_signal(stop, count)

    def _answer(self, stop: Stopped, finish: Callable[[Stopped], object]) -> None:
        """Finishes and exits the process if no phase checks in time."""
        began = time.monotonic()
        while time.monotonic() - began < self._grace(self.count):
            if self._num_answered or self._finish is not finish:
                return
            time.sleep(_POLL_SECS)
        with self._lock:
            if self._num_answered:
                return
            self._num_answered = self.count
            try:
                finish(stop)
            finally:
                self.exit(stop.exit_code)


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    # A write must never wait for the reader.
    os.set_blocking(writing, False)
    return reading, writing


def _exit_now(stop: Stopped) -> NoReturn:
    # Not with print, since another thread may hold the stream's lock.
    with contextlib.suppress(OSError):
        os.write(2, f'tf_cnn_benchmarks: error: {stop.reason}\n'.encode())
    os._exit(stop.exit_code)


SIGNALS = Signals()
