"""How every subcommand declares its options, reads them and prints its --help. Without TensorFlow.

A module of commands/ has a frozen dataclass of params.spec.flag() fields, a Declaration with it, and main(argv), which
returns DECLARATION.run(argv, command); see commands/models.py.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from commands.subcommands import LEFT as LEFT_SUBCOMMANDS
from errors import Refusals, UsageError, nearest
from params.older_names import LEFT
from params.spec import FlagSpec, Value, asks_for_help, expand, specs_of
from params.words import split_words

OptionsT = TypeVar('OptionsT')

_PROGRAM = 'tf_cnn_benchmarks'
_COLUMNS = 100


@dataclass(frozen=True)
class Positional:
    """The arguments that are not flags.

    Attributes:
      name: one of them in the usage line, in capitals.
      help: ends with a full stop.
      at_most: None if there is no limit.
      is_path: whether they are paths, in which ~ is expanded.
    """

    name: str
    help: str
    at_least: int = 1
    at_most: int | None = 1
    is_path: bool = False

    @property
    def usage(self) -> str:
        """Their part of the usage line: 'PATH', '[PATTERN]', 'FILE FILE ...'."""
        if self.at_most is None:
            repeated = ' '.join([self.name] * max(self.at_least, 1) + ['...'])
            return repeated if self.at_least else f'[{repeated}]'
        return ' '.join([self.name] * self.at_least + [f'[{self.name}]'] * (self.at_most - self.at_least))


@dataclass(frozen=True)
class Rest:
    """The arguments after --, which the subcommand passes on; what describes them, in the plural."""

    name: str
    what: str


@dataclass(frozen=True)
class Arguments(Generic[OptionsT]):
    """The arguments of a subcommand, read.

    Attributes:
      given: the names of the flags that were written.
      rest: the arguments after --, unread; empty without a Rest.
    """

    options: OptionsT
    given: frozenset[str]
    positional: tuple[str, ...]
    rest: tuple[str, ...]


@dataclass(frozen=True)
class Declaration(Generic[OptionsT]):
    """Describes the arguments of a subcommand.

    Attributes:
      options: a dataclass of params.spec.flag() fields.
      description: the first paragraph of its --help.
      examples: command lines, without the program and the subcommand.
      details: the paragraphs after the examples in its --help, with blank lines between them.
    """

    name: str
    options: type[OptionsT]
    description: str
    examples: tuple[str, ...] = ()
    details: str = ''
    positional: Positional | None = None
    rest: Rest | None = None

    @property
    def usage(self) -> str:
        """The arguments in the usage line; the table in commands/subcommands.py repeats them."""
        parts = [
            self.positional.usage if self.positional else None,
            '[--flag=value ...]' if specs_of(self.options) else None,
            f'[-- {self.rest.name}]' if self.rest else None,
        ]
        return ' '.join(part for part in parts if part)

    def run(self, argv: Sequence[str], command: Callable[[Arguments[OptionsT]], int]) -> int:
        """Prints the help if argv requests it, else runs command with the arguments; returns the exit code."""
        own = argv[: argv.index('--')] if '--' in argv else argv
        if asks_for_help(own):
            print(self.format_help())
            return 0
        return command(self.parse(argv))

    def parse(self, argv: Sequence[str]) -> Arguments[OptionsT]:
        own, rest = self._split(argv)
        specs = specs_of(self.options)
        words = split_words(own, specs, self._see)
        refusals = Refusals()
        refusals.add(*words.mistakes, *(self._unknown(name, specs) for name in words.unknown))
        positional = tuple(word for word, _ in words.others)
        if self.positional and self.positional.is_path:
            positional = tuple(map(expand, positional))
        if not words.mistakes and not words.unknown:
            # If a flag is unknown, a word after it may be its value.
            with refusals.collecting():
                self._check_count(positional)
        read: dict[str, Value | tuple[Value, ...]] = {}
        for name, text in words.texts.items():
            with refusals.collecting():
                # This gives the same errors as for the flags of a run.
                spec = specs[name]
                read[name] = spec.read(text) if isinstance(text, str) else tuple(one and spec.read(one) for one in text)
        refusals.raise_all()
        names = {field.name.removesuffix('_'): field.name for field in fields(cast(Any, self.options))}
        # mypy cannot see that the spec of each field read its value.
        options = self.options(**{names[name]: value for name, value in read.items()})
        return Arguments(options, frozenset(read), positional, rest)

    def format_help(self) -> str:
        """Returns the text of --help: usage, description, examples, details, each argument; at most 100 columns."""
        # Imported here because only the help needs this module, which loads every flag of a run.
        from params.help_text import flag_help

        parts = [f'usage: {_PROGRAM} {self.name} {self.usage}'.rstrip(), _filled(self.description)]
        if self.examples:
            parts.append('\n'.join(f'  {_PROGRAM} {self.name} {example}'.rstrip() for example in self.examples))
        if self.details:
            parts += [_filled(paragraph) for paragraph in self.details.split('\n\n')]
        entries = [flag_help(spec) for spec in specs_of(self.options).values()]
        if self.positional:
            entries.insert(0, f'  {self.positional.name}\n{_filled(self.positional.help, 6)}')
        return '\n\n'.join([*parts, '\n'.join(entries)]).rstrip()

    @property
    def _see(self) -> str:
        return f'see {self.name} --help'

    def _split(self, argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
        if not self.rest or '--' not in argv:
            return list(argv), ()
        if argv.count('--') > 1:
            raise UsageError(
                f'--: it was given more than once; write it once, between the flags of {self.name} and {self.rest.what}'
            )
        end = argv.index('--')
        return list(argv[:end]), tuple(argv[end + 1 :])

    def _check_count(self, given: Sequence[str]) -> None:
        if not self.positional:
            if given:
                hint = f'write {self.rest.what} after --, ' if self.rest else ''
                texts = (name for name, spec in specs_of(self.options).items() if spec.type is str and not spec.choices)
                example = next((f'--{name}={given[0]}' for name in texts), '--name=value')
                raise UsageError(f'{given[0]}: {self.name} takes flags only, such as {example}; {hint}{self._see}')
            return
        at_least, at_most = self.positional.at_least, self.positional.at_most
        if len(given) < at_least:
            count = f'{len(given)} given' if given else 'none was given'
            raise UsageError(f'{self.name}: {count}; write {self.name} {self.positional.usage}, {self._see}')
        if at_most is not None and len(given) > at_most:
            raise UsageError(
                f'{given[at_most]}: {self.name} takes {self.positional.usage} only; leave it out, {self._see}'
            )

    def _unknown(self, name: str, specs: Mapping[str, FlagSpec]) -> str:
        near = nearest(name, specs)
        if left := LEFT_SUBCOMMANDS.get(f'{self.name} --{name}') or LEFT.get(name):
            hint = left
        elif near:
            hint = f'did you mean --{near}?'
        else:
            hint = f'write {self.rest.what} after --, {self._see}' if self.rest else self._see
        return f'--{name}: {self.name} has no such flag; {hint}'


def _filled(text: str, columns: int = 0) -> str:
    return textwrap.fill(text, _COLUMNS, initial_indent=' ' * columns, subsequent_indent=' ' * columns)
