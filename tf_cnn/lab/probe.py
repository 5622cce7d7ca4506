"""Runs a command of any program once, and prints its document:

    python -m tf_cnn.lab.probe TASK COMMAND RANK

The output of the command goes where the output of this process goes. All processes of the command
end with it, also if this process is told to end or its parent ends. TASK is JSON, see
configurations.run_of_command. Only RANK 0 prints a document. Needs no TensorFlow.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import psutil

from tf_cnn.lab.output_patterns import Patterns, read_numbers, read_records
from tf_cnn.machine.meters import NoiseMeter
from tf_cnn.machine.run_environment import describe_machine, library_variables
from tf_cnn.results.advice import find_warnings
from tf_cnn.results.document import SCHEMA_VERSION, CommandResult
from tf_cnn.results.sections import WarningRow
from tf_cnn.system.documents import as_json
from tf_cnn.system.errors import RunError, format_error
from tf_cnn.system.limited_process import explain_exit
from tf_cnn.system.place import FOLDER
from tf_cnn.system.tether import adopt_orphans

LEFT_PROCESSES = 'left_processes'
# How long processes that a command leaves may take to end by themselves, and after SIGTERM. The
# launcher waits longer.
_LEFT_SECS, _GRACE_SECS = 1.0, 10.0
_TAIL_CHARACTERS = 65536
# Patterns read this much of the end of the output: a command may print more than the memory holds.
_MAX_OUTPUT_BYTES = 64 << 20


# The exit code, seconds, output, noise, and the processes that a command left behind, by name.
_Process = tuple[int, float, str, Any, Counter[str]]


def main(text: str, command: str, rank: str) -> int:
    adopt_orphans()
    signal.signal(signal.SIGTERM, _exit_once)
    task = json.loads(text)
    environment = _environment(task['variables'])
    machine: Any = describe_machine()
    started_at = datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
    code, seconds, output, noise, leftovers = _run(command, environment)
    # From here on a signal ends a pattern that never ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if code:
        reason, _ = explain_exit(output[-_TAIL_CHARACTERS:], code)
        print(format_error(reason), file=sys.stderr)
        return code if code > 0 else 128 - code
    if rank != '0':
        return 0
    patterns: Patterns = task['patterns']
    try:
        rates, matches = read_numbers('rate', patterns['rate'], output)
        times, further_matches = read_numbers('secs', patterns['secs'], output)
        versions = read_records(patterns['record'], output)
    except RunError as error:
        print(format_error(str(error)), file=sys.stderr)
        return error.exit_code
    result = CommandResult(
        schema_version=SCHEMA_VERSION,
        id=uuid.uuid4().hex,
        flags=task['flags'],
        started_at=started_at,
        seconds=seconds,
        rates=rates,
        times=times,
        matches=matches | further_matches,
        # Other software, and the threads of the command, are unknown.
        machine=machine | {'versions': versions, 'threads': {'intra_op': None, 'inter_op': None}},
        environment=library_variables(environment),
        noise=noise,
    )
    result.warnings = find_warnings(result)
    if leftovers:
        names = ', '.join(f'{count} {name}' for name, count in leftovers.items())
        text = (
            f'the command left processes behind ({names}), which would have disturbed the next run '
            'and were ended; let it wait for them'
        )
        result.warnings.append(WarningRow(LEFT_PROCESSES, text))
    # A new line, even after an unfinished line of the command.
    print(f'\n{json.dumps(as_json(result))}', flush=True)
    return 0


def _run(command: str, environment: Mapping[str, str]) -> _Process:
    """Runs the command, and ends the processes that it leaves behind."""
    meter, output = NoiseMeter(), bytearray()
    try:
        meter.start()
        start = time.monotonic()
        process = subprocess.Popen(
            ['/bin/sh', '-c', command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        assert process.stdout
        copier = threading.Thread(target=_copy, args=(process.stdout.fileno(), output), daemon=True)
        copier.start()
        code = process.wait()
        seconds, noise = time.monotonic() - start, meter.stop()
        psutil.wait_procs(_descendants(), _LEFT_SECS)
        leftovers = Counter(_name(each) for each in _descendants())
    finally:
        _end_descendants()
    copier.join(_GRACE_SECS)
    return code, seconds, output.decode(errors='replace'), noise, leftovers


def _exit_once(number: int, frame: object) -> None:
    # Another signal must not interrupt the end of the command.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of the command: programs beside this Python come last in PATH, since ssh
    starts commands without the user's virtual environment.
    """
    environment = {**os.environ, **variables}
    folders = [environment.get('PATH', os.defpath), os.path.dirname(sys.executable)]
    environment['PATH'] = os.pathsep.join(folders)
    # The parent has added this program's folder, which is not for the command.
    paths = environment.pop('PYTHONPATH', '').split(os.pathsep)
    if paths := [path for path in paths if path != str(FOLDER)]:
        environment['PYTHONPATH'] = os.pathsep.join(paths)
    return environment


def _copy(pipe: int, output: bytearray) -> None:
    """Copies the output of the command to standard output, and keeps it for the patterns."""
    with contextlib.suppress(OSError):
        while data := os.read(pipe, 1 << 16):
            output += data
            if len(output) > 2 * _MAX_OUTPUT_BYTES:
                del output[:-_MAX_OUTPUT_BYTES]
            while data:
                data = data[os.write(1, data) :]


def _descendants() -> list[psutil.Process]:
    """Returns the processes of the command that run; one may end at any time."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            processes += [] if process.status() == psutil.STATUS_ZOMBIE else [process]
    return processes


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return 'a process'


def _end_descendants() -> None:
    """Ends all processes of the command: SIGTERM, then SIGKILL."""
    kill = psutil.Process.kill
    for secs, end in ((_GRACE_SECS, psutil.Process.terminate), (1.0, kill), (0.0, kill)):
        processes = _descendants()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                end(process)
        psutil.wait_procs(processes, secs)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
