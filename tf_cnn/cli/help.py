"""`tf_cnn_benchmarks.py help`: describes the program, a flag or a subcommand.

Does not import TensorFlow.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from absl import flags

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.spec import HELP_XML, flag, requested_help_topic
from tf_cnn.system.errors import UsageError


@dataclass(frozen=True)
class HelpOptions:
    markdown: bool = flag(
        False, 'Print a page in Markdown with every flag of a run and of the original program.'
    )
    variable_mgr_file: str | None = flag(
        None,
        'Python file that adds your own modes (--variable_update), see docs/extending.md.',
        is_path=True,
    )


DECLARATION = Declaration(
    'help',
    HelpOptions,
    usage='[NAME] [--flag=value ...]',
    examples=('all', 'batch_size', 'records', '--markdown > flags.md'),
    positional='A flag of a run or of the original program, a subcommand, or all. Without an '
    'argument, help prints the same as --help.',
)


def main(argv: Sequence[str]) -> int:
    from tf_cnn.plan.original_flags import FLAGS

    # `help --batch_size` means `help batch_size`.
    words = [word.lstrip('-') if word.lstrip('-') in FLAGS else word for word in argv]
    return DECLARATION.main(_print_help)(words)


def print_requested_help(argv: Sequence[str]) -> int:
    """Prints the help for --help or --help=NAME in a command line without a subcommand."""
    from tf_cnn.plan.parsing import read_modes_of

    read_modes_of(argv)
    if {*argv} & {*HELP_XML}:
        return _print_xml()
    name = requested_help_topic(argv)
    return _print_help(Arguments(HelpOptions(), frozenset(), (name,) if name else (), ()))


def _print_xml() -> int:
    """Prints all flags in the XML of absl, which other programs read."""
    from tf_cnn.plan.original_flags import FLAGS

    values = flags.FlagValues()
    define = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    for name, spec in FLAGS.items():
        define[spec.type](name, spec.default, spec.help, flag_values=values)
    values.write_help_in_xml_format()
    return 0


def _print_help(arguments: Arguments[HelpOptions]) -> int:
    from models.registry import MODELS
    from tf_cnn.cli.help_text import describe_flag, format_help, format_page
    from tf_cnn.managers.user_modes import read_modes

    if arguments.options.variable_mgr_file:
        read_modes(arguments.options.variable_mgr_file)
    name = arguments.positional[0] if arguments.positional else None
    if arguments.options.markdown:
        if name:
            raise UsageError(f'--markdown: it prints all flags; remove {name}, see help --help')
        print(format_page(), end='')
    elif name in (None, 'all'):
        print(format_help(MODELS.list_models() if name == 'all' else ()))
    elif name in SUBCOMMANDS:
        print(importlib.import_module(f'tf_cnn.cli.{name}').DECLARATION.format_help())
    else:
        print(describe_flag(str(name)))
    return 0
