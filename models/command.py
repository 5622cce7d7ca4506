"""`tf_cnn_benchmarks.py models`: lists the models. Starts without TensorFlow."""

import json
import sys
from collections.abc import Sequence

from absl import flags

from errors import UsageError
from flag_spec import nearest, read_flags
from models.catalog import list_models
from models.costs import ModelCost, list_costs
from models.registry import load_model_file

_USAGE = """\
Lists the models with what they cost: the parameters that they train, and the multiply-adds of a forward pass.

  tf_cnn_benchmarks.py models
  tf_cnn_benchmarks.py models 'resnet*' --json

  PATTERN: the names to list, with shell wildcards. (default: *)
  --json: Print a list of objects: name, dataset, parameters, gflops_per_image, image_size, default_batch_size.
  --model_file: Python file that adds models of yours, see docs/models.md.
"""
# Where no terminal tells: what the table takes at most, without a line break.
_COLUMNS = 100


def main(argv: Sequence[str]) -> int:
    """Runs `models` with the words in argv; returns the exit code.

    Raises:
      UsageError: the flags do not fit, or no model matches the pattern.
    """
    values, patterns = _parse(argv)
    if values['help'].value:
        print(_USAGE, end='')
        return 0
    if len(patterns) > 1:
        raise UsageError(f'{patterns[1]}: models takes one pattern; put it in quotes, or the shell fills it in')
    if values.model_file:
        load_model_file(values.model_file)
    pattern = patterns[0] if patterns else '*'
    costs = list_costs(pattern)
    if not costs:
        near = nearest(pattern, list_models())
        hint = f'did you mean {near}?' if near else "write a name with wildcards, as in models 'resnet*'"
        raise UsageError(f'{pattern}: no model has such a name; {hint}')
    if values.json:
        print(json.dumps([_as_object(cost) for cost in costs], indent=2))
    else:
        _print_table(costs)
    return 0


def _parse(argv: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    flags.DEFINE_boolean('json', False, '', flag_values=values)
    flags.DEFINE_string('model_file', None, '', flag_values=values)
    flags.DEFINE_boolean('help', False, '', short_name='h', flag_values=values)
    return values, read_flags(values, 'models', argv)


def _as_object(cost: ModelCost) -> dict[str, object]:
    return {
        'name': cost.facts.name,
        'dataset': cost.facts.data_set,
        'parameters': cost.parameters,
        'gflops_per_image': cost.gflops,
        'image_size': cost.facts.image_size,
        'default_batch_size': cost.facts.batch_size,
    }


def _print_table(costs: Sequence[ModelCost]) -> None:
    # Only a table needs it.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for title in ('model', 'data set'):
        table.add_column(title, no_wrap=True)
    for title in ('parameters', 'GFLOPs/image', 'image size', 'batch size'):
        table.add_column(title, no_wrap=True, justify='right')
    for cost in costs:
        facts = cost.facts
        numbers = (f'{cost.parameters:,}', f'{cost.gflops:.4g}', f'{facts.image_size}', f'{facts.batch_size}')
        table.add_row(facts.name, facts.data_set, *numbers)
    Console(width=None if sys.stdout.isatty() else _COLUMNS, markup=False, highlight=False).print(table)
