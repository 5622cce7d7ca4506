"""Runs small programs as the processes of a cluster, and returns what the launcher prints."""

import contextlib
import io
import os
import select
import sys
from typing import Any

from cluster.launcher import Command, launch
from tests.support.refusals import check_line

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
    """A process that runs Python code after PREAMBLE."""
    return Command(name, (sys.executable, '-I', '-S', '-c', PREAMBLE + code), **more)


# Contained in the lines of standard error in which the launcher reports a started process.
STARTED = ' is process '


def without_starts(err: str) -> list[str]:
    """The lines of a standard error, except those that report a started process."""
    return [line for line in err.splitlines() if STARTED not in line]


def run(*commands: Command, **options: Any) -> tuple[int, list[str], list[str]]:
    """Calls launch; returns its exit code, the lines of standard output, and those of standard error without_starts."""
    out, err = io.StringIO(), io.StringIO()
    code = launch(commands, out=out, err=err, **options)
    return code, out.getvalue().splitlines(), without_starts(err.getvalue())


class Watched:
    """Processes whose end a test awaits, even if they are not its children."""

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
    """Checks a line of standard error that reports an error of the launcher."""
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: error: ')


def check_warning(line: str, *facts: object) -> None:
    """Checks a line of standard error with a warning of the launcher."""
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: warning: ')
