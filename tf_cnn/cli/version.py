"""`tf_cnn_benchmarks.py version`: prints the versions. Does not import TensorFlow."""

import platform

from tf_cnn.cli.options import Arguments, Declaration, NoOptions
from tf_cnn.machine.run_environment import git_commit, short_commit, tensorflow_version
from tf_cnn.results import VERSION

DECLARATION = Declaration(
    'version', NoOptions, details='--version and -V print the same. A git checkout adds its commit.'
)


@DECLARATION.main
def main(_: Arguments[NoOptions]) -> int:
    commit = git_commit()
    versions = [
        *([f'commit {short_commit(commit)}'] if commit else []),
        f'TensorFlow {tensorflow_version() or "unknown"}',
        f'Python {platform.python_version()}',
    ]
    print(f'tf_cnn_benchmarks {VERSION} ({", ".join(versions)})')
    return 0
