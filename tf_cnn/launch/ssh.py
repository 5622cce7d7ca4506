"""Runs processes of a cluster on other hosts, over the user's ssh. Linux only, no TensorFlow.

One connection for each host starts launch.agent there, and the agent starts the processes. So
nothing needs to run on a host beforehand, the user's ssh configuration decides about names, keys,
ports and proxies, and everything ends with the connection.
"""

import contextlib
import json
import queue
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

from tf_cnn.launch.agent import ALIVE_SECS, ANSWER, SILENCE_SECS, hello
from tf_cnn.launch.hosts import CLOSE_SECS, ClusterTask, Command, Host, RemoteProcess, Show, TaskIds
from tf_cnn.machine.run_environment import is_library_variable
from tf_cnn.system.child_process import ChildProcess
from tf_cnn.system.documents import DocumentError, decode_json
from tf_cnn.system.errors import RunError, UsageError
from tf_cnn.system.place import COMMAND, FOLDER

# The program on the other host is a checkout or an installation, as it is here.
_COMMAND = COMMAND.relative_to(FOLDER)
# How long a host may take to answer, and ssh to end after its output, in seconds.
_REPLY_SECS, _END_SECS = 30.0, 1.0
# The exit code of ssh itself if it cannot connect.
_SSH_FAILED = 255


@dataclass(frozen=True)
class SshTarget:
    """How to run the program on hosts: the ssh command line, and Python and folder there.

    The processes run in working_folder if the host has it, else in the home directory.
    """

    ssh: tuple[str, ...]
    python: str
    folder: str
    working_folder: str

    @property
    def program(self) -> tuple[str, str]:
        return self.python, f'{self.folder}/{_COMMAND}'

    def command(self, name: str) -> list[str]:
        """Returns the command line that starts an agent on the host of this name."""
        folder, python, working_folder = map(
            shlex.quote, (self.folder, self.python, self.working_folder)
        )
        # echo: the answers begin on a new line, even after an unfinished line of a login script.
        line = (
            f'echo; cd {folder} && ls {_COMMAND} > /dev/null && exec {python} -m '
            f'tf_cnn.launch.agent {working_folder}'
        )
        # BatchMode: otherwise many hosts could ask for passwords at once, between other output.
        options = ['BatchMode=yes', f'ServerAliveInterval={ALIVE_SECS:.0f}']
        options.append(f'ServerAliveCountMax={SILENCE_SECS / ALIVE_SECS:.0f}')
        return [
            *self.ssh,
            '-T',
            *(f'-o{option}' for option in options),
            name,
            f'exec sh -c {shlex.quote(line)}',
        ]


class SshHost(Host):
    """Another machine, by its name for ssh. Connects at once; wait_for_agent() waits."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self.name = name
        self.program = target.program
        self._target = target
        self._processes: dict[str, RemoteProcess] = {}
        # The answers to requests, in order; None at the end of the connection.
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # The last lines of ssh, which give the reason of a failure, and of login scripts.
        self._errors: deque[str] = deque(maxlen=20)
        self._write_lock = threading.Lock()
        self._is_closed = threading.Event()
        self._failure_reason = 'the connection has ended'
        self._ssh = ChildProcess(
            target.command(name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._ssh.read_lines(self._handle_line, self._errors.append, self._handle_disconnect)
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def wait_for_agent(self) -> None:
        """Waits for the agent; raises RunError if it does not answer, or if its program differs."""
        answer = self._next_answer()
        if answer is None:
            raise RunError(f'{self.name}: {self._connection_error()}')
        for name, here in hello().items():
            there = answer['hello'].get(name)
            # A folder that no git knows has no commit to compare.
            if there != here and not (name == 'commit' and None in (there, here)):
                raise RunError(
                    f'{self.name}: it has {name} {there} in {self._target.folder} with '
                    f'{self._target.python}, and this machine has {here}; install the same on '
                    f'both, or set --remote_dir and --remote_python'
                )

    def prepare(
        self, processes: TaskIds, num_gpus: int = 0, gpu_indices: Sequence[int] = ()
    ) -> list[ClusterTask]:
        return [
            ClusterTask(**task_fields)
            for task_fields in self._request('members', prepare=[processes, num_gpus, gpu_indices])
        ]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if is_library_variable(name)}

    def start(
        self, command: Command, show: Show, show_error: Show, on_exit: Callable[[Any], None]
    ) -> RemoteProcess:
        process = RemoteProcess(command, show, show_error, on_exit, self._send)
        self._processes[command.name] = process
        command_fields = {
            field.name: getattr(command, field.name)
            for field in fields(command)
            if field.name != 'host'
        }
        process.pid = self._request('started', start=command_fields)
        return process

    def close(self) -> None:
        # The agent ends its processes.
        self._is_closed.set()
        with contextlib.suppress(OSError, ValueError):
            self._ssh.input.close()
        if not self._ssh.wait(CLOSE_SECS):
            self._ssh.signal(signal.SIGKILL)
        self._ssh.reap()

    # ---- requests and answers --------------------------------------------------------------------

    def _request(self, key: str, **request: Any) -> Any:
        self._send(**request)
        answer = self._next_answer()
        if answer is None:
            raise RunError(f'{self.name}: {self._failure_reason}')
        if 'refused' in answer:
            kind = UsageError if answer['is_usage'] else RunError
            raise kind(*(f'{self.name}: {line}' for line in answer['refused']))
        return answer[key]

    def _next_answer(self) -> dict[str, Any] | None:
        try:
            return self._answers.get(timeout=_REPLY_SECS)
        except queue.Empty:
            self._failure_reason = f'it does not answer within {_REPLY_SECS:g} s'
            return None

    def _send(self, **request: Any) -> None:
        # If the connection has ended, _handle_disconnect reports it.
        with self._write_lock, contextlib.suppress(OSError, ValueError):
            print(json.dumps(request), file=self._ssh.input, flush=True)

    def _handle_line(self, line: str) -> None:
        answer = None
        # The last line of a connection may be incomplete.
        with contextlib.suppress(DocumentError):
            answer = (
                decode_json(line.removeprefix(ANSWER), dict[str, Any])
                if line.startswith(ANSWER)
                else None
            )
        if answer is None:
            self._errors.append(line)
            return
        name = answer.pop('name', None)
        if name is None:
            self._answers.put(answer)
        elif process := self._processes.get(name):
            [(kind, value)] = answer.items()
            process.handle_message(kind, value)
            if kind == 'ended':
                del self._processes[name]

    def _handle_disconnect(self) -> None:
        self._answers.put(None)
        for process in [*self._processes.values()]:
            process.mark_lost(f'the connection to {self.name} has ended')

    def _keep_alive(self) -> None:
        while not self._is_closed.wait(ALIVE_SECS):
            self._send()

    def _connection_error(self) -> str:
        target = self._target
        # Its output ends a little earlier than ssh itself.
        if not self._ssh.wait(_END_SECS):
            # It did not answer in time.
            return (
                f'{self._failure_reason}; check the name, and that `{shlex.join(target.ssh)} '
                f'{self.name}` connects'
            )
        code = self._ssh.exit_code()
        self._ssh.await_last_lines()
        last = next((line for line in reversed(self._errors) if line.strip()), '')
        if code == _SSH_FAILED:
            return (
                f'ssh cannot connect ({last or "it gives no reason"}); `{shlex.join(target.ssh)} '
                f'{self.name}` must connect without a password'
            )
        return (
            f'the program there cannot be started ({last or f"exit code {code}"}); check '
            f'--remote_dir={target.folder} and --remote_python={target.python}'
        )


@contextlib.contextmanager
def connections(names: Sequence[str], target: SshTarget) -> Iterator[list[SshHost]]:
    """Connects to all hosts at once, until the block ends.

    Raises RunError with a line for each host that cannot be used.
    """
    hosts: list[SshHost] = []
    try:
        for name in names:
            hosts.append(SshHost(name, target))
        refusals: list[str] = []
        for host in hosts:
            try:
                host.wait_for_agent()
            except RunError as error:
                refusals += error.lines
        if refusals:
            raise RunError(*refusals)
        yield hosts
    finally:
        with ThreadPoolExecutor(len(names)) as pool:
            pool.map(SshHost.close, hosts)
