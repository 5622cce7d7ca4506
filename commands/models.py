"""`tf_cnn_benchmarks.py models`: lists the models and what they cost. Starts without TensorFlow."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from commands.options import Arguments, Declaration, Positional
from errors import UsageError, nearest
from models.costs import ModelCost, list_costs
from models.registry import MODELS, load_model_file
from params.spec import flag

# Of the table where standard output is no terminal: as wide as its longest row.
_COLUMNS = 100


@dataclass(frozen=True)
class ModelsOptions:
    """The flags of the subcommand."""

    json: bool = flag(
        False,
        'Print a list of objects: name, dataset, parameters, gflops_per_image, gflops_unit, image_size, '
        'default_batch_size, default_learning_rate, learning_rate_images.',
    )
    model_file: str | None = flag(None, 'Python file that adds your own models, see docs/models.md.', is_path=True)


DECLARATION = Declaration(
    'models',
    ModelsOptions,
    'Lists the models and what they cost: their trainable parameters, and the multiply-adds of a forward pass.',
    examples=('', "'resnet*' --json"),
    positional=Positional(
        'PATTERN',
        'The names to list, with shell wildcards; put it in quotes, or the shell expands them. By default all.',
        at_least=0,
    ),
)


def main(argv: Sequence[str]) -> int:
    """Runs `models` with the arguments in argv; returns the exit code.

    Raises:
      UsageError: an argument is wrong, or no model matches the pattern.
    """
    return DECLARATION.run(argv, _list)


def _list(arguments: Arguments[ModelsOptions]) -> int:
    options = arguments.options
    if options.model_file:
        load_model_file(options.model_file)
    pattern = arguments.positional[0] if arguments.positional else '*'
    costs = list_costs(pattern)
    if not costs:
        near = nearest(pattern, MODELS.list_models())
        hint = f'did you mean {near}?' if near else "write a name with wildcards, as in models 'resnet*'"
        raise UsageError(f'{pattern}: no model has such a name; {hint}')
    if options.json:
        print(json.dumps([_as_object(cost) for cost in costs], indent=2))
    else:
        _print_table(costs)
    return 0


def _as_object(cost: ModelCost) -> dict[str, object]:
    return {
        'name': cost.facts.name,
        'dataset': cost.facts.data_set,
        'parameters': cost.parameters,
        'gflops_per_image': cost.gflops,
        # As in the tables of papers, not two operations each.
        'gflops_unit': '10^9 multiply-adds',
        'image_size': cost.facts.image_size,
        'default_batch_size': cost.facts.batch_size,
        'default_learning_rate': cost.facts.learning_rate,
        # The images per update that the rate is for; None if it does not depend on them.
        'learning_rate_images': cost.facts.schedule.per_images,
    }


def _print_table(costs: Sequence[ModelCost]) -> None:
    # Imported here because JSON needs no rich.
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
