"""The table of subcommands.

To add a subcommand, write a module in tf_cnn/cli/ and add a row here, see docs/extending.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Subcommand:
    """The row of a subcommand; main in tf_cnn.cli.NAME is a function of its arguments that returns
    the exit code.

    Attributes:
      usage: the arguments after the name: X, [X], X ... or [X ...]. tf_cnn/cli/options.py checks
        their number.
      purpose: a phrase that begins with a verb.
    """

    usage: str
    purpose: str


SUBCOMMANDS: Mapping[str, Subcommand] = {
    'cluster': Subcommand(
        '[--flag=value ...] [-- FLAGS]',
        'starts a whole cluster, here or on other hosts over ssh',
    ),
    'compare': Subcommand(
        '[RESULT ...] [--flag=value ...]',
        'compares results, or two runs, with 95 % intervals',
    ),
    'doctor': Subcommand(
        '[--flag=value ...]',
        'checks what works on this machine; run it first',
    ),
    'help': Subcommand(
        '[NAME] [--flag=value ...]',
        'prints this text, every flag, or all about one flag or subcommand',
    ),
    'models': Subcommand(
        '[PATTERN] [--flag=value ...]',
        'lists the networks and their costs',
    ),
    'records': Subcommand(
        '[--flag=value ...]',
        'makes TFRecord shards from a folder of images, or checks shards',
    ),
    'report': Subcommand(
        'DIR ... [--flag=value ...]',
        'makes one HTML page of results, with plots',
    ),
    'sweep': Subcommand(
        '[FILE] [--flag=value ...] [-- FLAGS]',
        'measures many configurations, and prints one table',
    ),
    'version': Subcommand('', 'prints the versions of this program, TensorFlow and Python'),
}

# Former subcommands, and what stands in their place.
REMOVED: Mapping[str, str] = {'predict': 'docs/distributed.md, "How far will it scale?"'}
