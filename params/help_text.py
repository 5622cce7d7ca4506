"""The texts of --help and --help=FLAG, and the page of all flags in Markdown. Does not import TensorFlow."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from models.registry import MODELS
from params.descriptions import FlagDescription, default_of, describe_all_flags, usage_of, value_of
from params.original import Fate
from params.spec import ITS_DEFAULT, FlagSpec
from params.table import SPECS


class HelpSubcommand(Protocol):
    """A subcommand in --help: the arguments after its name, and what it does."""

    @property
    def usage(self) -> str: ...

    @property
    def purpose(self) -> str: ...


_PURPOSE = 'Measures how fast this machine trains a convolutional network, in images/sec.'
_FORMS = """\
--flag turns a switch on, --noflag turns it off; --flagfile=FILE reads flags from a file;
--version prints the version; --help=FLAG tells all about one flag, help --markdown about all."""
_ORIGINAL_FLAGS = """\
Flags of the original tf_cnn_benchmarks that this list lacks are accepted: with a warning that says
what happens instead, or silently if they ask for what this program always does. Only what would
measure something else than asked is refused, with the reason."""


def format_help(subcommands: Mapping[str, HelpSubcommand], *, everything: bool = False) -> str:
    """Returns the text of --help, or of --help=all for `everything`, at most 100 columns wide."""
    specs = [spec for spec in SPECS.values() if everything or spec.common]
    parts = [_format_usage(subcommands)]
    if everything:
        parts.append(f'Models:\n{_indented(", ".join(MODELS.list_models()), 2)}')
    for group in dict.fromkeys(spec.group for spec in specs):
        parts.append('\n'.join([f'{group}:', *(flag_help(spec) for spec in specs if spec.group == group)]))
    if everything:
        return '\n\n'.join([*parts, f'{_FORMS}\n{_ORIGINAL_FLAGS}'])
    others = len(SPECS) - len(specs)
    return '\n\n'.join([*parts, f'{_FORMS}\n--help=all lists the other {others} flags, too, and the models.'])


def _format_usage(subcommands: Mapping[str, HelpSubcommand]) -> str:
    usages = ['[--flag=value ...]', *(f'{name} {command.usage}' for name, command in subcommands.items())]
    lines = [f'{"usage:" if not i else "":7}tf_cnn_benchmarks {usage}' for i, usage in enumerate(usages)]
    purposes = [f'  {name:12}{command.purpose}' for name, command in subcommands.items()]
    return '\n'.join([*lines, '', _PURPOSE, '', 'Subcommands, each with its own --help:', *purposes])


def flag_help(spec: FlagSpec) -> str:
    facts = [value_of(spec)]
    if (default := default_of(spec)) is not None:
        facts.append(f'default {default}')
    if spec.original and spec.original.startswith(ITS_DEFAULT):
        facts.append(f'default of the original: {spec.original.removeprefix(ITS_DEFAULT)}')
    text = f'{spec.help} [{"; ".join(facts)}]'
    return f'  {usage_of(spec)}\n{_indented(text, 6)}'


def format_description(description: FlagDescription) -> str:
    width = max(map(len, description.facts)) + 2
    facts = [
        textwrap.fill(text, 100, initial_indent=f'  {f"{title}:":{width}}', subsequent_indent=' ' * (width + 2))
        for title, text in description.facts.items()
    ]
    return '\n'.join(
        [f'{description.usage}   ({description.group})', '', _indented(description.meaning, 2), '', *facts]
    )


def _indented(text: str, columns: int) -> str:
    return textwrap.fill(text, 100, initial_indent=' ' * columns, subsequent_indent=' ' * columns)


# ---- the page in Markdown -------------------------------------------------------------------------------------------

_PAGE_HEAD = """\
# Flags

<!-- Made by `python tf_cnn_benchmarks.py help --markdown > docs/flags.md`; do not edit it. -->

All flags of a run in the order of `--help=all`, and all of the original program. `--help=FLAG` prints one of these
entries. A switch is turned on by `--flag` and off by `--noflag`; `--flagfile=FILE` reads flags from a file, one on each
line. The subcommands have flags of their own, which `help SUBCOMMAND` prints. Where the program is installed,
`eval "$(tf_cnn_benchmarks completion bash)"` in `~/.bashrc` lets bash complete subcommands, flags and values.

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
    """Returns a page in Markdown about every flag of this program and of the original; at most 120 columns wide.

    `make docs` writes it to docs/flags.md, which is not part of the source.
    """
    flags = describe_all_flags()
    parts = [_PAGE_HEAD, _summary(flags)]
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
