"""Splits a command line into flags and other words. Does not import TensorFlow.

The forms are those of absl, with which the original program reads its flags: --name=value, --name value, --switch,
--noswitch, one dash instead of two, --flagfile=FILE, and --, which ends the flags.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from errors import UsageError
from params.flag_files import check_flag_files
from params.spec import FlagSpec


@dataclass(frozen=True)
class Words:
    """The words of a command line, not yet read as values.

    Attributes:
      texts: the text of each given flag, by name; of a repeated flag, the last one.
      others: the words that are not flags, each with the switch directly before it, or None.
      mistakes: one line for each flag that is unknown, lacks its value, or has a value that it cannot take.
    """

    texts: dict[str, str]
    others: tuple[tuple[str, str | None], ...]
    mistakes: tuple[str, ...]


# Long, because it is one loop over the forms of a word, which share what the word before allows.
def split_words(
    argv: Sequence[str],
    known: Mapping[str, FlagSpec],
    switches: Collection[str],
    *,
    unknown: Callable[[str], str],
    see: str,
) -> Words:
    """Splits a command line into flags and other words.

    Args:
      known: all flags by name.
      switches: the flags that need no value.
      unknown: returns the message about a flag of another name.
      see: where to read more, for messages.

    Raises:
      UsageError: a --flagfile cannot be read.
    """
    check_flag_files(argv)
    if argv and argv[-1] in ('--flagfile', '-flagfile'):
        raise UsageError(f'{argv[-1]}: it has no value; write {argv[-1]}=FILE, {see}')
    remaining = iter(flags.FlagValues().read_flags_from_files(list(argv), force_gnu=True))
    texts: dict[str, str] = {}
    others: list[tuple[str, str | None]] = []
    mistakes: list[str] = []
    unknown_flags: dict[str, str] = {}
    # The names in absl's --undefok, for scripts that fit several versions of a program, may be unknown.
    may_be_unknown: set[str] = set()
    switch: str | None = None
    may_be_value = False
    for word in remaining:
        before, switch = switch, None
        follows_unknown, may_be_value = may_be_value, False
        if word == '--':
            others += ((rest, None) for rest in remaining)
            break
        name, equals, text = word.removeprefix('-').removeprefix('-').partition('=')
        if '\0' in word:
            # Only a --flagfile can contain one.
            mistakes.append(f'{word}: it contains a zero byte; write it without')
        elif not word.startswith('-') or not name:
            if not follows_unknown:
                others.append((word, before))
        elif name in switches and not equals:
            texts[name], switch = 'true', name
        elif name in known or name == 'undefok':
            value = text if equals else next(remaining, None)
            if value is None:
                expects = f'it must be {known[name].expects}; ' if name in known else ''
                mistakes.append(f'{word}: it has no value; {expects}write {word}=VALUE, {see}')
            elif name == 'undefok':
                may_be_unknown |= {part.strip() for part in value.split(',')}
            else:
                texts[name] = value
        elif name.startswith('no') and name[2:] in switches:
            if equals:
                mistakes.append(f'{word}: it takes no value; write --{name}, or --{name[2:]}=true or false; {see}')
            else:
                texts[name[2:]] = 'false'
        else:
            unknown_flags[name] = unknown(name)
            may_be_value = not equals
    mistakes += (line for name, line in unknown_flags.items() if not {name, name.removeprefix('no')} & may_be_unknown)
    return Words(texts, tuple(others), tuple(mistakes))
