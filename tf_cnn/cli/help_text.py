"""The texts of --help and --help=FLAG, and the page of all flags in Markdown. Does not import
TensorFlow.
"""

import textwrap
from collections.abc import Sequence

from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.help import flag_help, wrap_text
from tf_cnn.plan.original_flags import ELSEWHERE, FLAGS, REMOVED, TABLE, find_flag_with_choice
from tf_cnn.plan.params import SPECS
from tf_cnn.system.errors import UsageError, format_flag, nearest

_PURPOSE = 'Measures how fast this machine trains a neural network, in images/sec.'
_EXAMPLES = """\
  tf_cnn_benchmarks doctor
  tf_cnn_benchmarks --model=resnet50 --batch_size=32 --num_batches=20
  tf_cnn_benchmarks sweep variable_update -- --model=lenet"""
_USAGE = """\
usage: tf_cnn_benchmarks [--flag=value ...]
       tf_cnn_benchmarks SUBCOMMAND [...]"""
_FORMS = (
    '--flag turns a switch on, --noflag turns it off; --flagfile=FILE reads flags from a file; '
    '--version prints the version; --help=FLAG describes one flag, help --markdown all flags.'
)
_ORIGINAL_FLAGS = (
    'Flags of the original tf_cnn_benchmarks that are not listed here are accepted: with a warning '
    'that says what happens instead, or silently if they request what this program always does. A '
    'flag is refused, with the reason, only if the run would measure something else.'
)


def format_help(models: Sequence[str] = ()) -> str:
    """Returns the text of --help, or of --help=all if `models` are listed."""
    specs = [spec for spec in SPECS.values() if models or spec.common]
    purposes = [
        wrap_text(f'{name:12}{purpose}', 14, first=2) for name, purpose in SUBCOMMANDS.items()
    ]
    subcommands = '\n'.join(['Subcommands, each with a --help:', *purposes])
    parts = [_EXAMPLES, wrap_text(_PURPOSE), _USAGE, subcommands]
    if models:
        parts.append(f'Models:\n{wrap_text(", ".join(models), 2)}')
    for group in dict.fromkeys(spec.group for spec in specs):
        parts.append(
            '\n'.join([f'{group}:', *(flag_help(spec) for spec in specs if spec.group == group)])
        )
    if models:
        return '\n\n'.join([*parts, wrap_text(_FORMS), wrap_text(_ORIGINAL_FLAGS)])
    num_others = len(SPECS) - len(specs)
    more = f'--help=all lists the other {num_others} flags, too, and the models.'
    return '\n\n'.join([*parts, wrap_text(_FORMS), wrap_text(more)])


def describe_flag(name: str) -> str:
    """Describes one flag of this program or of the original; its name may begin with dashes.

    Raises UsageError for an unknown flag; the error may suggest a subcommand.
    """
    plain = name.lstrip('-')
    if plain not in FLAGS:
        near = (
            ELSEWHERE.get(plain)
            or find_flag_with_choice(plain)
            or nearest(plain, [*FLAGS, *SUBCOMMANDS])
        )
        suggestion = f'did you mean --help={near}?' if near else '--help=all lists all flags'
        hint = REMOVED.get(plain) or suggestion
        raise UsageError(f'{format_flag("help", name)}: unknown flag or subcommand; {hint}')
    spec, row = FLAGS[plain], TABLE.get(plain)
    facts = {
        'Group': spec.group,
        'Original': spec.original or 'the last version has it',
        'Here': f'{row.status.value}{": " if row.message else ""}{row.message}' if row else '',
        'Accepted': f'{format_flag(plain, row.accepted_value)} causes no warning'
        if row and row.accepted_value is not None
        else '',
        'Clusters': 'all processes need the same value' if spec.shared_by_workers else '',
    }
    lines = [wrap_text(f'{title}: {text}', 8, first=6) for title, text in facts.items() if text]
    return '\n'.join([flag_help(spec), '', *lines])


# ---- the page in Markdown ------------------------------------------------------------------------

_PAGE_HEAD = """\
# Flags

<!-- Made by `python tf_cnn_benchmarks.py help --markdown > docs/flags.md`; do not edit it. -->

All flags of a run in the order of `--help=all`, and all of the original program. `--help=FLAG`
prints one of these entries. `--flag` turns a switch on, `--noflag` turns it off;
`--flagfile=FILE` reads flags from a file, one on each line. `help SUBCOMMAND` prints the flags of
a subcommand.

If a given flag has no effect in a run, the run prints one warning with the flag and the reason.
"""


def format_page() -> str:
    """Returns a page in Markdown with the description of every flag of this program and of the
    original.

    It is docs/flags.md, which `make docs` writes.
    """
    parts = [_PAGE_HEAD]
    for group in dict.fromkeys(spec.group for spec in FLAGS.values()):
        parts.append(f'## {group}\n')
        for name in (name for name, spec in FLAGS.items() if spec.group == group):
            # The heading is the name alone, so that the link flags.md#--batch_size works.
            parts += [f'### `--{name}`\n', f'{textwrap.indent(describe_flag(name), "  ")}\n']
    return '\n'.join(parts)
