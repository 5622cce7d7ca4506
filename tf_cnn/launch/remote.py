"""The part of `cluster --hosts` that runs on the other hosts, each time by `ssh HOST`:

    python -m tf_cnn.launch.remote TOKEN prepare TASKS NUM_GPUS GPU_INDICES
    python -m tf_cnn.launch.remote TOKEN run FOLDER CORES NAME=VALUE... -- COMMAND...

TOKEN is part of each line for the launcher, so that no login script can print such a line.
`prepare` prints the versions and the host name here, and a ClusterTask for each of TASKS
(ps:0,worker:1), as JSON.
`run` runs the command until the launcher ends it. Its own standard input is the launcher: a line
with a number is a signal for the command, and an empty line says that the launcher is there.
"""

import contextlib
import json
import os
import platform
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tf_cnn.cluster.environments import remove_cluster_variables
from tf_cnn.cluster.topology import LOOPBACK
from tf_cnn.launch.hosts import make_tasks, pick_addresses
from tf_cnn.machine.run_environment import git_commit, tensorflow_version
from tf_cnn.results import VERSION
from tf_cnn.system.child_process import ChildProcess
from tf_cnn.system.errors import BenchmarkError, format_error

# The longest silence of a launcher or a host, and the interval between the launcher's empty lines.
SILENCE_SECS, ALIVE_SECS = 60.0, 10.0
# From SIGTERM to SIGKILL if the launcher is gone: nobody reads the last output.
_GRACE_SECS = 2.0


def line_mark(token: str) -> str:
    """Returns what begins the lines for the launcher: `ready`, `process PID`, `silence`, `exit
    CODE`, or a JSON object. Login scripts and the command itself print other lines.
    """
    return f'tf_cnn_benchmarks remote {token}: '


def versions() -> dict[str, str | None]:
    """Returns what must be the same on all hosts; None if unknown."""
    return {
        'tf_cnn_benchmarks': VERSION,
        'commit': git_commit(),
        'TensorFlow': tensorflow_version(),
    }


def prepare(mark: str, tasks: str, num_gpus: str, gpu_indices: str) -> int:
    # The address that the launcher's ssh connected to: other hosts probably reach it, too.
    connection = os.environ.get('SSH_CONNECTION', '').split()
    address = connection[2] if len(connection) == 4 else LOOPBACK
    if not connection:
        # srun says no address; the nodes of Slurm have names that lead to them.
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(platform.node())
    pairs = (task.split(':') for task in tasks.split(','))
    ids = [(job, int(index)) for job, index in pairs]
    try:
        indices = [int(number) for number in gpu_indices.split(',') if number]
        members = make_tasks(ids, pick_addresses(len(ids), address), int(num_gpus), indices)
    except BenchmarkError as error:
        print(mark + json.dumps({'refused': error.lines, 'exit_code': error.exit_code}))
        return error.exit_code
    fields = [{**asdict(member), 'host': None} for member in members]
    answer = {'versions': versions(), 'hostname': platform.node(), 'tasks': fields}
    print(mark + json.dumps(answer))
    return 0


def run(mark: str, folder: str, cores: str, *words: str) -> int:
    """Prints `ready`, the process id of the command, and at its end its exit code (-n after
    signal n), after `silence` if it was stopped since the launcher was silent.
    """
    # The launcher handles Ctrl-C; the end of the input shows the end of a connection.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # mpirun does the same. Without a home directory, sshd starts commands in the root directory.
    os.chdir(next(path for path in (folder, Path.home(), '/') if os.path.isdir(path)))
    dashes = words.index('--')
    variables = dict(word.split('=', 1) for word in words[:dashes])
    print(f'{mark}ready', flush=True)
    try:
        process = ChildProcess(
            words[dashes + 1 :],
            stdout=sys.stdout,
            stderr=sys.stderr,
            env={**remove_cluster_variables(os.environ), **variables},
            cores=[int(core) for core in cores.split(',') if core],
            grace_secs=_GRACE_SECS,
        )
    except OSError as error:
        print(format_error(f'it cannot be started: {error.strerror}'), file=sys.stderr, flush=True)
        print(f'{mark}exit 1', flush=True)
        return 1
    is_silent = False
    with process as child:
        print(f'{mark}process {child.pid}', flush=True)
        while True:
            ready = select.select([sys.stdin, child.descriptor], [], [], SILENCE_SECS)[0]
            if child.descriptor in ready:
                break
            is_silent = not ready
            # Empty at the end of the connection.
            if is_silent or not (data := os.read(0, 4096)):
                break
            for word in data.split():
                child.signal(signal.Signals(int(word)))
    # Nobody reads it if the launcher is gone.
    with contextlib.suppress(OSError):
        if is_silent:
            print(f'{mark}silence', flush=True)
        print(f'{mark}exit {child.exit_code()}', flush=True)
    return 0


def main(token: str, name: str, *arguments: str) -> int:
    command: Callable[..., int] = prepare if name == 'prepare' else run
    return command(line_mark(token), *arguments)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
