"""`tf_cnn_benchmarks.py completion`: prints a script with which a shell completes flags and values. Without TensorFlow.

Libraries for this, such as argcomplete, start the program at each press of the key and need a parser of their own kind.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commands.options import Arguments, Declaration, Positional
from commands.subcommands import SUBCOMMANDS
from errors import UsageError, nearest
from models.registry import MODELS
from params.all_reduce_spec import ALGORITHMS
from params.completion_script import QUESTIONS, SHELLS, CompletionWords
from params.original import TABLE
from params.spec import FlagSpec, specs_of
from params.table import SPECS
from sweeps.sweep_file import shipped


@dataclass(frozen=True)
class CompletionOptions:
    """The subcommand has no flags."""


DECLARATION = Declaration(
    'completion',
    CompletionOptions,
    f'Prints a script with which a shell completes subcommands, flags and their values: for {", ".join(SHELLS)}. The '
    'line to put into its start-up file is in the first lines of the script.',
    examples=tuple(SHELLS),
    positional=Positional('SHELL', f'One of {", ".join(SHELLS)}.'),
)
# It is not in the table of flags, since absl reads the file.
_FLAGFILE = FlagSpec('flagfile', str, help='File with flags, one on each line.')


def main(argv: Sequence[str]) -> int:
    """Runs `completion` with the arguments in argv; returns the exit code.

    Raises:
      UsageError: an argument is wrong, or there is no script for the shell.
    """
    return DECLARATION.run(argv, _print)


def _print(arguments: Arguments[CompletionOptions]) -> int:
    (shell,) = arguments.positional
    if shell not in SHELLS:
        near = nearest(shell, SHELLS)
        hint = f'did you mean {near}?' if near else f'write one of {", ".join(SHELLS)}'
        raise UsageError(f'{shell}: there is no script for this shell; {hint}')
    print(SHELLS[shell](_words_of_run(), _words_of_subcommands()), end='')
    return 0


def _words_of_run() -> CompletionWords:
    values = {'model': MODELS.list_models(), 'all_reduce_spec': tuple(ALGORITHMS)}
    return CompletionWords('', {**QUESTIONS, _FLAGFILE.name: _FLAGFILE, **SPECS}, values)


def _words_of_subcommands() -> Mapping[str, CompletionWords]:
    arguments = {
        'completion': tuple(SHELLS),
        'help': ('all', *SPECS, *(name for name in TABLE if name not in SPECS), *SUBCOMMANDS),
        'models': MODELS.list_models(),
        'sweep': tuple(shipped()),
    }
    declarations = {name: importlib.import_module(f'commands.{name}').DECLARATION for name in SUBCOMMANDS}
    return {
        name: CompletionWords(
            SUBCOMMANDS[name].purpose,
            {'help': QUESTIONS['help'], **specs_of(declaration.options)},
            {},
            arguments.get(name, ()),
            takes_files=declaration.positional is not None and declaration.positional.is_path,
            passes_on=declaration.rest is not None,
        )
        for name, declaration in declarations.items()
    }
