"""Declares the options of subcommands, reads them and formats --help. Does not import TensorFlow.

A subcommand is a module of tf_cnn/cli/ with a frozen dataclass of flag() fields, a Declaration that
describes the subcommand, and a function that @DECLARATION.main turns into main(argv); see
tf_cnn/cli/models.py.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.command_line import split_command_line
from tf_cnn.flags.spec import Value, asks_for_help, specs_of
from tf_cnn.system.errors import ErrorCollector, UsageError, nearest

OptionsT = TypeVar('OptionsT')

_RUN_FLAGS = 'the flags of the run'


@dataclass(frozen=True)
class NoOptions:
    """The options of a subcommand without flags."""


@dataclass(frozen=True)
class Arguments(Generic[OptionsT]):
    """The parsed arguments of a subcommand.

    Attributes:
      given_flags: the names of the flags in the command line.
      run_argv: the arguments after --, not parsed; a subcommand passes them on to runs.
    """

    options: OptionsT
    given_flags: frozenset[str]
    positional: tuple[str, ...]
    run_argv: tuple[str, ...]


@dataclass(frozen=True)
class Declaration(Generic[OptionsT]):
    """The arguments of a subcommand. SUBCOMMANDS has its purpose.

    Attributes:
      name: the subcommand.
      options: a dataclass of flag() fields.
      usage: the arguments after the name: X, [X], X ... or [X ...], flags, and flags of a run.
      examples: command lines, without the program and the subcommand.
      details: the paragraphs after the examples in its --help, with blank lines between them.
      positional: describes the positional arguments.
      takes_paths: whether the positional arguments are paths; then ~ is expanded.
      removed: what to use instead of former flags.
    """

    name: str
    options: type[OptionsT]
    usage: str = ''
    examples: tuple[str, ...] = ('',)
    details: str = ''
    positional: str = ''
    takes_paths: bool = False
    removed: Mapping[str, str] = field(default_factory=dict)

    def main(self, command: Callable[[Arguments[OptionsT]], int]) -> Callable[[Sequence[str]], int]:
        """Decorator: turns `command` into main(argv), which prints --help or calls `command`."""

        def main(argv: Sequence[str]) -> int:
            if asks_for_help(argv[: argv.index('--')] if '--' in argv else argv):
                print(self.format_help())
                return 0
            return command(self.parse(argv))

        return main

    def parse(self, argv: Sequence[str]) -> Arguments[OptionsT]:
        subcommand_argv, run_argv = list(argv), tuple[str, ...]()
        if self._takes_run_flags and '--' in argv:
            dashes = subcommand_argv.index('--')
            run_argv = tuple(subcommand_argv[dashes + 1 :])
            subcommand_argv = subcommand_argv[:dashes]
            if '--' in run_argv:
                raise UsageError(f'--: it appears twice; use it once, before {_RUN_FLAGS}')
        specs = specs_of(self.options)
        words = split_command_line(subcommand_argv, specs, self._help_hint)
        errors = ErrorCollector()
        errors.add(*words.mistakes, *(self._describe_unknown(name) for name in words.unknown))
        positional = tuple(
            os.path.expanduser(word) if self.takes_paths else word for word in words.arguments
        )
        # A word after an unknown flag may be its value, so the arguments are not counted then.
        if not words.mistakes and not words.unknown:
            with errors.collecting():
                self._check_count(positional)
        values: dict[str, Value | tuple[Value, ...]] = {}
        for name, text in words.texts.items():
            with errors.collecting():
                # An empty value is an error: it may come from an unset variable of a script, and
                # would silently switch a limit off.
                spec = replace(specs[name], optional=False)
                values[name] = (
                    spec.read(text) if isinstance(text, str) else tuple(map(spec.read, text))
                )
        errors.raise_all()
        # mypy cannot know that the spec of each field has checked its value.
        return Arguments(cast(Any, self.options)(**values), frozenset(values), positional, run_argv)

    def format_help(self) -> str:
        """Returns the text of --help: usage, purpose, examples, details, each argument."""
        # Imported here: only the help needs this module, which loads every flag of a run.
        from tf_cnn.flags.help import flag_help, wrap_text

        purpose, program = SUBCOMMANDS[self.name], f'tf_cnn_benchmarks {self.name}'
        entries = (
            [f'  {self._positional_usage.strip("[] .")}\n{wrap_text(self.positional, 6)}']
            if self.positional
            else []
        )
        paragraphs = [
            f'usage: {program} {self.usage}'.rstrip(),
            f'{purpose[0].upper()}{purpose[1:]}.',
            '\n'.join(f'  {program} {example}'.rstrip() for example in self.examples),
            *(wrap_text(paragraph) for paragraph in self.details.split('\n\n')),
            '\n'.join([*entries, *map(flag_help, specs_of(self.options).values())]),
        ]
        return '\n\n'.join(filter(None, paragraphs))

    @property
    def _positional_usage(self) -> str:
        """The positional arguments in the usage: 'PATH', '[PATTERN]', 'RESULT ...', or ''."""
        return self.usage.partition('[--')[0].strip()

    @property
    def _takes_run_flags(self) -> bool:
        return self.usage.endswith('[-- FLAGS]')

    @property
    def _help_hint(self) -> str:
        return f'see {self.name} --help'

    def _check_count(self, positional: Sequence[str]) -> None:
        usage = self._positional_usage
        if not positional and usage and not usage.startswith('['):
            raise UsageError(
                f'{self.name}: an argument is missing; use {self.name} {usage}, {self._help_hint}'
            )
        if positional and not usage:
            hint = f'put {_RUN_FLAGS} after --, ' if self._takes_run_flags else ''
            raise UsageError(
                f'{positional[0]}: {self.name} takes only flags; {hint}{self._help_hint}'
            )
        if len(positional) > 1 and '...' not in usage:
            raise UsageError(
                f'{positional[1]}: {self.name} takes {usage} only; remove it, {self._help_hint}'
            )

    def _describe_unknown(self, name: str) -> str:
        if name in self.removed:
            return f'--{name}: {self.name} no longer has this flag; {self.removed[name]}'
        near = nearest(name, specs_of(self.options))
        run_flags_hint = f'put {_RUN_FLAGS} after --, ' if self._takes_run_flags else ''
        hint = f'did you mean --{near}?' if near else f'{run_flags_hint}{self._help_hint}'
        return f'--{name}: {self.name} has no such flag; {hint}'
