"""The text of --help and of --help=FLAG. Does not import TensorFlow."""

import textwrap
from collections.abc import Mapping
from typing import Protocol

from models.registry import MODELS
from params.descriptions import FlagDescription, default_of, usage_of, value_of
from params.spec import FlagSpec
from params.table import SPECS


class HelpSubcommand(Protocol):
    """A subcommand in --help: the arguments after its name, and what it does."""

    @property
    def usage(self) -> str: ...

    @property
    def purpose(self) -> str: ...


_PURPOSE = 'Measures how fast this machine trains a convolutional network, in images/sec.'
# The flags that people use most; --help=all lists the others.
COMMON = (
    *('model', 'batch_size', 'num_batches', 'num_epochs', 'num_warmup_batches', 'forward_only', 'verbose'),
    *('num_gpus', 'device', 'data_format'),
    *('data_dir', 'data_name', 'input_only'),
    *('variable_update', 'all_reduce_spec'),
    *('optimizer', 'init_learning_rate', 'weight_decay', 'precision'),
    *('job_name', 'task_index', 'ps_hosts', 'worker_hosts'),
    *('eval', 'train_dir', 'save_model_steps', 'trace_file'),
    *('result_file', 'history', 'repeat'),
)
_FORMS = """\
--flag turns a switch on, --noflag turns it off; --flagfile=FILE reads flags from a file;
--version prints the version; --help=FLAG tells all about one flag, help --markdown about all."""
_OF_THE_ORIGINAL = """\
Flags of the original tf_cnn_benchmarks that this list lacks are accepted: with a warning that says
what happens instead, or silently if they ask for what this program always does. Only what would
measure something else than asked is refused, with the reason."""


def format_help(subcommands: Mapping[str, HelpSubcommand], *, everything: bool = False) -> str:
    """Returns the text of --help, at most 100 columns wide: subcommands, then flags by group.

    Args:
      subcommands: the subcommands by name.
      everything: whether to list all flags and models, as --help=all does, instead of the common flags.
    """
    specs = [spec for spec in SPECS.values() if everything or spec.name in COMMON]
    parts = [_format_usage(subcommands)]
    if everything:
        parts.append(f'Models:\n{_indented(", ".join(MODELS.list_models()), 2)}')
    for group in dict.fromkeys(spec.group for spec in specs):
        parts.append('\n'.join([f'{group}:', *(format_flag(spec) for spec in specs if spec.group == group)]))
    if everything:
        return '\n\n'.join([*parts, f'{_FORMS}\n{_OF_THE_ORIGINAL}'])
    others = len(SPECS) - len(specs)
    return '\n\n'.join([*parts, f'{_FORMS}\n--help=all lists the other {others} flags, too, and the models.'])


def _format_usage(subcommands: Mapping[str, HelpSubcommand]) -> str:
    usages = ['[--flag=value ...]', *(f'{name} {command.usage}' for name, command in subcommands.items())]
    lines = [f'{"usage:" if not i else "":7}tf_cnn_benchmarks {usage}' for i, usage in enumerate(usages)]
    purposes = [f'  {name:12}{command.purpose}' for name, command in subcommands.items()]
    return '\n'.join([*lines, '', _PURPOSE, '', 'Subcommands, each with its own --help:', *purposes])


def format_flag(spec: FlagSpec) -> str:
    """Returns the lines about one flag, at most 100 columns wide: its name, meaning, values and default."""
    facts = [value_of(spec)]
    if (default := default_of(spec)) is not None:
        facts.append(f'default {default}')
    if spec.original is not None:
        facts.append(f'default of the original: {spec.original}')
    text = f'{spec.help} [{"; ".join(facts)}]'
    return f'  {usage_of(spec)}\n{_indented(text, 6)}'


def format_description(description: FlagDescription) -> str:
    """Returns the text of --help=FLAG, at most 100 columns wide: everything about one flag."""
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
