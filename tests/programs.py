"""Small programs as the processes of a cluster, and what the launcher shows of them."""

import contextlib
import io
import os
import select
import sys
from typing import Any

from refusals import check_line

from cluster.launcher import Command, launch

PREAMBLE = """
import json, os, signal, subprocess, sys, threading
def on_sigterm(function):
    def handle(number, frame):
        function()
    signal.signal(signal.SIGTERM, handle)
def wait():
    while True:
        signal.pause()
"""
CORES = sorted(os.sched_getaffinity(0))


def program(name: str, code: str, **more: Any) -> Command:
    """A process that runs Python code, which has the names of PREAMBLE."""
    return Command(name, (sys.executable, '-I', '-S', '-c', PREAMBLE + code), **more)


# In the line of standard error that says which process the launcher has started.
STARTED = ' is process '


def without_starts(err: str) -> list[str]:
    """The lines of a standard error but those that say which process was started."""
    return [line for line in err.splitlines() if STARTED not in line]


def run(*commands: Command, **options: Any) -> tuple[int, list[str], list[str]]:
    """The exit code of launch, the lines of standard output, and of standard error without_starts."""
    out, err = io.StringIO(), io.StringIO()
    code = launch(commands, out=out, err=err, **options)
    return code, out.getvalue().splitlines(), without_starts(err.getvalue())


class Watched:
    """Processes whose end is awaited, whoever reaps them."""

    def __init__(self, stack: contextlib.ExitStack, pids: list[int]) -> None:
        self._descriptors = []
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            self._descriptors.append(descriptor)

    def assert_all_end(self) -> None:
        for descriptor in self._descriptors:
            assert select.select([descriptor], [], [], 30)[0], 'a process was left behind'


def check_error(line: str, *facts: object) -> None:
    """An error of the launcher, in a line of standard error."""
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: error: ')


def check_warning(line: str, *facts: object) -> None:
    """A warning of the launcher, in a line of standard error."""
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: warning: ')
