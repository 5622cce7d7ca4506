"""The one table of subcommands.

To add a subcommand, write a module in commands/ and add a row here, see docs/extending.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Subcommand:
    """A row of the table. The subcommand NAME is the function main(argv) -> exit code in the module
    commands.NAME.

    `usage` has the arguments after the name, which tf_cnn/cli/options.py checks: X, [X], X ... or
    [X ...].
    """

    usage: str
    purpose: str


SUBCOMMANDS: Mapping[str, Subcommand] = {
    'cluster': Subcommand(
        '[--flag=value ...] [-- FLAGS]', 'starts a whole cluster, here or on other hosts over ssh'
    ),
    'compare': Subcommand(
        '[RESULT ...] [--flag=value ...]', 'compares results, or runs in turns, with 95 % intervals'
    ),
    'doctor': Subcommand('[--flag=value ...]', 'checks what works on this machine; run it first'),
    'help': Subcommand(
        '[NAME] [--flag=value ...]', 'prints this, every flag, or all about one flag or subcommand'
    ),
    'models': Subcommand('[PATTERN] [--flag=value ...]', 'lists the networks and what they cost'),
    'predict': Subcommand(
        'RESULT ... [--flag=value ...]', 'predicts larger clusters, and other models on them'
    ),
    'records': Subcommand(
        '[--flag=value ...]', 'makes TFRecord shards from a folder of images, or checks shards'
    ),
    'report': Subcommand(
        'DIR ... [--flag=value ...]', 'makes one HTML page of results, with plots'
    ),
    'sweep': Subcommand(
        '[FILE] [--flag=value ...] [-- FLAGS]', 'measures many configurations, and prints one table'
    ),
    'version': Subcommand('', 'prints the versions of this program, TensorFlow and Python'),
}
