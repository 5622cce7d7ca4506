"""`tf_cnn_benchmarks.py models`: lists the models and what they cost. Starts without TensorFlow."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from commands.options import Arguments, Declaration, Positional
from comparison.tables import Table, TableColumn
from errors import UsageError, nearest
from models.costs import ModelCost, list_costs
from models.registry import MODELS, load_model_file
from params.spec import flag

# The width of the table if standard output is not a terminal: that of its longest row.
_COLUMNS = 100


@dataclass(frozen=True)
class ModelsOptions:
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
        print(_table(costs).as_text(sys.stdout, _COLUMNS))
    return 0


def _as_object(cost: ModelCost) -> dict[str, object]:
    return {
        'name': cost.facts.name,
        'dataset': cost.facts.data_set,
        'parameters': cost.parameters,
        'gflops_per_image': cost.gmacs,
        # As in the tables of papers: a multiply-add counts once, not as two operations.
        'gflops_unit': '10^9 multiply-adds',
        'image_size': cost.facts.image_size,
        'default_batch_size': cost.facts.batch_size,
        'default_learning_rate': cost.facts.learning_rate,
        # The number of images per update for which the rate is right; None if it does not depend on them.
        'learning_rate_images': cost.facts.schedule.per_images,
    }


def _table(costs: Sequence[ModelCost]) -> Table:
    titles = ('parameters', 'GMACs/image', 'image size', 'batch size')
    columns = (TableColumn('model'), TableColumn('data set'), *(TableColumn(title, is_number=True) for title in titles))
    return Table(
        columns,
        [
            (
                cost.facts.name,
                cost.facts.data_set,
                f'{cost.parameters:,}',
                f'{cost.gmacs:.4g}',
                str(cost.facts.image_size),
                str(cost.facts.batch_size),
            )
            for cost in costs
        ],
    )
