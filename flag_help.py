"""The text of --help, and the words that it tells of. Does not import TensorFlow."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from flag_spec import FlagSpec
from models.catalog import list_models
from params import SPECS


@dataclass(frozen=True)
class Word:
    """A tool of the command: the module whose function main runs it, what follows the word, and what it does."""

    module: str
    usage: str
    purpose: str


WORDS: Mapping[str, Word] = {
    'checkpoint': Word('training.command', 'DIR [--json]', 'lists what a checkpoint holds'),
    'cluster': Word('cluster.command', '[--flag=value ...] -- FLAGS', 'starts a whole cluster on this machine'),
    'models': Word('models.command', '[PATTERN] [--json]', 'lists the networks with what they cost'),
    'records': Word('records', '[--flag=value ...]', 'makes TFRecord shards of a folder of images, or checks some'),
}
_PURPOSE = 'Measures how fast this machine trains a convolutional network, in images/sec.'
_HELP_TAIL = """\
--flag turns a switch on, --noflag off; --flagfile=FILE reads flags from a file.
Flags of the original tf_cnn_benchmarks that are not here are refused with the reason, or accepted:
with a warning, or in silence if they ask for what is done anyway."""


def format_help() -> str:
    """The models, and all flags in groups with what they take, unit and default; at most 100 columns."""
    parts = [_format_usage(), f'Models:\n{_indented(", ".join(list_models()), 2)}']
    for group in dict.fromkeys(spec.group for spec in SPECS.values()):
        entries = [_format_flag(spec) for spec in SPECS.values() if spec.group == group]
        parts.append('\n'.join([f'{group}:', *entries]))
    return '\n\n'.join([*parts, _HELP_TAIL])


def _format_usage() -> str:
    usages = ['[--flag=value ...]', *(f'{name} {word.usage}' for name, word in WORDS.items())]
    lines = [f'{"usage:" if not i else "":7}tf_cnn_benchmarks {usage}' for i, usage in enumerate(usages)]
    purposes = [f'  {name:12}{word.purpose}' for name, word in WORDS.items()]
    return '\n'.join([*lines, '', _PURPOSE, '', 'Words, each with a --help of its own:', *purposes])


def _format_flag(spec: FlagSpec) -> str:
    takes = 'switch' if spec.type is bool else spec.expects
    facts = [f'{takes}, in {spec.unit}' if spec.unit else takes]
    if spec.default is not None:
        default = str(spec.default)
        facts.append(f'default {default.lower() if spec.type is bool else default}')
    if spec.original is not None:
        facts.append(f'the original: {spec.original}')
    text = f'{spec.help} [{"; ".join(facts)}]'
    name = f'[no]{spec.name}' if spec.type is bool else f'{spec.name}=VALUE'
    return f'  --{name}\n{_indented(text, 6)}'


def _indented(text: str, columns: int) -> str:
    return textwrap.fill(text, 100, initial_indent=' ' * columns, subsequent_indent=' ' * columns)
