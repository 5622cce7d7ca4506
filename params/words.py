"""Splits a command line into flags and other words, by absl, with which the original program reads its flags."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from errors import UsageError, format_flag, read_regular
from params.spec import FlagSpec


@dataclass(frozen=True)
class Words:
    """The words of a command line, not yet read as values.

    Attributes:
      texts: the text of each given flag by name; of a repeated flag all of them, of another one the last.
      others: the words that are not flags; a word after an unknown flag, which may be its value, is left out.
      mistakes: one line for each flag that lacks its value, or cannot have one.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    others: tuple[str, ...]
    unknown: tuple[str, ...]
    mistakes: tuple[str, ...]


def split_words(argv: Sequence[str], known: Mapping[str, FlagSpec], see: str = 'see --help') -> Words:
    """Splits a command line into flags and other words, in the forms of absl.

    These are --name=value, --name value, --switch, --noswitch, one dash instead of two, --flagfile=FILE,
    --undefok=NAME, and --, which ends the flags. `see` tells where to read more. Raises UsageError if a --flagfile
    cannot be read.
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
            spec = known.get(word.lstrip('-'))
            expects = f'it must be {spec.expects}; ' if spec else ''
            mistakes.append(f'{word}: it has no value; {expects}write {word}=VALUE, {see}')
        except ValueError as error:
            word = str(error).removesuffix(' does not take an argument')
            mistakes.append(f'{word}: it takes no value; write {word.partition("=")[0]}')
            words.remove(word)
    end = others.index('--') if '--' in others else len(others)
    unknown = [word for word in others[:end] if re.match('--?[^-=]', word)]
    return Words(
        {name: tuple(found) if known[name].repeated else found[-1] for name, found in texts.items()},
        tuple(
            word
            for before, word in zip(['', *others], others, strict=False)
            if word not in unknown and word != '--' and (before not in unknown or '=' in before)
        ),
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
    """Returns the words, with those of each --flagfile in its place."""
    path = ''
    try:
        for number, word in enumerate(argv):
            if named := re.fullmatch('--?flagfile(=.*)?', word):
                path = named[1][1:].strip() if named[1] else ''.join(argv[number + 1 : number + 2])
                # absl would name neither the file nor an end for a pipe.
                if path:
                    read_regular(os.path.expanduser(path)).decode()
        return _flags_of(known, {}).read_flags_from_files(argv)
    except UnicodeDecodeError as error:
        reason = f'it is not UTF-8 (byte {error.start})'
    except (flags.Error, OSError, ValueError) as error:
        reason = f'it cannot be read ({(getattr(error, "strerror", None) or str(error)).lower()})'
    raise UsageError(
        f'{format_flag("flagfile", path)}: {reason}; write the name of a text file with a flag on each line'
    )
