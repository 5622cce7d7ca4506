"""`tf_cnn_benchmarks.py help`: prints --help, or the description of one flag or subcommand. Without TensorFlow."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from commands.options import Arguments, Declaration, Positional
from commands.subcommands import SUBCOMMANDS
from errors import UsageError
from params.spec import asked_for_help, flag


@dataclass(frozen=True)
class HelpOptions:
    markdown: bool = flag(False, 'Print a page in Markdown: every flag of a run and of the original program.')


DECLARATION = Declaration(
    'help',
    HelpOptions,
    'Prints --help; with all, every flag; with the name of a flag, all about it; with the name of a subcommand, its '
    '--help.',
    examples=('all', 'batch_size', 'records', '--markdown > flags.md'),
    positional=Positional('NAME', 'A flag of a run or of the original program, a subcommand, or all.', at_least=0),
)


def main(argv: Sequence[str]) -> int:
    from params.descriptions import is_known

    # `help --batch_size` means `help batch_size`.
    own = [word.lstrip('-') if word.startswith('-') and is_known(word) else word for word in argv]
    return DECLARATION.run(own, _print)


def show(argv: Sequence[str]) -> int:
    """Prints the help that --help or --help=NAME in a command line without a subcommand requests."""
    name = asked_for_help(argv)
    return _print(Arguments(HelpOptions(), frozenset(), (name,) if name else (), ()))


def _print(arguments: Arguments[HelpOptions]) -> int:
    if arguments.options.markdown:
        from params.help_text import format_page

        if arguments.positional:
            raise UsageError(f'--markdown: it prints all flags; leave {arguments.positional[0]} out, see help --help')
        print(format_page(), end='')
    elif arguments.positional in ((), ('all',)):
        from params.help_text import format_help

        print(format_help(SUBCOMMANDS, everything=bool(arguments.positional)))
    elif (name := arguments.positional[0]) in SUBCOMMANDS:
        print(importlib.import_module(f'commands.{name}').DECLARATION.format_help())
    else:
        from params.descriptions import describe_flag
        from params.help_text import format_description

        print(format_description(describe_flag(name, SUBCOMMANDS)))
    return 0
