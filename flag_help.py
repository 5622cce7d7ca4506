"""The text of --help. Does not import TensorFlow."""

import textwrap

from flag_spec import FlagSpec
from models.catalog import list_models
from params import SPECS

_HELP_HEAD = """\
usage: tf_cnn_benchmarks [--flag=value ...]
       tf_cnn_benchmarks models [PATTERN] [--json]
       tf_cnn_benchmarks records [--flag=value ...]

Measures how fast this machine trains a convolutional network, in images/sec.
The word models lists the networks with what they cost, see: tf_cnn_benchmarks models --help
The word records makes TFRecord shards of a folder of images, see: tf_cnn_benchmarks records --help"""
_HELP_TAIL = """\
--flag turns a switch on, --noflag off; --flagfile=FILE reads flags from a file.
Flags of the original tf_cnn_benchmarks that are not here are refused with the reason, or accepted
with a warning."""


def format_help() -> str:
    """The models, and all flags in groups with what they take, unit and default; at most 100 columns."""
    parts = [_HELP_HEAD, f'Models:\n{_indented(", ".join(list_models()), 2)}']
    for group in dict.fromkeys(spec.group for spec in SPECS.values()):
        entries = [_format_flag(spec) for spec in SPECS.values() if spec.group == group]
        parts.append('\n'.join([f'{group}:', *entries]))
    return '\n\n'.join([*parts, _HELP_TAIL])


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
