"""What the models of the catalog cost, from a table that was counted once, so that no graph is built to look it up.

    python -m models.costs

counts all of them anew, and writes the table (models/costs.csv) and the list of models in docs/models.md.
"""

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.catalog import ModelFacts, list_facts
from models.registry import is_registered

_TABLE = Path(__file__).with_name('costs.csv')
_DOCS = Path(__file__).resolve().parent.parent / 'docs' / 'models.md'
# In docs/models.md the list begins with this line and ends with the next empty one.
_DOCS_HEAD = '| model | data set | parameters | GFLOPs per image | image size | batch size | learning rate |\n'
_COLUMNS = ('name', 'data_set', 'image_size', 'parameters', 'multiply_adds')


@dataclass(frozen=True)
class ModelCost:
    """A model for a data set, its trainable parameters, and its forward GFLOPs for an image (counting.Cost.gflops)."""

    facts: ModelFacts
    parameters: int
    gflops: float


def list_costs(pattern: str = '*') -> list[ModelCost]:
    """The models that a pattern with shell wildcards matches. Those that the table lacks are counted."""
    counted = read_table()
    costs = []
    for facts in list_facts(pattern):
        found = None if is_registered(facts.name) else counted.get((facts.name, facts.data_set, facts.image_size))
        parameters, multiply_adds = found or _count(facts)
        costs.append(ModelCost(facts, parameters, multiply_adds / 1e9))
    return costs


def read_table() -> dict[tuple[str, str, int], tuple[int, int]]:
    """(name, data set, image size) -> (parameters, multiply-adds)."""
    with _TABLE.open(newline='') as file:
        return {
            (row['name'], row['data_set'], int(row['image_size'])): (int(row['parameters']), int(row['multiply_adds']))
            for row in csv.DictReader(file)
        }


def _count(facts: ModelFacts) -> tuple[int, int]:
    # Imports TensorFlow, which reads this then.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    from models.counting import cost_of

    cost = cost_of(facts)
    return cost.parameters, cost.multiply_adds


def write_table() -> None:
    """Counts all models of the catalog and writes the table."""
    with _TABLE.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(_COLUMNS)
        for facts in list_facts():
            writer.writerow((facts.name, facts.data_set, facts.image_size, *_count(facts)))


def format_docs(costs: Sequence[ModelCost]) -> str:
    """The list of models in docs/models.md."""
    rows = [
        f'| `{cost.facts.name}` | {cost.facts.data_set} | {cost.parameters:,} | {cost.gflops:.3g} | '
        f'{cost.facts.image_size} | {cost.facts.batch_size} | {cost.facts.learning_rate:g} |\n'
        for cost in costs
    ]
    return ''.join([_DOCS_HEAD, '|---|---|---|---|---|---|---|\n', *rows])


def replace_docs(text: str, costs: Sequence[ModelCost]) -> str:
    """The text of docs/models.md with this list of models in place of the one that it has."""
    return re.sub(f'{re.escape(_DOCS_HEAD)}(?:.+\n)*', lambda _: format_docs(costs), text, count=1)


if __name__ == '__main__':
    write_table()
    _DOCS.write_text(replace_docs(_DOCS.read_text(), list_costs()))
