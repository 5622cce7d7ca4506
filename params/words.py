"""The words of a command line: which flags they give, and which words are no flags. Does not import TensorFlow.

The forms are those of absl, which the original program reads its flags with: --name=value, --name value, --switch,
--noswitch, one dash instead of two, --flagfile=FILE, and -- after which nothing is a flag.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from absl import flags

from errors import UsageError
from params.flag_files import check_flag_files
from params.spec import FlagSpec


@dataclass(frozen=True)
class Words:
    """What a command line says, not read yet.

    Attributes:
      texts: the text of each flag that was given, by name; of two, the last one counts.
      others: the words that are no flags, each with the switch that stands before it, if one does.
      mistakes: one line for each flag that is unknown or has no value, or one that it cannot have.
    """

    texts: dict[str, str]
    others: tuple[tuple[str, str | None], ...]
    mistakes: tuple[str, ...]


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
      known: all flags by name. switches: those of them that need no value.
      unknown: the message about a flag of another name.
      see: what to read for more, for messages.

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
    strangers: dict[str, str] = {}
    # absl's flag for scripts that fit several versions of a program: names that need not be known.
    pardoned: set[str] = set()
    switch: str | None = None
    may_be_value = False
    for word in remaining:
        before, switch = switch, None
        follows_stranger, may_be_value = may_be_value, False
        if word == '--':
            others += ((rest, None) for rest in remaining)
            break
        name, equals, text = word.removeprefix('-').removeprefix('-').partition('=')
        if '\0' in word:
            # Only a --flagfile can have one.
            mistakes.append(f'{word}: it contains a zero byte; write it without')
        elif not word.startswith('-') or not name:
            if not follows_stranger:
                others.append((word, before))
        elif name in switches and not equals:
            texts[name], switch = 'true', name
        elif name in known or name == 'undefok':
            value = text if equals else next(remaining, None)
            if value is None:
                expects = f'it must be {known[name].expects}; ' if name in known else ''
                mistakes.append(f'{word}: it has no value; {expects}write {word}=VALUE, {see}')
            elif name == 'undefok':
                pardoned |= {part.strip() for part in value.split(',')}
            else:
                texts[name] = value
        elif name.startswith('no') and name[2:] in switches:
            if equals:
                mistakes.append(f'{word}: it takes no value; write --{name}, or --{name[2:]}=true or false; {see}')
            else:
                texts[name[2:]] = 'false'
        else:
            strangers[name] = unknown(name)
            may_be_value = not equals
    mistakes += (line for name, line in strangers.items() if not {name, name.removeprefix('no')} & pardoned)
    return Words(texts, tuple(others), tuple(mistakes))
