"""Contestants that are commands: each turn is a process that writes a result document to a folder."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.turns import Timed, take_turns
from cluster.child_process import ChildProcess, end_of
from errors import UsageError
from results.document import Record, read_file

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))
_LAST_LINES = 40


class RunFailedError(Exception):
    """A run ended with an exit code other than 0; the message is the end of its standard error."""


class Results:
    """The folder of a script's results, with a folder for each contestant and a file for each round."""

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        """Opens a folder; existing results are used again if `keep` is set, otherwise removed."""
        self.folder = folder
        self._keep = keep

    def contestant(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> Callable[[int], Record]:
        """A contestant that runs a command and reads its result.

        Args:
          name: the name of the contestant, also used for its folder.
          argv: the program and its arguments; --result_file is added at the end.
          environ: environment variables in addition to those of this process.

        Returns:
          A function of the number of a round. It raises RunFailedError if the command fails, and UsageError if the
          command left no result.
        """
        folder = self.folder / as_file_name(name)
        if not self._keep:
            for earlier in folder.glob('[0-9][0-9][0-9].json'):
                earlier.unlink()

        def run(number: int) -> Record:
            path = folder / f'{number:03}.json'
            if not (self._keep and path.exists()):
                folder.mkdir(parents=True, exist_ok=True)
                run_command([*argv, f'--result_file={path}'], environ)
            return read_result(path)

        return run

    def compare_line(self, names: Sequence[str]) -> str:
        """Returns the command that compares the results of contestants again, with the first as the baseline."""
        return ' '.join(('python tf_cnn_benchmarks.py compare', *(str(self.folder / as_file_name(n)) for n in names)))


def take_runs(contestants: Mapping[str, Callable[[int], Record]], args: argparse.Namespace) -> dict[str, list[Timed]]:
    """Lets commands take turns; args are the flags of benchmarks.turns.add_flags.

    Raises:
      RunFailedError, UsageError: as for the contestants.
    """
    return take_turns(
        contestants,
        args.rounds,
        max_repeats=args.max_repeats,
        show=lambda run: f'{run.images_per_second:.2f} images/sec',
    )


def exit_code(main: Callable[[], None]) -> int:
    """Runs the main function of a script and returns the exit code; prints a failed run, and returns 1."""
    try:
        main()
    except (RunFailedError, UsageError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def read_result(path: Path) -> Record:
    """Reads the result that a run left.

    Raises:
      RunFailedError: the run failed.
      UsageError: there is no result.
    """
    found = read_file(path)
    if not isinstance(found, Record):
        raise RunFailedError(f'{path}: {found.reason}')
    return found


def run_command(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> float:
    """Runs a command and returns its wall seconds. The command ends if this process does.

    Raises:
      RunFailedError: the exit code was not 0.
    """
    began = time.perf_counter()
    env = {'TF_CPP_MIN_LOG_LEVEL': '2', **os.environ, **(environ or {})}
    with tempfile.TemporaryFile() as log:
        with ChildProcess(argv, stdout=subprocess.DEVNULL, stderr=log, env=env) as child:
            child.wait()
            seconds = time.perf_counter() - began
        end = end_of(log).splitlines()[-_LAST_LINES:]
    if child.exit_code():
        raise RunFailedError('\n'.join([*end, f'{" ".join(argv)}: exit code {child.exit_code()}']))
    return seconds


def as_file_name(name: str) -> str:
    """Replaces the characters in a contestant's name that do not belong in the name of a folder."""
    return ''.join(char if char.isalnum() or char in '.-=' else '_' for char in name)


def add_output(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds --output; the default is a folder of this name in data/benchmarks."""
    parser.add_argument(
        '--output',
        type=Path,
        default=Path('data/benchmarks') / name,
        help='folder for the results; default: %(default)s',
    )
