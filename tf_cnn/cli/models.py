"""`tf_cnn_benchmarks.py models`: lists the models and their costs. Does not import TensorFlow."""

import json
import sys
from dataclasses import dataclass

from models.costs import ModelCost, list_costs
from models.registry import MODELS, load_model_file
from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.flags.spec import flag
from tf_cnn.results.tables import Column, Table, abbreviate
from tf_cnn.system.errors import UsageError, nearest

_COLUMNS: tuple[Column[ModelCost], ...] = (
    Column('model', lambda cost: cost.model.name, 'name'),
    Column('data set', lambda cost: cost.model.data_set, 'dataset'),
    Column(
        'parameters',
        lambda cost: cost.parameters,
        'parameters',
        lambda cost: f'{cost.parameters:,}',
        is_number=True,
    ),
    # A multiply-add counts once, not as two operations, as in the tables of papers.
    Column(
        'GMACs/image',
        lambda cost: cost.gmacs,
        'gmacs_per_image',
        lambda cost: f'{cost.gmacs:.4g}',
        is_number=True,
    ),
    Column('image size', lambda cost: cost.model.image_size, 'image_size', is_number=True),
    Column('batch size', lambda cost: cost.model.batch_size, 'default_batch_size', is_number=True),
    Column('', lambda cost: cost.model.learning_rate, 'default_learning_rate'),
    # The images per update that this learning rate is meant for; None: any number.
    Column('', lambda cost: cost.model.schedule.reference_batch_size, 'learning_rate_images'),
)


@dataclass(frozen=True)
class ModelsOptions:
    json: bool = flag(
        False,
        'Print a list of objects: name, dataset, parameters, gmacs_per_image, '
        'image_size, default_batch_size, default_learning_rate, learning_rate_images.',
    )
    model_file: str | None = flag(
        None, 'Python file that adds your own models, see docs/models.md.', is_path=True
    )


DECLARATION = Declaration(
    'models',
    ModelsOptions,
    usage='[PATTERN] [--flag=value ...]',
    examples=('', "'resnet*' --json"),
    details='Costs are the trainable parameters, and the multiply-adds of a forward pass.',
    positional='The names to list, with shell wildcards; put them in quotes, or the shell '
    'expands them. By default all models.',
)


@DECLARATION.main
def main(arguments: Arguments[ModelsOptions]) -> int:
    options = arguments.options
    if options.model_file:
        load_model_file(options.model_file)
    pattern = arguments.positional[0] if arguments.positional else '*'
    costs = [*list_costs(pattern)]
    if not costs:
        raise UsageError(f'{pattern}: no model has this name; {_hint(pattern)}')
    table = Table(_COLUMNS, costs)
    print(json.dumps(table.objects, indent=2) if options.json else table.as_text(sys.stdout))
    return 0


def _hint(pattern: str) -> str:
    for wider in () if {*pattern} & {'*', '?', '['} else (f'{pattern}*', f'*{pattern}*'):
        if names := MODELS.list_models(wider.lower()):
            return f"models '{wider.lower()}' lists {abbreviate(names)}"
    near = nearest(pattern, MODELS.list_models())
    return f'did you mean {near}?' if near else "use a name with wildcards, as in models 'resnet*'"
