"""Runs several commands in one process, one after another, since importing TensorFlow takes longest."""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tf_cnn_benchmarks

DEADLINE_SECS = 120.0
# The descriptors 1 and 2, to which native code writes too, are files during each command.
_SCRIPT = """\
import json, os, sys
import tf_cnn_benchmarks

answers = os.dup(1)
for line in sys.stdin:
    argv, *paths = json.loads(line)
    for descriptor, path in enumerate(paths, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.write(answers, b'%d\\n' % tf_cnn_benchmarks.main(argv))
"""


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code, standard output and standard error."""

    exit_code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The only error, which is the last line."""
        lines = [line for line in self.err.splitlines() if line.startswith('tf_cnn_benchmarks: error: ')]
        assert len(lines) == 1, self.err
        assert 'Traceback' not in self.err
        assert self.err.splitlines()[-1] == lines[0]
        return lines[0]


class Commands:
    """Runs commands in a process whose files are in `folder`; starts a new one after a command that did not end."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2', **environ}
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def _open(self) -> 'subprocess.Popen[str]':
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, '-c', _SCRIPT],
                cwd=Path(tf_cnn_benchmarks.__file__).parent,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process

    def run(self, *argv: str, at: str = '', during: Callable[[], object] | None = None) -> Ended:
        """Runs a command, which must end within DEADLINE_SECS.

        Args:
          argv: the words of the command.
          at: a pattern for the beginning of a line of standard output.
          during: called when there is such a line.
        """
        process = self._open()
        assert process.stdin
        assert process.stdout
        self._count += 1
        out, err = (self._folder / f'{self._count}.{kind}' for kind in ('out', 'err'))
        deadline = threading.Timer(DEADLINE_SECS, process.kill)
        deadline.start()
        try:
            print(json.dumps([argv, str(out), str(err)]), file=process.stdin, flush=True)
            if during:
                while not (out.exists() and re.search(f'^{at}', out.read_text(), re.MULTILINE)):
                    ended, _, _ = select.select([process.stdout], [], [], 0.01)
                    assert not ended, f'no line {at}: {err.read_text()}'
                during()
            code = process.stdout.readline()
        except BaseException:
            self.close()
            raise
        finally:
            deadline.cancel()
        said = out.read_text(), err.read_text()
        print(*said, sep='\n')
        assert code, f'the process ended: {process.wait()}'
        return Ended(int(code), *said)

    def close(self) -> None:
        """Ends the process, even during a command."""
        if self._process:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def running(folder: Path, **environ: str) -> Iterator[Commands]:
    """Starts the process, with these variables besides those of this one. It ends with the block."""
    folder.mkdir(exist_ok=True)
    with contextlib.closing(Commands(folder, environ)) as commands:
        yield commands
