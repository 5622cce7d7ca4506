"""Splits a command line into flags and other words, by absl, with which the original program reads its flags."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from errors import UsageError, spelled
from params.spec import FlagSpec


@dataclass(frozen=True)
class Words:
    """The words of a command line, not yet read as values.

    Attributes:
      texts: the text of each given flag by name; of a repeated flag all of them, of another one the last.
      others: the words that are not flags.
      unknown: the names of unknown flags; if there are any, others may be their values.
      mistakes: one line for each flag that lacks its value, or cannot have one.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    others: tuple[str, ...]
    unknown: tuple[str, ...]
    mistakes: tuple[str, ...]


def split_words(argv: Sequence[str], known: Mapping[str, FlagSpec]) -> Words:
    """Splits a command line into flags and other words, in the forms of absl.

    These are --name=value, --name value, --switch, --noswitch, one dash instead of two, --flagfile=FILE,
    --undefok=NAME, and --, which ends the flags.

    Raises:
      UsageError: a --flagfile cannot be read.
    """
    words, mistakes = _expanded(argv, known), list[str]()
    while True:
        texts: dict[str, list[str]] = {}
        try:
            # The first word is the program's name.
            others = _flags_of(known, texts)(['', *words], known_only=True)[1:]
            break
        except flags.Error:
            word = words.pop()
            mistakes.append(
                f'{word}: it has no value; it must be {known[word.lstrip("-")].expects}; write {word}=VALUE'
            )
        except ValueError as error:
            word = str(error).split(' ')[0]
            mistakes.append(f'{word}: it takes no value; write {word.partition("=")[0]}')
            words = [other for other in words if other != word]
    end = others.index('--') if '--' in others else len(others)
    unknown = [word for word in others[:end] if re.match('--?[^-=]', word)]
    return Words(
        {name: tuple(found) if known[name].repeated else found[-1] for name, found in texts.items()},
        tuple(word for word in others if word not in unknown and word != '--'),
        tuple(dict.fromkeys(word.lstrip('-').partition('=')[0] for word in unknown)),
        tuple(mistakes),
    )


class _Text(flags.ArgumentParser[str]):
    """Notes each text of a flag, in the order of the command line; it is read as its own type later."""

    def __init__(self, name: str, texts: dict[str, list[str]]) -> None:
        self._name, self._texts = name, texts

    def parse(self, argument: str) -> str:
        self._texts.setdefault(self._name, []).append(argument)
        return argument


def _flags_of(known: Mapping[str, FlagSpec], texts: dict[str, list[str]]) -> flags.FlagValues:
    values = flags.FlagValues()
    for name, spec in known.items():
        values[name] = flags.Flag(_Text(name, texts), None, name, None, '', boolean=spec.type is bool)
    return values


def _expanded(argv: Sequence[str], known: Mapping[str, FlagSpec]) -> list[str]:
    """The words, with those of each --flagfile in its place."""
    try:
        return _flags_of(known, {}).read_flags_from_files(argv)
    except flags.CantOpenFlagFileError as error:
        cause = error.__context__
        path, reason = (cause.filename, cause.strerror) if isinstance(cause, OSError) else ('', str(error))
        line = f'{spelled("flagfile", path)}: it cannot be read ({reason})'
    except (flags.Error, ValueError) as error:
        line = f'--flagfile: it cannot be read ({error})'
    raise UsageError(f'{line}; write the name of a text file with a flag on each line')
