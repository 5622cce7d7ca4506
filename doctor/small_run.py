"""Runs the program itself, as its user would, and returns the document of the result."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.child_process import ChildProcess, end_of
from cluster.environments import without_clusters
from errors import RunError
from sweeps.limited_process import explain

_PROGRAM = str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py')
# How long a process may take to print its stacks, and to die after SIGKILL.
_ABORT_SECS = 5.0


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command as a user would write it."""
    return ' '.join(['tf_cnn_benchmarks', *arguments])


def run_program(flags: Sequence[str], secs: float, launcher: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the program with these flags, and copies its output to the standard error of this process.

    Args:
      flags: the flags of the run.
      secs: the time limit in seconds.
      launcher: the arguments before the flags, such as ('cluster', '--workers=2', '--').

    Returns:
      The document of --result_file.

    Raises:
      RunError: the program failed (the error quotes its last line), or took longer than secs.
    """
    arguments = [*launcher, *flags]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        path = Path(folder) / 'result.json'
        argv = [sys.executable, _PROGRAM, *arguments, f'--result_file={path}']
        env = without_clusters(os.environ)
        with ChildProcess(argv, stdout=log, stderr=log, env=env, kill_secs=_ABORT_SECS) as child:
            has_ended = child.wait(secs)
            if not has_ended:
                child.abort(_ABORT_SECS)
        output = end_of(log)
        print(output, file=sys.stderr, flush=True)
        if not has_ended:
            raise RunError(f'no answer within {secs:g} s from {command_line(arguments)}')
        if code := child.exit_code():
            raise RunError(f'{explain(output, code)[0]}; the command was {command_line(arguments)}')
        document: dict[str, Any] = json.loads(path.read_text())
        return document


def losses_of(document: dict[str, Any]) -> list[list[float]]:
    """Returns the losses of all steps, for each worker."""
    return [worker['steps']['loss'] for worker in document['workers']]
