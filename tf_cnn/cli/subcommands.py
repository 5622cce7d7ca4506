"""The table of subcommands.

To add a subcommand, write a module in tf_cnn/cli/ and add a row here, see docs/extending.md.
"""

from collections.abc import Mapping

# What each subcommand does: a phrase that begins with a verb. The module tf_cnn.cli.NAME has its
# DECLARATION, and main, a function of its arguments that returns the exit code.
SUBCOMMANDS: Mapping[str, str] = {
    'cluster': 'starts a whole cluster, here or on other hosts over ssh',
    'compare': 'compares results, or two runs, with 95 % intervals',
    'doctor': 'checks what works on this machine; run it first',
    'help': 'prints this text, every flag, or all about one flag or subcommand',
    'models': 'lists the networks and their costs',
    'records': 'makes TFRecord shards from a folder of images, or checks shards',
    'report': 'makes one HTML page of results, with plots',
    'sweep': 'measures many configurations, and prints one table',
    'version': 'prints the versions of this program, TensorFlow and Python',
}

# Former subcommands, and what stands in their place.
REMOVED: Mapping[str, str] = {'predict': 'docs/distributed.md, "How far will it scale?"'}
