"""Splits a command line into flags and other words, by absl, with which the original program reads its flags."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from errors import UsageError
from params.spec import FlagSpec

_FLAG = re.compile('--?(?P<name>[^-=][^=]*)(=.*)?', re.DOTALL)


@dataclass(frozen=True)
class Words:
    """The words of a command line, not yet read as values.

    Attributes:
      texts: the text of each given flag by name; of a repeated flag all of them, of another one the last.
      others: the words that are neither flags nor their values.
      unknown: the names of unknown flags.
      mistakes: one line for each flag that lacks its value, or cannot have one.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    others: tuple[str, ...]
    unknown: tuple[str, ...]
    mistakes: tuple[str, ...]


def split_words(argv: Sequence[str], known: Mapping[str, FlagSpec], see: str) -> Words:
    """Splits a command line into flags and other words, in the forms of absl.

    These are --name=value, --name value, --switch, --noswitch, one dash instead of two, --flagfile=FILE,
    --undefok=NAME, and --, which ends the flags. `see` tells where to read more.

    Raises:
      UsageError: a --flagfile cannot be read.
    """
    try:
        words = _flags_of(known, {}).read_flags_from_files(argv)
    except (flags.Error, UnicodeDecodeError) as error:
        raise UsageError(
            f'--flagfile: {str(error).removeprefix("ERROR:: ")}; write --flagfile=FILE, a file in UTF-8 with a flag on '
            'each line'
        ) from None
    mistakes = list[str]()
    while True:
        texts: dict[str, list[str]] = {}
        try:
            # The first word is the program's name.
            left = _flags_of(known, texts)(['', *words], known_only=True)[1:]
            break
        except flags.Error:
            word = words.pop()
            spec = known.get(word.lstrip('-'))
            expects = f'it must be {spec.expects}; ' if spec else ''
            mistakes.append(f'{word}: it has no value; {expects}write {word}=VALUE, {see}')
        except ValueError as error:
            word = str(error).removesuffix(' does not take an argument')
            mistakes.append(f'{word}: it takes no value; write {word.partition("=")[0]}')
            words.remove(word)
    end = left.index('--') if '--' in left else len(left)
    rest = [(word, _FLAG.fullmatch(word)) for word in left[:end]]
    return Words(
        {name: tuple(found) if known[name].repeated else found[-1] for name, found in texts.items()},
        (*(word for word, match in rest if not match), *left[end + 1 :]),
        tuple(dict.fromkeys(match['name'] for _, match in rest if match)),
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
