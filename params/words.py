"""Splits a command line into flags and other words, by absl, with which the original program reads its flags."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from errors import UsageError, format_flag, read_regular
from params.spec import FlagSpec

_FLAG = re.compile('--?(?P<name>[^-=][^=]*)(?P<value>=.*)?', re.DOTALL)


@dataclass(frozen=True)
class Words:
    """The words of a command line, not yet read as values.

    Attributes:
      texts: the text of each given flag by name; of a repeated flag all of them, of another one the last.
      others: the words that are not flags, each with the word before it; a word after an unknown flag, which may be its
        value, is left out.
      unknown: the names of unknown flags.
      mistakes: one line for each flag that lacks its value, or cannot have one.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    others: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    mistakes: tuple[str, ...]


def split_words(argv: Sequence[str], known: Mapping[str, FlagSpec], see: str) -> Words:
    """Splits a command line into flags and other words, in the forms of absl.

    These are --name=value, --name value, --switch, --noswitch, one dash instead of two, --flagfile=FILE,
    --undefok=NAME, and --, which ends the flags. `see` tells where to read more.

    Raises:
      UsageError: a --flagfile cannot be read.
    """
    words, mistakes = _expanded(argv, known), list[str]()
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
    end = words.index('--') if '--' in words else len(words)
    before = ['', *words[:end]]
    others = [
        (word, before)
        for word, before in zip(words[:end], before, strict=False)
        if not _FLAG.fullmatch(word) and not _may_be_value(before, known)
    ]
    unknown = (_FLAG.fullmatch(word) for word in (left[: left.index('--')] if '--' in left else left))
    return Words(
        {name: tuple(found) if known[name].repeated else found[-1] for name, found in texts.items()},
        (*others, *((word, '') for word in words[end + 1 :])),
        tuple(dict.fromkeys(found['name'] for found in unknown if found)),
        tuple(mistakes),
    )


def _may_be_value(before: str, known: Mapping[str, FlagSpec]) -> bool:
    """Whether a word may be the value of the one before: an unknown flag, which --undefok may allow."""
    found = _FLAG.fullmatch(before)
    if found is None or found['value']:
        return False
    return found['name'] not in known and found['name'].removeprefix('no') not in known


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
    """The words, each flag with its value in one, and those of each --flagfile in its place."""
    joined = _joined(argv, known)
    _check_files(joined)
    try:
        words = _joined(flags.FlagValues().read_flags_from_files(joined), known)
    except flags.Error as error:
        raise UsageError(f'--flagfile: {error}; write --flagfile=FILE, also in a file') from None
    if '--flagfile' in words:
        raise UsageError('--flagfile: it has no value; write --flagfile=FILE, also in a file')
    return words


def _joined(argv: Sequence[str], known: Mapping[str, FlagSpec]) -> list[str]:
    words, rest = list[str](), iter(argv)
    for word in rest:
        if word == '--':
            return [*words, word, *rest]
        name = word.lstrip('-') if word.startswith('-') else ''
        takes_value = name in ('flagfile', 'undefok') or (name in known and known[name].type is not bool)
        value = next(rest, None) if takes_value else None
        words.append(word if value is None else f'--{name}={value}')
    return words


def _check_files(words: Sequence[str]) -> None:
    """Checks the files of --flagfile, which absl neither names in errors nor refuses if they are endless."""
    waiting, seen = _named_in(words), set[str]()
    while waiting:
        path = waiting.pop(0)
        seen.add(path)
        try:
            lines = read_regular(os.path.expanduser(path)).decode().splitlines()
        except (OSError, ValueError) as error:
            is_text = not isinstance(error, UnicodeDecodeError)
            reason = (getattr(error, 'strerror', None) or str(error)).lower() if is_text else 'it is not UTF-8'
            raise UsageError(
                f'{format_flag("flagfile", path)}: it cannot be read ({reason}); write the name of a text file with a '
                'flag on each line'
            ) from None
        waiting += [inner for inner in _named_in(lines) if inner not in seen]


def _named_in(words: Iterable[str]) -> list[str]:
    found = (re.fullmatch('--?flagfile=(.+)', word) for word in itertools.takewhile(lambda word: word != '--', words))
    return [one[1].strip() for one in found if one]
