"""Parameters and GMACs of the models: built-in models from a table, others counted in a graph.

    python -m models.costs

counts all built-in models again, and writes the table (models/costs.csv) and the list of models in
docs/models.md.
"""

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.model_facts import ModelFacts
from models.registry import MODELS

_TABLE = Path(__file__).with_name('costs.csv')
_DOCS = Path(__file__).resolve().parent.parent / 'docs' / 'models.md'
# The list in docs/models.md begins with this line and ends at the next empty line.
_DOCS_HEAD = (
    '| model | data set | parameters | GMACs per image | image size | batch size | learning rate '
    '|\n'
)
_COLUMNS = ('name', 'data_set', 'image_size', 'parameters', 'multiply_adds')


@dataclass(frozen=True)
class ModelCost:
    """The trainable parameters of a model for a data set, and the GMACs of one image's forward
    pass.
    """

    facts: ModelFacts
    parameters: int
    gmacs: float


def list_costs(pattern: str = '*') -> list[ModelCost]:
    """The costs of the models whose names match a pattern with shell wildcards; those not in the
    table are counted.
    """
    counted = read_table()
    costs = []
    for facts in MODELS.list_facts(pattern):
        key = (facts.name, facts.data_set, facts.image_size)
        found = counted.get(key) if facts.network.is_builtin else None
        parameters, multiply_adds = found or _count(facts)
        costs.append(ModelCost(facts, parameters, multiply_adds / 1e9))
    return costs


def read_table() -> dict[tuple[str, str, int], tuple[int, int]]:
    """Reads the table: (name, data set, image size) -> (parameters, multiply-adds)."""
    with _TABLE.open(newline='') as file:
        return {
            (row['name'], row['data_set'], int(row['image_size'])): (
                int(row['parameters']),
                int(row['multiply_adds']),
            )
            for row in csv.DictReader(file)
        }


def _count(facts: ModelFacts) -> tuple[int, int]:
    # TensorFlow reads this variable when it is imported.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    from models.counting import cost_of

    cost = cost_of(facts)
    return cost.parameters, cost.multiply_adds


def write_table() -> None:
    with _TABLE.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(_COLUMNS)
        for facts in MODELS.list_facts():
            writer.writerow((facts.name, facts.data_set, facts.image_size, *_count(facts)))


def format_docs(costs: Sequence[ModelCost]) -> str:
    rows = [
        f'| `{cost.facts.name}` | {cost.facts.data_set} | {cost.parameters:,} | {cost.gmacs:.3g} | '
        f'{cost.facts.image_size} | {cost.facts.batch_size} | {_format_rate(cost.facts)} |\n'
        for cost in costs
    ]
    return ''.join([_DOCS_HEAD, '|---|---|---|---|---|---|---|\n', *rows])


def _format_rate(facts: ModelFacts) -> str:
    images = facts.schedule.per_images
    return f'{facts.learning_rate:g}{f" for {images} images" if images else ""}'


def replace_docs(text: str, costs: Sequence[ModelCost]) -> str:
    return re.sub(f'{re.escape(_DOCS_HEAD)}(?:.+\n)*', lambda _: format_docs(costs), text, count=1)


if __name__ == '__main__':
    write_table()
    _DOCS.write_text(replace_docs(_DOCS.read_text(), list_costs()))
