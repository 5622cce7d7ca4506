"""The table of subcommands.

To add a subcommand, write a module in tf_cnn/cli/ and add a row here, see docs/extending.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Subcommand:
    """A row of the table.

    Attributes:
      main: a function of the arguments that returns the exit code, 'module:function'.
      usage: the arguments after the name: X, [X], X ... or [X ...]. tf_cnn/cli/options.py checks
        their number.
      purpose: a phrase that begins with a verb.
    """

    main: str
    usage: str
    purpose: str


SUBCOMMANDS: Mapping[str, Subcommand] = {
    'cluster': Subcommand(
        'tf_cnn.cli.cluster:main',
        '[--flag=value ...] [-- FLAGS]',
        'starts a whole cluster, here or on other hosts over ssh',
    ),
    'compare': Subcommand(
        'tf_cnn.cli.compare:main',
        '[RESULT ...] [--flag=value ...]',
        'compares results, or two runs, with 95 % intervals',
    ),
    'doctor': Subcommand(
        'tf_cnn.cli.doctor:main',
        '[--flag=value ...]',
        'checks what works on this machine; run it first',
    ),
    'help': Subcommand(
        'tf_cnn.cli.help:main',
        '[NAME] [--flag=value ...]',
        'prints this text, every flag, or all about one flag or subcommand',
    ),
    'models': Subcommand(
        'tf_cnn.cli.models:main',
        '[PATTERN] [--flag=value ...]',
        'lists the networks and their costs',
    ),
    'records': Subcommand(
        'tf_cnn.cli.records:main',
        '[--flag=value ...]',
        'makes TFRecord shards from a folder of images, or checks shards',
    ),
    'report': Subcommand(
        'tf_cnn.cli.report:main',
        'DIR ... [--flag=value ...]',
        'makes one HTML page of results, with plots',
    ),
    'sweep': Subcommand(
        'tf_cnn.cli.sweep:main',
        '[FILE] [--flag=value ...] [-- FLAGS]',
        'measures many configurations, and prints one table',
    ),
    'version': Subcommand(
        'tf_cnn.cli.version:main', '', 'prints the versions of this program, TensorFlow and Python'
    ),
}

# Former subcommands, and what stands in their place.
REMOVED: Mapping[str, str] = {'predict': 'docs/distributed.md, "How far will it scale?"'}
