"""SIGTERM and Ctrl-C, also for a process whose main thread may be waiting for others, within TensorFlow, for ever."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long a step may take to its end, at least, so that what is saved is the end of a step of ours.
_GRACE_SECS = 5.0


class Terminated(KeyboardInterrupt):
    """SIGTERM, told as Ctrl-C is."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated in the main thread until the block ends, after what that runs within TensorFlow.

    For a process that waits for no other. Where the program has a handler of its own, that stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handle(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Stop:
    """Ends the process after a signal: between two steps of the main thread if it gets there soon, else anyway.

    Args:
      finish: called before the end, on a thread of its own, with the exit code and the name of the signal.
      begin: called on that thread at once.
    """

    def __init__(self, finish: Callable[[int, str], None], begin: Callable[[], None] = lambda: None) -> None:
        self._finish = finish
        self._begin = begin
        self._requested = threading.Event()
        self._between_steps = threading.Event()
        self._grace_secs = _GRACE_SECS

    def check(self, step_secs: float = 0.0) -> None:
        """To be called between steps. Does not return once there was a signal: the process is about to end.

        Args:
          step_secs: what the last step took. The next one may take twice that.
        """
        self._grace_secs = max(_GRACE_SECS, 2 * step_secs)
        if self._requested.is_set():
            self._between_steps.set()
            threading.Event().wait()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Acts on signals until the block ends. Only the main thread can; in others nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # Handlers of Python run between steps only; the byte is written at once.
        before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._await, args=(reading,), name='signals', daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(earlier)
            for number, handler in before.items():
                signal.signal(number, handler)
            # The thread ends with its pipe.
            os.close(writing)

    def _await(self, reading: int) -> None:
        while data := os.read(reading, 1):
            if data[0] in _SIGNALS:
                break
        else:
            os.close(reading)
            return
        self._requested.set()
        self._begin()
        self._between_steps.wait(self._grace_secs)
        # As shells tell that a signal ended a process.
        exit_code = 128 + data[0]
        try:
            self._finish(exit_code, signal.Signals(data[0]).name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
