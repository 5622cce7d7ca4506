"""The text of one flag in --help."""

import shutil
import sys
import textwrap
from collections.abc import Mapping

from tf_cnn.flags.spec import ITS_DEFAULT, FlagSpec

# Columns of a text; narrower terminals break the lines themselves.
_MAX_WIDTH, _MIN_WIDTH = 100, 40


def flag_help(spec: FlagSpec) -> str:
    value = 'switch' if spec.type is bool else spec.expects
    facts = [f'{value}, in {spec.unit}' if spec.unit else value]
    if spec.default is not None and not spec.repeated:
        facts.append(f'default {str(spec.default).lower() if spec.type is bool else spec.default}')
    if spec.original and spec.original.startswith(ITS_DEFAULT):
        facts.append(f'default of the original: {spec.original.removeprefix(ITS_DEFAULT)}')
    usage = f'--[no]{spec.name}' if spec.type is bool else f'--{spec.name}=VALUE'
    choices = spec.choices.items() if isinstance(spec.choices, Mapping) else ()
    summaries = [f'{name}: {choice.summary}' for name, choice in choices]
    text = ' '.join([spec.help, *summaries, f'[{"; ".join(facts)}]'])
    return f'  {usage}\n{wrap_text(text, 6)}'


def wrap_text(text: str, columns: int = 0, *, first: int | None = None) -> str:
    """Wraps a text to the width of the terminal, at most 100 columns; to 100 without a terminal.

    Lines are indented by `columns`, the first line by `first` if it is given.
    """
    width = _MAX_WIDTH
    if sys.stdout.isatty():
        width = max(_MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size().columns))
    return textwrap.fill(
        text,
        width,
        initial_indent=' ' * (columns if first is None else first),
        subsequent_indent=' ' * columns,
        break_on_hyphens=False,
    )
