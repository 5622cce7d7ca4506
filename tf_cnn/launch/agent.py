"""Starts processes on this machine for a launcher on another one, which runs it over ssh:
`python -m tf_cnn.launch.agent`.

Requests come on standard input and answers go to standard output, one JSON object a line. Lines of
answers begin with ANSWER, since login scripts may print lines, too:

    (at the start)                    {"hello": {"tf_cnn_benchmarks": ..., "commit": ..., ...}}
    {"prepare": [arguments of Host.prepare]}    {"members": [{fields of ClusterTask}, ...]}
    {"start": {fields of Command}}    {"started": PID}
                                      {"name": ..., "out": "a line"}, {"name": ..., "err": "a line"}
    {"end": NUMBER, "name": ...}      {"name": ..., "ended": EXIT_CODE}
    {}

If `prepare` or `start` fails, the answer is
{"refused": ["a line", ...], "is_usage": true or false}.

The agent ends when its input ends (the launcher or the connection is gone), or when it has received
nothing for a minute: the launcher sends at least {} every ten seconds. It then ends all processes
that it started. ssh itself detects a silent host.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tf_cnn.cluster.environments import remove_cluster_variables
from tf_cnn.launch.hosts import Command, Host, LocalProcess
from tf_cnn.machine.run_environment import git_commit, tensorflow_version
from tf_cnn.results import VERSION
from tf_cnn.system.documents import decode_json
from tf_cnn.system.errors import BenchmarkError, UsageError

ANSWER = 'tf_cnn_benchmarks agent: '
# The longest wait for a silent launcher or host, and the interval between the launcher's requests.
SILENCE_SECS, ALIVE_SECS = 60.0, 10.0
# From SIGTERM to SIGKILL if the launcher is gone: nobody reads their last output.
_GRACE_SECS = 2.0


class _Agent:
    """Serves the requests of a launcher until the launcher is gone, then ends all processes."""

    def __init__(self) -> None:
        # The address that the launcher's ssh connected to: other hosts probably reach it, too.
        connection = os.environ.get('SSH_CONNECTION', '').split()
        self._host = Host(address=connection[2]) if len(connection) == 4 else Host()
        self._running: dict[str, LocalProcess] = {}
        # Calls for the main thread, which alone starts and reaps processes; None to end.
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._inbox.put(None))
        # The launcher handles Ctrl-C; the end of the input shows the end of a connection.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=self._read_requests, daemon=True).start()
        self._send(hello=hello())
        with contextlib.suppress(queue.Empty):
            while task := self._inbox.get(timeout=SILENCE_SECS):
                task()
        self._stop_all()

    def _read_requests(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in sys.stdin:
                self._inbox.put(partial(self._handle_request, decode_json(line, dict[str, Any])))
        self._inbox.put(None)

    def _handle_request(self, request: Mapping[str, Any]) -> None:
        try:
            if 'prepare' in request:
                self._send(
                    members=[
                        asdict(cluster_task)
                        for cluster_task in self._host.prepare(*request['prepare'])
                    ]
                )
            elif 'start' in request:
                self._start(request['start'])
            # The process may have ended in the meantime.
            elif process := self._running.get(request.get('name', '')):
                process.end(signal.Signals(request['end']))
        except BenchmarkError as error:
            self._send(refused=error.lines, is_usage=isinstance(error, UsageError))
        except (OSError, RuntimeError) as error:
            self._send(refused=[getattr(error, 'strerror', None) or str(error)], is_usage=False)

    def _start(self, command_fields: Mapping[str, Any]) -> None:
        name = command_fields['name']
        self._running[name] = LocalProcess(
            Command(
                **{
                    **command_fields,
                    'env': {**remove_cluster_variables(os.environ), **command_fields['env']},
                }
            ),
            show=lambda line: self._send(name=name, out=line),
            show_error=lambda line: self._send(name=name, err=line),
            on_exit=lambda _: self._inbox.put(partial(self._report_exit, name)),
        )
        self._send(started=self._running[name].pid)

    def _report_exit(self, name: str) -> None:
        self._send(name=name, ended=self._running.pop(name).reap())

    def _stop_all(self) -> None:
        for process in self._running.values():
            process.end(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECS
        for process in self._running.values():
            process.wait(max(0.0, deadline - time.monotonic()))
            process.stop(grace_secs=0.0)

    def _send(self, **answer: Any) -> None:
        try:
            with self._lock:
                print(ANSWER + json.dumps(answer), flush=True)
        except (OSError, ValueError):
            self._inbox.put(None)


def hello() -> dict[str, str | None]:
    """Returns the versions that launcher and agent compare; None if unknown."""
    return {
        'tf_cnn_benchmarks': VERSION,
        'commit': git_commit(),
        'TensorFlow': tensorflow_version(),
    }


if __name__ == '__main__':
    agent = _Agent()
    # mpirun does the same. Without a home directory, sshd starts commands in the root directory.
    os.chdir(next(folder for folder in (sys.argv[1], Path.home(), '/') if os.path.isdir(folder)))
    agent.serve()
