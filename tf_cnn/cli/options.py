"""How every subcommand declares its options, reads them and prints its --help. Without TensorFlow.

A module of commands/ has a frozen dataclass of params.spec.flag() fields, a Declaration with it,
and a function of the arguments that @DECLARATION.main makes main(argv); see commands/models.py.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.spec import Value, asks_for_help, specs_of
from tf_cnn.flags.words import split_words
from tf_cnn.system.errors import Refusals, UsageError, format_warning, nearest

OptionsT = TypeVar('OptionsT')

_REST = 'the flags of the run'


@dataclass(frozen=True)
class NoOptions:
    """Of a subcommand without flags."""


@dataclass(frozen=True)
class Arguments(Generic[OptionsT]):
    """The arguments of a subcommand, read.

    Attributes:
      given: the names of the flags that were written.
      rest: the arguments after --, unread, of a subcommand that passes them on to runs.
    """

    options: OptionsT
    given: frozenset[str]
    positional: tuple[str, ...]
    rest: tuple[str, ...]


@dataclass(frozen=True)
class Declaration(Generic[OptionsT]):
    """The arguments of the subcommand `name`, as far as its row in the table of subcommands does
    not say them.

    Attributes:
      options: a dataclass of params.spec.flag() fields.
      examples: command lines, without the program and the subcommand.
      details: the paragraphs after the examples in its --help, with blank lines between them.
      positional: describes the arguments that are not flags.
      takes_paths: whether these are paths, in which ~ is expanded.
    """

    name: str
    options: type[OptionsT]
    examples: tuple[str, ...] = ('',)
    details: str = ''
    positional: str = ''
    takes_paths: bool = False

    def main(self, command: Callable[[Arguments[OptionsT]], int]) -> Callable[[Sequence[str]], int]:
        """Makes the main(argv) of a subcommand: prints the help if argv requests it, else runs the
        command.
        """

        def main(argv: Sequence[str]) -> int:
            if asks_for_help(argv[: argv.index('--')] if '--' in argv else argv):
                print(self.format_help())
                return 0
            return command(self.parse(argv))

        return main

    def parse(self, argv: Sequence[str]) -> Arguments[OptionsT]:
        own, rest = list(argv), tuple[str, ...]()
        if self._has_rest and '--' in argv:
            own, rest = own[: own.index('--')], tuple(own[own.index('--') + 1 :])
            if '--' in rest:
                raise UsageError(f'--: it was given more than once; write it once, before {_REST}')
        specs = specs_of(self.options)
        words = split_words(own, specs, self._see)
        refusals = Refusals()
        refusals.add(*words.mistakes, *(self._unknown(name) for name in words.unknown))
        positional = tuple(
            os.path.expanduser(word) if self.takes_paths else word for word in words.others
        )
        # If a flag is unknown, a word after it may be its value.
        if not words.mistakes and not words.unknown:
            with refusals.collecting():
                self._check_count(positional)
        read: dict[str, Value | tuple[Value, ...]] = {}
        for name, text in words.texts.items():
            with refusals.collecting():
                # This gives the same errors as for the flags of a run.
                # An empty value, as of a variable that a script did not set, would turn a gate or a
                # limit off.
                spec = replace(specs[name], optional=False)
                read[name] = (
                    spec.read(text) if isinstance(text, str) else tuple(map(spec.read, text))
                )
        refusals.raise_all()
        # mypy cannot see that the spec of each field read its value.
        return Arguments(cast(Any, self.options)(**read), frozenset(read), positional, rest)

    def format_help(self) -> str:
        """Returns the text of --help: usage, purpose, examples, details, each argument; at most 100
        columns.
        """
        # Imported here because only the help needs this module, which loads every flag of a run.
        from tf_cnn.params.help_text import filled, flag_help

        row, program = SUBCOMMANDS[self.name], f'tf_cnn_benchmarks {self.name}'
        entries = (
            [f'  {self._takes.strip("[] .")}\n{filled(self.positional, 6)}']
            if self.positional
            else []
        )
        parts = [
            f'usage: {program} {row.usage}'.rstrip(),
            f'{row.purpose[0].upper()}{row.purpose[1:]}.',
            '\n'.join(f'  {program} {example}'.rstrip() for example in self.examples),
            *(filled(paragraph) for paragraph in self.details.split('\n\n')),
            '\n'.join([*entries, *map(flag_help, specs_of(self.options).values())]),
        ]
        return '\n\n'.join(filter(None, parts))

    @property
    def _takes(self) -> str:
        """The arguments that are not flags in the usage: 'PATH', '[PATTERN]', 'RESULT ...', or
        nothing.
        """
        return SUBCOMMANDS[self.name].usage.partition('[--')[0].strip()

    @property
    def _has_rest(self) -> bool:
        return SUBCOMMANDS[self.name].usage.endswith('[-- FLAGS]')

    @property
    def _see(self) -> str:
        return f'see {self.name} --help'

    def _check_count(self, given: Sequence[str]) -> None:
        takes = self._takes
        if not given and takes and not takes.startswith('['):
            raise UsageError(f'{self.name}: none was given; write {self.name} {takes}, {self._see}')
        if given and not takes:
            hint = f'write {_REST} after --, ' if self._has_rest else ''
            raise UsageError(f'{given[0]}: {self.name} takes flags only; {hint}{self._see}')
        if len(given) > 1 and '...' not in takes:
            raise UsageError(
                f'{given[1]}: {self.name} takes {takes} only; leave it out, {self._see}'
            )

    def _unknown(self, name: str) -> str:
        near = nearest(name, specs_of(self.options))
        passed_on = f'write {_REST} after --, ' if self._has_rest else ''
        hint = f'did you mean --{near}?' if near else f'{passed_on}{self._see}'
        return f'--{name}: {self.name} has no such flag; {hint}'


def warn(*lines: str) -> None:
    for line in lines:
        print(format_warning(line), file=sys.stderr, flush=True)
