"""Handles SIGTERM and Ctrl-C, even while the main thread is blocked in TensorFlow and waits for other tasks."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A step gets at least this long to end after a signal, so that the saved state is one between two steps.
_GRACE_SECS = 5.0


def end_at_sigterm() -> None:
    """From now on SIGTERM ends this process with one line and exit code 143, until another handler is installed.

    Without a handler, parents other than shells would not see 143 but the number of the signal. Like every handler of
    Python it runs only when native code returns, such as the loading of TensorFlow.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> NoReturn:
    # Nothing has started yet that needs an orderly end.
    with contextlib.suppress(OSError):
        os.write(2, b'tf_cnn_benchmarks: error: stopped by SIGTERM\n')
    os._exit(128 + number)


@contextlib.contextmanager
def handled(
    handler: Callable[[int, Any], object], numbers: Iterable[signal.Signals], kept: Callable[[Any], bool]
) -> Iterator[None]:
    """Calls handler at these signals within the block, instead of the handlers before it that are not kept."""
    replaced = {number: before for number in numbers if not kept(before := signal.getsignal(number))}
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM and SIGHUP, as KeyboardInterrupt is by Ctrl-C."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.reason = f'stopped by {signal.Signals(number).name}'


class Interrupts:
    """Raises Terminated at SIGTERM and SIGHUP (the terminal is gone), KeyboardInterrupt at Ctrl-C; not within a step.

    For a process that waits for no other. Python runs signal handlers only when a call to TensorFlow has returned. The
    step is complete by then, and an exception would lose its values.
    """

    def __init__(self) -> None:
        self._is_holding = False
        self._pending: KeyboardInterrupt | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Raises these exceptions within the block, on the main thread. Handlers that the user installed stay."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        defaults = (signal.SIG_DFL, signal.default_int_handler, _end)
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        with handled(self._handle, numbers, kept=lambda before: before not in defaults):
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raises the exception of a signal in the block at its end, unless the block raises another one."""
        self._is_holding = True
        try:
            yield
        finally:
            self._is_holding = False
        if self._pending:
            raise self._pending

    def _handle(self, number: int, _frame: object) -> None:
        exception = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
        if not self._is_holding:
            raise exception
        self._pending = self._pending or exception


def uninterrupted(function: Callable[[], None]) -> None:
    """Calls a function; signals wait for its end, since native code would turn their exceptions into others."""
    interrupts = Interrupts()
    with interrupts.listening(), interrupts.held():
        function()


class Stop:
    """Ends the process after a signal: between two steps if the main thread gets there in time, else during a step.

    Another thread calls begin as soon as the signal arrives, and finish, with the exit code and the signal's name,
    before the process ends.
    """

    def __init__(self, finish: Callable[[int, str], None], begin: Callable[[], None] = lambda: None) -> None:
        self._finish = finish
        self._begin = begin
        self._requested = threading.Event()
        self._between_steps = threading.Event()
        self._grace_secs = _GRACE_SECS

    def end_if_requested(self, step_secs: float = 0.0) -> None:
        """Between two steps: lets the process end now if a signal has arrived, and blocks until it does.

        When a signal arrives later, the next step may take twice as long as the last one, which took step_secs.
        """
        self._grace_secs = max(_GRACE_SECS, 2 * step_secs)
        if self._requested.is_set():
            self._between_steps.set()
            threading.Event().wait()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Acts on signals within this block. Only the main thread can; on others the block changes nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # Python runs signal handlers only between calls to TensorFlow, but writes the wakeup byte at once.
        with handled(lambda *_: None, _SIGNALS, kept=lambda before: False):
            earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            threading.Thread(target=self._await_signal, args=(reading,), name='signals', daemon=True).start()
            try:
                yield
            finally:
                signal.set_wakeup_fd(earlier)
                # This also ends the thread.
                os.close(writing)

    def _await_signal(self, reading: int) -> None:
        while data := os.read(reading, 1):
            if data[0] in _SIGNALS:
                break
        else:
            os.close(reading)
            return
        self._requested.set()
        self._begin()
        self._between_steps.wait(self._grace_secs)
        # The exit code that shells use for a process that a signal ended.
        exit_code = 128 + data[0]
        try:
            self._finish(exit_code, signal.Signals(data[0]).name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
