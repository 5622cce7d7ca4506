"""Splits a command line into flags and arguments with absl, as the original program does."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from tf_cnn.flags.spec import FlagSpec
from tf_cnn.system.errors import UsageError

_FLAG = re.compile('--?(?P<name>[^-=][^=]*)(=.*)?', re.DOTALL)
# Typographic characters that text processors and web pages put in place of ASCII: dashes, double
# and single quotes, no-break spaces, and characters without a width.
_DASHES = '\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d'
_DOUBLE_QUOTES = '\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02'
_SINGLE_QUOTES = '\u2018\u2019\u201a\u201b\u2039\u203a\uff07'
_SPACES = '\u00a0\u2007\u202f\u00ad\u200b\u2060\ufeff'
_TO_KEYBOARD = str.maketrans(
    {
        **dict.fromkeys(_DASHES, '-'),
        **dict.fromkeys(_DOUBLE_QUOTES, '"'),
        **dict.fromkeys(_SINGLE_QUOTES, "'"),
        **dict.fromkeys(_SPACES[:3], ' '),
        **dict.fromkeys(_SPACES[3:], ''),
    }
)
_JOINED = re.compile(f'[{_SPACES}]+(?=[-{_DASHES}]+[a-z])')
_DASHED = re.compile(f'(?P<dashes>[-{_DASHES}]+)(?P<name>[^=]*)(?P<value>=?.*)', re.DOTALL)
_QUOTED = re.compile(f'^(=?[{_DOUBLE_QUOTES}{_SINGLE_QUOTES}])|[{_DOUBLE_QUOTES}{_SINGLE_QUOTES}]$')


@dataclass(frozen=True)
class CommandLine:
    """A command line split into flags and arguments; values are still text.

    Attributes:
      texts: the text of each flag by name; a tuple of all texts for a repeated flag, the last text
        for other flags.
      arguments: the words that are neither flags nor values of flags.
      unknown: the names of unknown flags.
      mistakes: one line for each flag without its value, or with a value that it cannot have.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    arguments: tuple[str, ...]
    unknown: tuple[str, ...]
    mistakes: tuple[str, ...]


def split_command_line(argv: Sequence[str], specs: Mapping[str, FlagSpec], see: str) -> CommandLine:
    """Splits a command line into flags and arguments, in the forms of absl.

    The forms are --name=value, --name value, --switch, --noswitch, one dash instead of two,
    --flagfile=FILE, --undefok=NAME, and --, which ends the flags.

    Args:
      see: the advice where to read more, for messages.

    Raises:
      UsageError: a --flagfile cannot be read, or a word has typographic dashes, quotes or spaces.
    """
    texts: dict[str, list[str]] = {}
    absl_flags = flags.FlagValues()
    for name, flag in specs.items():
        absl_flags[name] = flags.Flag(
            _TextCollector(name, texts), None, name, None, '', boolean=flag.type is bool
        )
    try:
        words = absl_flags.read_flags_from_files(argv)
    except (flags.Error, UnicodeDecodeError) as error:
        raise UsageError(
            f'--flagfile: {str(error).removeprefix("ERROR:: ")}; use --flagfile=FILE, a file in '
            'UTF-8 with a flag on each line'
        ) from None
    if altered := [word for word in words if to_keyboard(word) != word]:
        raise UsageError(*map(_describe_altered, altered))
    mistakes = list[str]()
    while True:
        texts.clear()
        try:
            # The first word is the program's name.
            unparsed = absl_flags(['', *words], known_only=True)[1:]
            break
        except flags.Error:
            word = words.pop()
            spec = specs.get(word.lstrip('-'))
            expects = f'it must be {spec.expects}; ' if spec else ''
            mistakes.append(f'{word}: it has no value; {expects}use {word}=VALUE, {see}')
        except ValueError as error:
            word = str(error).removesuffix(' does not take an argument')
            mistakes.append(f'{word}: it takes no value; use {word.partition("=")[0]}')
            words.remove(word)
    separator = unparsed.index('--') if '--' in unparsed else len(unparsed)
    flag_matches = [(word, _FLAG.fullmatch(word)) for word in unparsed[:separator]]
    return CommandLine(
        {
            name: tuple(values) if specs[name].repeated else values[-1]
            for name, values in texts.items()
        },
        (*(word for word, match in flag_matches if not match), *unparsed[separator + 1 :]),
        tuple(dict.fromkeys(match['name'] for _, match in flag_matches if match)),
        tuple(mistakes),
    )


def to_keyboard(word: str) -> str:
    """Returns a word with ASCII characters in place of typographic ones.

    Names of files may contain any characters, so a value changes only if it begins or ends with a
    curly quote or a no-break space, or if such a space joins it to the next flag.
    """
    words = []
    for piece in _JOINED.split(word.strip(_SPACES)):
        if match := _DASHED.fullmatch(piece):
            dashes, name, value = match.groups()
            if not dashes.isascii():
                dashes = '-' if len(name) == 1 else '--'
            words.append(dashes + name.translate(_TO_KEYBOARD) + _plain_quotes(value))
        else:
            words.append(_plain_quotes(piece))
    return ' '.join(words)


def _plain_quotes(value: str) -> str:
    return _QUOTED.sub(lambda match: match[0].translate(_TO_KEYBOARD), value)


def _describe_altered(word: str) -> str:
    word_text = word if word.isprintable() else repr(word)
    advice = f'use {to_keyboard(word)}' if to_keyboard(word) else 'remove it'
    return (
        f'{word_text}: a text processor or web page has altered its dashes, quotes or '
        f'spaces; {advice}'
    )


class _TextCollector(flags.ArgumentParser[str]):
    """Collects the texts of a flag in the order of the command line, without converting them."""

    def __init__(self, name: str, texts: dict[str, list[str]]) -> None:
        self._name, self._texts = name, texts

    def parse(self, argument: str) -> str:
        self._texts.setdefault(self._name, []).append(argument)
        return argument
