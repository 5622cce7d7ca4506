"""Runs processes of a cluster on other hosts, over the user's ssh. Linux only, no TensorFlow.

Each process is one `ssh HOST`, which runs launch.remote there. So nothing needs to run on a host
beforehand, the user's ssh configuration decides about names, keys, ports and proxies, and a process
ends with its connection.
"""

import contextlib
import ipaddress
import itertools
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tf_cnn.cluster.topology import split_host_port
from tf_cnn.launch.host_layout import Layout
from tf_cnn.launch.hosts import ClusterTask, Command, Host, LocalProcess, Show
from tf_cnn.launch.remote import ALIVE_SECS, SILENCE_SECS, line_mark, versions
from tf_cnn.machine.run_environment import is_library_variable
from tf_cnn.results.tables import abbreviate
from tf_cnn.system.child_process import ChildProcess
from tf_cnn.system.documents import DocumentError, decode_json
from tf_cnn.system.errors import RunError, UsageError
from tf_cnn.system.place import COMMAND, FOLDER
from tf_cnn.system.signals import SIGNALS

# What commands of any program need there.
CORE_PACKAGES = ('absl-py', 'msgspec', 'numpy', 'psutil', 'rich')
# The program on the other host is a checkout or an installation, as it is here.
_COMMAND = COMMAND.relative_to(FOLDER)
# How long a host may take to answer, and ssh to end after its process. How often to look for a
# signal.
_REPLY_SECS, _END_SECS, _POLL_SECS = 30.0, 4.0, 0.2
# The exit code of ssh itself if it cannot connect.
_SSH_FAILED = 255
# How many connections may be opening at once: sshd drops some above ten (MaxStartups in
# sshd_config(5)).
_MAX_OPENING = 8
_opening = threading.BoundedSemaphore(_MAX_OPENING)


@dataclass(frozen=True)
class SshTarget:
    """How to run the program on hosts: the ssh command line, and Python and folder there.

    The processes run in working_folder if the host has it, else in the home directory.

    token: is part of each line of launch.remote, new for each start.
    """

    ssh: tuple[str, ...]
    python: str
    folder: str
    working_folder: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def program(self) -> tuple[str, str]:
        return self.python, f'{self.folder}/{_COMMAND}'

    def command(self, name: str, *words: str) -> list[str]:
        """Returns the command line that runs launch.remote with these words on a host."""
        # echo: the output begins on a new line, even after an unfinished line of a login script.
        line = (
            f'echo; cd {shlex.quote(self.folder)} && ls {_COMMAND} > /dev/null && exec '
            f'{shlex.join([self.python, "-m", "tf_cnn.launch.remote", self.token, *words])}'
        )
        if Path(self.ssh[0]).name == 'srun':
            step = ['--overlap', '--nodes=1', '--ntasks=1', f'--nodelist={name}']
            return [*self.ssh, *step, 'sh', '-c', line]
        # BatchMode: otherwise many hosts could ask for passwords at once, between other output.
        options = [
            'BatchMode=yes',
            f'ConnectTimeout={_REPLY_SECS:.0f}',
            f'ServerAliveInterval={ALIVE_SECS:.0f}',
            f'ServerAliveCountMax={SILENCE_SECS / ALIVE_SECS:.0f}',
        ]
        return [
            *self.ssh,
            '-T',
            *(f'-o{option}' for option in options),
            name,
            f'exec sh -c {shlex.quote(line)}',
        ]


class SshHost(Host):
    """Another machine, by its name for ssh."""

    def __init__(self, name: str, target: SshTarget) -> None:
        super().__init__()
        self.name = name
        self.program = target.program
        self._target = target

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if is_library_variable(name)}

    def start(self, command: Command) -> LocalProcess:
        cores = ','.join(map(str, command.cores or ()))
        variables = [f'{name}={value}' for name, value in (command.env or {}).items()]
        words = ['run', self._target.working_folder, cores, *variables, '--', *command.argv]
        argv = self._target.command(self.name, *words)
        command = replace(command, argv=argv, env=None, cores=None)
        return _SshProcess(command, self.name, line_mark(self._target.token))


class _SshProcess(LocalProcess):
    """An ssh on this machine with a process of a cluster at its other end, see launch.remote."""

    def __init__(self, command: Command, host_name: str, mark: str) -> None:
        while not _opening.acquire(timeout=_POLL_SECS):
            SIGNALS.check()
        self._is_opening = True
        try:
            super().__init__(command, stdin=subprocess.PIPE)
        except BaseException:
            self._end_opening()
            raise
        self._host_name = host_name
        self._mark = mark
        self._exit_code: int | None = None
        self._has_ended = threading.Event()

    def listen(
        self,
        show: Show,
        show_error: Show,
        on_start: Callable[[int], None],
        on_exit: Callable[[LocalProcess], None],
    ) -> None:
        def handle_line(line: str) -> None:
            # The last line of the process may be incomplete.
            text, mark, answer = line.partition(self._mark)
            # The lines before the first answer belong to login scripts.
            if not self._is_opening and (text or not mark):
                show(text)
            if answer == 'ready':
                self._end_opening()
            elif answer.startswith('process '):
                on_start(int(answer.split()[1]))
            elif answer == 'silence':
                self.lost_reason = (
                    f'{self._host_name} heard nothing from this launcher for {SILENCE_SECS:g} s'
                )
            elif answer.startswith('exit '):
                self._exit_code = int(answer.split()[1])
                # ssh goes on as long as a descendant has its output open.
                self._kill_ssh_after(_END_SECS)

        self.read_lines(handle_line, show_error, self._end_opening)
        threading.Thread(target=self._keep_alive, daemon=True).start()
        self._report_exit(on_exit)

    def _end_opening(self) -> None:
        if self._is_opening:
            self._is_opening = False
            _opening.release()

    def _keep_alive(self) -> None:
        """Tells the host that the launcher is there; kills an ssh that does not connect."""
        # Count the intervals: the clock goes on while this process is suspended.
        interval_secs = min(ALIVE_SECS, _REPLY_SECS)
        for number in itertools.count(1):
            self._send('')
            if self._has_ended.wait(interval_secs):
                break
            if self._is_opening and number * interval_secs >= _REPLY_SECS:
                self.lost_reason = f'{self._host_name} does not answer within {_REPLY_SECS:g} s'
                self.signal(signal.SIGKILL)

    def _send(self, line: str) -> None:
        # If the connection has ended, so has ssh.
        with contextlib.suppress(OSError, ValueError):
            print(line, file=self.input, flush=True)

    def end(self, number: signal.Signals) -> None:
        self.is_stopped = True
        self._send(str(int(number)))
        if number == signal.SIGKILL:
            # The host may be lost.
            self._kill_ssh_after(_END_SECS)

    def _kill_ssh_after(self, secs: float) -> None:
        def kill_ssh() -> None:
            if not self._has_ended.wait(secs):
                self.signal(signal.SIGKILL)

        threading.Thread(target=kill_ssh, daemon=True).start()

    def reap(self) -> int:
        self.wait()
        self._has_ended.set()
        super().reap()
        if self._exit_code is None and not self.lost_reason:
            self.lost_reason = f'the connection to {self._host_name} has ended'
        return 1 if self.lost_reason else self._exit_code or 0


# ---- the call before the start -------------------------------------------------------------------


def prepare_hosts(
    layout: Layout, target: SshTarget, num_gpus: int, gpu_indices: Sequence[int]
) -> list[ClusterTask]:
    """Returns the tasks of all hosts, with their addresses, cores and GPUs there.

    Raises:
      RunError: hosts cannot be used; it has a line for each.
      UsageError: a host has too few GPUs, or an address that other hosts cannot reach.
    """
    tasks: list[ClusterTask] = []
    problems: dict[str, str] = {}
    for host, answer in call_hosts(layout, target, num_gpus, gpu_indices):
        if isinstance(answer, RunError):
            problems[host.name] = str(answer)
        else:
            tasks += [ClusterTask(**{**task, 'host': host}) for task in answer['tasks']]
    if problems:
        raise RunError(*list_problems(problems))
    if len(layout) > 1:
        _check_addresses(tasks)
    return tasks


def list_problems(problems: Mapping[str, str]) -> list[str]:
    """Returns a line for each reason, which names the first of its hosts, with all its hosts."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in problems.items():
        names_by_reason.setdefault(reason.replace(name, ''), []).append(name)
    return [f'{abbreviate(names)}: {problems[names[0]]}' for names in names_by_reason.values()]


def call_hosts(
    layout: Layout,
    target: SshTarget,
    num_gpus: int = 0,
    gpu_indices: Sequence[int] = (),
    *,
    needs_tensorflow: bool = True,
) -> Iterator[tuple[SshHost, dict[str, Any] | RunError]]:
    """Yields each host with the answer of `prepare` in launch.remote, or why it cannot be used.

    Raises UsageError if a host has too few GPUs.
    """
    names = [*layout]
    for first in range(0, len(names), _MAX_OPENING):
        with contextlib.ExitStack() as stack:
            calls = []
            for name in names[first : first + _MAX_OPENING]:
                ids = ','.join(f'{job}:{index}' for job, index in layout[name])
                indices = ','.join(map(str, gpu_indices))
                words = target.command(name, 'prepare', ids, str(num_gpus), indices)
                ssh = ChildProcess(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                calls.append(_PrepareCall(SshHost(name, target), target, stack.enter_context(ssh)))
            deadline = time.monotonic() + _REPLY_SECS
            for call in calls:
                try:
                    yield call.host, call.answer(deadline, needs_tensorflow=needs_tensorflow)
                except RunError as error:
                    yield call.host, error


class _PrepareCall:
    def __init__(self, host: SshHost, target: SshTarget, ssh: ChildProcess) -> None:
        self.host = host
        self._target = target
        self._ssh = ssh
        self._answer: dict[str, Any] | None = None
        # What login scripts and ssh print; the last line gives the reason of a failure.
        self._other_lines: list[str] = []
        self._has_answered = threading.Event()
        self._mark = line_mark(target.token)
        ssh.read_lines(self._handle_line, self._other_lines.append, self._has_answered.set)

    def _handle_line(self, line: str) -> None:
        if line.startswith(self._mark):
            # The last line of a connection may be incomplete.
            with contextlib.suppress(DocumentError):
                self._answer = decode_json(line.removeprefix(self._mark), dict[str, Any])
                self._has_answered.set()
        else:
            self._other_lines.append(line)

    def answer(self, deadline: float, *, needs_tensorflow: bool) -> dict[str, Any]:
        name, target = self.host.name, self._target
        # After the deadline, too: this process may have been suspended meanwhile.
        self._has_answered.wait(max(_POLL_SECS, deadline - time.monotonic()))
        if self._answer is None:
            raise RunError(self._failure())
        if 'refused' in self._answer:
            kind = UsageError if self._answer['exit_code'] == UsageError.exit_code else RunError
            lines = self._answer['refused']
            raise kind(*(lines if kind is RunError else (f'{name}: {line}' for line in lines)))
        for subject, here in versions().items():
            if subject == 'TensorFlow' and not needs_tensorflow:
                continue
            there = self._answer['versions'].get(subject)
            # A folder that no git knows has no commit to compare.
            if there != here and not (subject == 'commit' and None in (there, here)):
                raise RunError(
                    f'it has {subject} {there} in {target.folder} with {target.python}, '
                    f'and this machine has {here}; install the same on both, or set --remote_dir '
                    'and --remote_python'
                )
        return self._answer

    def _failure(self) -> str:
        target = self._target
        connecting = f'`{shlex.join(target.ssh)} {self.host.name}`'
        # The output ends a little earlier than ssh itself.
        if not self._ssh.wait(1.0):
            return (
                f'it does not answer within {_REPLY_SECS:g} s; check the name, and that '
                f'{connecting} connects'
            )
        self._ssh.await_last_lines()
        code = self._ssh.exit_code()
        last = next((line for line in reversed(self._other_lines) if line.strip()), '')
        if code == _SSH_FAILED:
            return (
                f'ssh cannot connect ({last or "it gives no reason"}); {connecting} must connect '
                'without a password'
            )
        return (
            f'the program there cannot be started ({last or f"exit code {code}"}); '
            f'{self._how_to_install(last)}'
        )

    def _how_to_install(self, reason: str) -> str:
        name, target = self.host.name, self._target
        if 'ModuleNotFoundError' in reason:
            pip = [target.python, '-m', 'pip', 'install', *CORE_PACKAGES]
            return f'run: {shlex.join([*target.ssh, name, *pip])}'
        if (target.python, target.folder) != (sys.executable, str(FOLDER)):
            return f'check --remote_dir={target.folder} and --remote_python={target.python}'
        folders = (
            {str(FOLDER)} if Path(sys.prefix).is_relative_to(FOLDER) else {str(FOLDER), sys.prefix}
        )
        rsync = shlex.join(['rsync', '--archive', '--relative', *sorted(folders), f'{name}:/'])
        return f'to copy it there: {rsync}'


def _check_addresses(tasks: Sequence[ClusterTask]) -> None:
    """Raises UsageError for an address that other hosts cannot reach."""
    for task in tasks:
        address, _ = split_host_port(task.address)
        if task.host and ipaddress.ip_address(address).is_loopback:
            raise UsageError(
                f'{task.host.name}: its processes would listen at {address}, which the other '
                'hosts cannot reach; use in --hosts the name or address that the other hosts use'
            )
