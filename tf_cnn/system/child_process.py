"""Runs commands in separate sessions, and kills each with all its descendants. Linux only."""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import psutil

from tf_cnn.system.signals import SIGNALS
from tf_cnn.system.tether import die_with_parent

# How long to wait for the last lines of an exited process. They arrive at once, unless a descendant
# in another session still has the pipe open.
_LAST_LINES_SECS = 5.0
# How much of a log's end is read. Its last lines say why the process exited.
_TAIL_BYTES = 65536


class ChildProcess:
    """A running command and its descendants. As a context manager, it stops them after the block.

    The command runs in a separate session, so that Ctrl-C in a terminal does not reach it. The
    kernel kills it when the thread that started it ends, so start it from the main thread. It stays
    a zombie until reap(), so that no other process gets its number before its descendants are
    killed.

    Args:
      stdin: PIPE for `input`.
      cores: the logical cores it may run on; empty for all cores of this process.
      network: a process in the network to use; None for the network of this process.
      grace_secs: if it still runs after the block, the time from SIGTERM to SIGKILL; 0 for SIGKILL
        at once.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        stdin: int = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cores: Iterable[int] = (),
        network: int | None = None,
        grace_secs: float = 0.0,
    ) -> None:
        self._popen = subprocess.Popen(
            die_with_parent(argv, cores, network),
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            text=True,
            errors='backslashreplace',
        )
        # Also the id of its session and process group.
        self.pid = self._popen.pid
        self._grace_secs = grace_secs
        self._readers: list[threading.Thread] = []
        # Opened when first needed: kernels before 5.3 lack it.
        self._pidfd: int | None = None

    def __enter__(self) -> 'ChildProcess':
        return self

    def __exit__(self, *error: object) -> None:
        if not self.wait(0.0):
            self.stop(self._grace_secs)
        self.reap()

    def read_lines(
        self,
        show: Callable[[str], None],
        show_error: Callable[[str], None] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts threads that call show and show_error with each line of standard output and error.

        on_close is called at the end of standard output.
        """

        def read(
            stream: IO[str] | None, receiver: Callable[[str], None], at_end: Callable[[], None]
        ) -> None:
            assert stream is not None
            with stream:
                for line in stream:
                    receiver(line.removesuffix('\n'))
            at_end()

        for arguments in (
            (self._popen.stdout, show, on_close),
            (self._popen.stderr, show_error, lambda: None),
        ):
            if arguments[1]:
                reader = threading.Thread(target=read, args=arguments, daemon=True)
                reader.start()
                self._readers.append(reader)

    @property
    def input(self) -> IO[str]:
        assert self._popen.stdin is not None
        return self._popen.stdin

    def wait(self, secs: float | None = None) -> bool:
        """Waits for the exit, at most this long (None: no limit); returns whether it has exited."""
        if secs is None:
            # WNOWAIT leaves the zombie for reap().
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            return True
        # Unlike select(2), poll(2) takes any descriptor.
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(1e3 * secs))

    def wait_or_stop(self, secs: float | None = None) -> bool:
        """Waits like wait(), but raises Stopped after a signal. For the main thread."""
        return bool(SIGNALS.wait(secs, self.descriptor))

    @property
    def descriptor(self) -> int:
        """Readable after the process has exited."""
        if self._pidfd is None:
            self._pidfd = os.pidfd_open(self.pid)
        return self._pidfd

    def exit_code(self) -> int:
        """Returns the exit code, or -n if signal n ended it. The process must have exited."""
        if self._popen.returncode is not None:
            return int(self._popen.returncode)
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert status, 'it has exited'
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self, grace_secs: float) -> None:
        """Sends SIGTERM to its group, and SIGKILL to all descendants left after grace_secs."""
        # Descendants in other sessions cannot be found after their parent has exited.
        descendants = psutil.Process(self.pid).children(recursive=True)
        try:
            if grace_secs:
                self.signal(signal.SIGTERM)
                self.wait_or_stop(grace_secs)
        finally:
            # Even after a second signal.
            for process in {*descendants, *psutil.Process(self.pid).children(recursive=True)}:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.signal(signal.SIGKILL)
            self.wait()

    def reap(self) -> int:
        """Waits for the exit, kills the group, and waits for the last lines.

        Returns the same code as exit_code().
        """
        self.wait()
        self.signal(signal.SIGKILL)
        code = self._popen.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self.await_last_lines()
        return code

    def await_last_lines(self) -> None:
        """Waits until read_lines() has read the whole output. The process must have exited."""
        deadline = time.monotonic() + _LAST_LINES_SECS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))


def read_log_tail(log: IO[bytes]) -> str:
    """Returns the text of a log file, at most the last 64 KiB."""
    size = os.fstat(log.fileno()).st_size
    start = max(0, size - _TAIL_BYTES)
    return os.pread(log.fileno(), size - start, start).decode(errors='backslashreplace')
