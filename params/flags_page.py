"""The page of flags: every flag of this program and of the original, in Markdown. Without TensorFlow.

It is made, by `make docs` as docs/flags.md, and not part of the source.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence

from params.descriptions import Story, list_stories
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
# What Markdown would read as markup outside of code.
_MARKUP = re.compile(r'([*\[\]<>|])')
# A flag with its value, a path of docs/, or a name with an underscore: of a value, a variable or a function.
_WORDS = r'--[a-z][\w-]*(?:=[\w.,/-]*\w)?|docs/\w+\.md|\w+_\w+'


def format_page() -> str:
    """The whole page; lines have at most 120 columns."""
    stories = list_stories()
    parts = [_HEAD, _summary(stories)]
    for group in dict.fromkeys(story.group for story in stories):
        members = [story for story in stories if story.group == group]
        parts.append(f'## {group}\n')
        parts.append(_filled(' · '.join(map(_link, members))) + '\n')
        parts += map(_entry, members)
    return '\n'.join(parts)


def _summary(stories: Iterable[Story]) -> str:
    """How many flags of the original have which fate, with links to those that do not simply work."""
    lines = []
    last = [story for story in stories if story.fate is not None]
    lines.append(f'Its last version has {len(last)} flags:')
    lines.append('')
    for fate, what in _INTRODUCTIONS.items():
        members = [story for story in last if story.fate is fate]
        links = '' if fate is Fate.WORKS else f' ({", ".join(map(_link, members))})'
        lines.append(_filled(f'- {what}: {len(members)}{links}', '  '))
    return '\n'.join([*lines, '', 'Flags of older versions are below, too.', ''])


def _entry(story: Story) -> str:
    facts = [_filled(f'- *{title}:* {_fact(story, title)}', '  ') for title in story.facts]
    # The heading is the name alone, so that flags.md#--batch_size leads to it.
    return '\n'.join([f'### `--{story.name}`', '', _filled(_marked_up(story.meaning, story.choices)), '', *facts, ''])


def _fact(story: Story, title: str) -> str:
    text = story.facts[title]
    if title == 'Default':
        return f'`{text}`'
    if title == 'Value':
        for choice in story.choices:
            text = re.sub(rf'(?<= ){re.escape(choice)}(?=,|$)', f'`{choice}`', text)
        return text
    return _marked_up(text)


def _link(story: Story) -> str:
    return f'[`{story.name}`](#--{story.name})'


def _marked_up(text: str, values: Sequence[str] = ()) -> str:
    """Text of --help as Markdown: flags, names, and values that it explains as code, paths of docs/ as links."""
    explained = ''.join(rf'|\b{re.escape(value)}(?=:)' for value in values)
    parts = re.split(f'({_WORDS}{explained})', text)
    # Every other part is one that the pattern found.
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
