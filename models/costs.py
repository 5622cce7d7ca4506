"""Parameters and GMACs of the models: from a table for built-in models, else counted in a graph.

    python -m models.costs [PATTERN]

counts the built-in models that match a pattern with shell wildcards, by default all, and writes
models/catalog.json and the list of models in docs/models.md.
"""

import fnmatch
import importlib
import json
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.catalog import CATALOG_FILE, DECLARED, read_catalog, read_costs, to_row
from models.model_spec import ModelSpec
from models.registry import MODELS, Registry

_DOCS = Path(__file__).resolve().parent.parent / 'docs' / 'models.md'
# The list in docs/models.md begins with this line and ends at the next empty line.
_DOCS_HEAD = (
    '| model | data set | parameters | GMACs per image | image size | batch size | learning rate '
    '|\n'
)


@dataclass(frozen=True)
class ModelCost:
    """The trainable parameters of a model for a data set, and the GMACs of one image's forward
    pass.
    """

    model: ModelSpec
    parameters: int
    gmacs: float


def list_costs(pattern: str = '*') -> list[ModelCost]:
    """Returns the costs of all models that match a pattern with shell wildcards. Counts costs that
    are not in the table.
    """
    cost_table = read_costs()
    costs = []
    for model in MODELS.list_specs(pattern):
        key = (model.name, model.data_set, model.image_size)
        row = cost_table.get(key) if model.network.is_built_in else None
        parameters, multiply_adds = row or _count_cost(model)
        costs.append(ModelCost(model, parameters, multiply_adds / 1e9))
    return costs


def _count_cost(model: ModelSpec) -> tuple[int, int]:
    # TensorFlow reads this variable when it is imported.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    from models.counting import model_cost

    return model_cost(model)


def write_catalog(pattern: str = '*') -> None:
    """Writes the models that are declared to models/catalog.json. Counts the costs of those that
    match a pattern, and of those that the file does not have.
    """
    costs_by_key, rows = read_costs(), []
    for spec in declared_models():
        cost = costs_by_key.get((spec.name, spec.data_set, spec.image_size))
        if cost is None or fnmatch.fnmatchcase(spec.name, pattern):
            cost = _count_cost(spec)
        rows.append(to_row(spec, *cost))
    lines = ',\n'.join(json.dumps(row) for row in rows)
    CATALOG_FILE.write_text(f'[\n{lines}\n]\n')


def declared_models() -> list[ModelSpec]:
    """Returns the models that the modules of this package declare. Needs TensorFlow."""
    package = sys.modules[__package__ or 'models']
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != 'costs':
            importlib.import_module(f'{package.__name__}.{module.name}')
    # Other code may have imported some modules before.
    return sorted(DECLARED, key=lambda spec: str(spec.network.builder).partition(':')[0])


def format_docs_table(costs: Sequence[ModelCost]) -> str:
    rows = [
        f'| `{cost.model.name}` | {cost.model.data_set} | {cost.parameters:,} | {cost.gmacs:.3g} | '
        f'{cost.model.image_size} | {cost.model.batch_size} | '
        f'{_format_learning_rate(cost.model)} |\n'
        for cost in costs
    ]
    return ''.join([_DOCS_HEAD, '|---|---|---|---|---|---|---|\n', *rows])


def _format_learning_rate(model: ModelSpec) -> str:
    batch_size = model.schedule.reference_batch_size
    return f'{model.learning_rate:g}{f" for {batch_size} images" if batch_size else ""}'


def replace_docs_table(text: str, costs: Sequence[ModelCost]) -> str:
    return re.sub(
        f'{re.escape(_DOCS_HEAD)}(?:.+\n)*', lambda _: format_docs_table(costs), text, count=1
    )


if __name__ == '__main__':
    write_catalog(*sys.argv[1:2])
    MODELS = Registry(read_catalog())
    _DOCS.write_text(replace_docs_table(_DOCS.read_text(), list_costs()))
