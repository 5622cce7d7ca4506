"""The one table of subcommands.

To add a subcommand, write a module in commands/ and add a row here, see docs/extending.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Subcommand:
    """A row of the table. The subcommand NAME is the function main(argv) -> exit code in the module commands.NAME.

    `usage` has the arguments after the name, which commands/options.py checks: X, [X], X ... or [X ...].
    """

    usage: str
    purpose: str


SUBCOMMANDS: Mapping[str, Subcommand] = {
    'cluster': Subcommand('[--flag=value ...] [-- FLAGS]', 'starts a whole cluster, here or on other hosts over ssh'),
    'compare': Subcommand('[RESULT ...] [--flag=value ...]', 'compares results, or runs in turns, with 95 % intervals'),
    'doctor': Subcommand('[--flag=value ...]', 'checks what works on this machine; run it first'),
    'help': Subcommand('[NAME] [--flag=value ...]', 'prints this, every flag, or all about one flag or subcommand'),
    'models': Subcommand('[PATTERN] [--flag=value ...]', 'lists the networks and what they cost'),
    'predict': Subcommand('RESULT ... [--flag=value ...]', 'predicts larger clusters, and other models on them'),
    'records': Subcommand('[--flag=value ...]', 'makes TFRecord shards from a folder of images, or checks shards'),
    'report': Subcommand('DIR ... [--flag=value ...]', 'makes one HTML page of results, with plots'),
    'sweep': Subcommand('[FILE] [--flag=value ...] [-- FLAGS]', 'measures many configurations, and prints one table'),
    'version': Subcommand('', 'prints the versions of this program, TensorFlow and Python'),
}

# What left: a subcommand, or a flag of one, and what to use instead.
LEFT: Mapping[str, str] = {
    'checkpoint': 'tf.train.list_variables(FOLDER) of TensorFlow lists the variables of a checkpoint',
    'completion': 'help all lists the flags',
    'all_reduce': 'write sweep exchange, or sweep exchange -- --hosts=a,b',
    'predict --from': 'write the result without a flag: predict result.json --network=10Gbit',
    'predict --fit': 'write the folder without a flag: predict alone.json DIR',
    'predict --links': 'give the results of sweep exchange: predict alone.json sweep-exchange-TIME/',
    'doctor --quick': 'it takes half a minute; write --only=gpu,tensorflow for its first seconds',
    'doctor --device': 'GPUs are checked where there are any; CUDA_VISIBLE_DEVICES= before the command hides them',
    'cluster --launcher': 'with --hosts the processes start over ssh; docs/launchers.md has scripts for Slurm',
}
