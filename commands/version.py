"""`tf_cnn_benchmarks.py version`: prints the versions of the program, TensorFlow and Python. Without TensorFlow."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from commands.options import Arguments, Declaration
from machine.surroundings import git_commit, tensorflow_version
from results import VERSION


@dataclass(frozen=True)
class VersionOptions:
    """The subcommand has no flags."""


DECLARATION = Declaration(
    'version',
    VersionOptions,
    'Prints the versions of this program, TensorFlow and Python, as --version and -V do, and the commit of the source.',
    examples=('',),
)


def main(argv: Sequence[str]) -> int:
    return DECLARATION.run(argv, _print)


def _print(_: Arguments[VersionOptions]) -> int:
    commit = git_commit()
    parts = [
        *([f'commit {commit[:12]}'] if commit else []),
        f'TensorFlow {tensorflow_version() or "unknown"}',
        f'Python {platform.python_version()}',
    ]
    print(f'tf_cnn_benchmarks {VERSION} ({", ".join(parts)})')
    return 0
