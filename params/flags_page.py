"""Makes the page of flags, in Markdown: every flag of this program and of the original. Without TensorFlow.

`make docs` writes it to docs/flags.md, which is not part of the source.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence

from params.descriptions import FlagDescription, describe_all_flags
from params.original import Fate

_HEAD = """\
# Flags

<!-- Made by `python tf_cnn_benchmarks.py help --markdown > docs/flags.md`; do not edit it. -->

All flags of a run in the order of `--help=all`, and all of the original program. `--help=FLAG` prints one of these
entries. A switch is turned on by `--flag` and off by `--noflag`; `--flagfile=FILE` reads flags from a file, one on each
line. The subcommands have flags of their own, which `help SUBCOMMAND` prints. Where the program is installed,
`eval "$(tf_cnn_benchmarks completion bash)"` in `~/.bashrc` lets bash complete subcommands, flags and values;
`completion` has scripts for zsh and fish, too.

*No effect* lists when a flag changes nothing. If it is given then, with another value than its default, the run prints
one warning that names the flag and the reason.

## Flags of the original program
"""
_INTRODUCTIONS = {
    Fate.WORKS: 'working under their name',
    Fate.RENAMED: 'working under another name',
    Fate.NO_EFFECT: 'without effect; a warning says what happens instead, and the result is the one without the flag',
    Fate.REFUSED: 'refused with exit code 2, since the run would measure something else than asked',
}
# Characters that Markdown would read as markup outside of code.
_MARKUP = re.compile(r'([*\[\]<>|])')
# A flag with its value, a path of docs/, or a name with an underscore: of a value, a variable or a function.
_WORDS = r'--[a-z][\w-]*(?:=[\w.,/-]*\w)?|docs/\w+\.md|\w+_\w+'


def format_page() -> str:
    """Returns the whole page; lines have at most 120 columns."""
    flags = describe_all_flags()
    parts = [_HEAD, _summary(flags)]
    for group in dict.fromkeys(flag.group for flag in flags):
        members = [flag for flag in flags if flag.group == group]
        parts.append(f'## {group}\n')
        parts.append(_filled(' · '.join(map(_link, members))) + '\n')
        parts += map(_entry, members)
    return '\n'.join(parts)


def _summary(flags: Iterable[FlagDescription]) -> str:
    """Counts the original's flags by their fate, with links to those that do not simply work."""
    lines = []
    last = [flag for flag in flags if flag.fate is not None]
    lines.append(f'Its last version has {len(last)} flags:')
    lines.append('')
    for fate, what in _INTRODUCTIONS.items():
        members = [flag for flag in last if flag.fate is fate]
        links = '' if fate is Fate.WORKS else f' ({", ".join(map(_link, members))})'
        lines.append(_filled(f'- {what}: {len(members)}{links}', '  '))
    return '\n'.join([*lines, '', 'Flags of older versions are below, too.', ''])


def _entry(flag: FlagDescription) -> str:
    facts = [_filled(f'- *{title}:* {_fact(flag, title)}', '  ') for title in flag.facts]
    # The heading is the name alone, so that the link flags.md#--batch_size works.
    return '\n'.join([f'### `--{flag.name}`', '', _filled(_marked_up(flag.meaning, flag.choices)), '', *facts, ''])


def _fact(flag: FlagDescription, title: str) -> str:
    text = flag.facts[title]
    if title == 'Default':
        return f'`{text}`'
    if title == 'Value':
        for choice in flag.choices:
            text = re.sub(rf'(?<= ){re.escape(choice)}(?=,|$)', f'`{choice}`', text)
        return text
    return _marked_up(text)


def _link(flag: FlagDescription) -> str:
    return f'[`{flag.name}`](#--{flag.name})'


def _marked_up(text: str, values: Sequence[str] = ()) -> str:
    """Converts a text of --help to Markdown: flags, names and explained values as code, paths of docs/ as links."""
    explained = ''.join(rf'|\b{re.escape(value)}(?=:)' for value in values)
    parts = re.split(f'({_WORDS}{explained})', text)
    # Parts with odd numbers are matches of the pattern.
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = _MARKUP.sub(r'\\\1', part)
        elif part.startswith('docs/'):
            parts[number] = f'[{part}]({part.removeprefix("docs/")})'
        else:
            parts[number] = f'`{part}`'
    return ''.join(parts)


def _filled(text: str, indent: str = '') -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
