"""Forks runs from a process that has imported TensorFlow, and has neither threads nor sessions.

Standard input is a socket for requests. A request has the script with its words, the environment,
the folder, and a process with the network to use or null, as JSON, and four files: the standard
streams and a socket. The server writes the process id to this socket, and the exit code at the end
of the process.
"""

import contextlib
import ctypes
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.system import tether

_MOST_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1  # prctl(2)


def _serve(control: socket.socket) -> tuple[list[int], list[Any]] | None:
    """Forks a child for each request until the test process ends.

    Returns (streams, request) in each child; None in the server at its end.
    """
    with selectors.DefaultSelector() as children:
        children.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in children.select():
                if key.data:
                    pid, answer = key.data
                    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    children.unregister(key.fd)
                    _send(answer, exit_code)
                    os.close(key.fd)
                    os.close(answer)
                    continue
                text, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
                if not text:
                    return None
                *streams, answer = files
                if pid := os.fork():
                    _send(answer, pid)
                    children.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))
                    for stream in streams:
                        os.close(stream)
                    continue
                for child in children.get_map().values():
                    if child.data:
                        os.close(child.fd)
                        os.close(child.data[1])
                os.close(answer)
                return streams, json.loads(text)


def _send(answer: int, number: int) -> None:
    # A failed test has closed the socket.
    with contextlib.suppress(BrokenPipeError):
        os.write(answer, str(number).encode())


def _run(streams: list[int], request: list[Any]) -> None:
    """Gives this process the state of a new Python, and runs the script."""
    argv, environ, folder, network = request
    if network is not None:
        tether._enter_network(str(network))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    # From Python 3.13 on, pdb, which TensorFlow imports, loads readline: it sets these in C alone.
    for name in ('COLUMNS', 'LINES'):
        os.unsetenv(name)
    signal.signal(signal.SIGWINCH, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    # Python itself seeds its module random after a fork.
    np.random.seed()
    sys.argv = argv
    runpy.run_path(argv[0], run_name='__main__')


@contextlib.contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Hides what TensorFlow prints when it is imported, as the program does."""
    stderr = os.dup(2)
    with open(os.devnull, 'w') as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _main() -> None:
    with _silenced_stderr():
        import_tensorflow()
    # A run would import these modules later.
    import benchmark_cnn  # noqa: F401
    import tf_cnn.cli.benchmark
    import tf_cnn.cluster.serve
    import tf_cnn.step.build  # noqa: F401

    assert len(os.listdir('/proc/self/task')) == 1, 'a process with threads cannot be forked'
    with socket.socket(fileno=os.dup(0)) as control:
        child = _serve(control)
    if child:
        _run(*child)


if __name__ == '__main__':
    _main()
