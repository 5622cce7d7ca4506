"""The text of one flag in --help."""

import textwrap
from collections.abc import Mapping

from tf_cnn.flags.spec import ITS_DEFAULT, FlagSpec


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


def wrap_text(text: str, columns: int = 0) -> str:
    return textwrap.fill(text, 100, initial_indent=' ' * columns, subsequent_indent=' ' * columns)
