"""The gradients of each model in the order in which the backward pass makes them. Does not import TensorFlow.

    python -m models.gradients

counts those of all built-in models again, and writes the table (models/gradients.csv).
"""

import csv
import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.model_facts import ModelFacts
from models.registry import MODELS

_TABLE = Path(__file__).with_name('gradients.csv')
_COLUMNS = ('name', 'data_set', 'image_size', 'tensors', 'largest', 'pieces')
# A piece of the table has at most this share of all values, unless one variable has more.
_SHARE = 1 / 20


@dataclass(frozen=True)
class GradientFacts:
    """The gradients of one network, combined into a few pieces.

    Attributes:
      tensors: the number of trainable variables.
      largest: the values of the largest variable.
      pieces: for each piece, in the order of the backward pass, its values and the part of the backward pass after
        which they are ready, from 0 to 1.
    """

    tensors: int
    largest: int
    pieces: tuple[tuple[int, float], ...]

    @property
    def parameters(self) -> int:
        """The values of all variables."""
        return sum(size for size, _ in self.pieces)


def in_pieces(gradients: Sequence[tuple[int, float]]) -> GradientFacts:
    """Combines gradients that follow each other into pieces.

    Args:
      gradients: for each variable, in the order of the backward pass, its values and the part of the backward pass
        after which its gradient is ready.
    """
    most = sum(size for size, _ in gradients) * _SHARE
    pieces: list[tuple[int, float]] = []
    ready = 0.0
    for size, after in gradients:
        # Branches of a network are not in the order of the backward pass.
        ready = max(ready, after)
        if pieces and pieces[-1][0] + size <= most and ready - pieces[-1][1] <= _SHARE:
            pieces[-1] = (pieces[-1][0] + size, ready)
        else:
            pieces.append((size, ready))
    rounded = tuple((size, round(after, 3)) for size, after in pieces)
    return GradientFacts(len(gradients), max(size for size, _ in gradients), rounded)


def gradients_of(facts: ModelFacts) -> GradientFacts:
    """Returns the gradients of a model: from the table, or counted in a graph for a user's model.

    Raises:
      UsageError: the network of a user's model cannot be built.
    """
    found = read_table().get((facts.name, facts.data_set, facts.image_size)) if facts.network.is_builtin else None
    return found or _count(facts)


@functools.cache
def read_table() -> dict[tuple[str, str, int], GradientFacts]:
    """Reads the table: (name, data set, image size) -> gradients."""
    with _TABLE.open(newline='') as file:
        return {(row['name'], row['data_set'], int(row['image_size'])): _read(row) for row in csv.DictReader(file)}


def _read(row: dict[str, str]) -> GradientFacts:
    pieces = tuple((int(size), float(ready)) for size, ready in (text.split('@') for text in row['pieces'].split()))
    return GradientFacts(int(row['tensors']), int(row['largest']), pieces)


def _count(facts: ModelFacts) -> GradientFacts:
    # TensorFlow reads this variable when it is imported.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    from models import counting

    return counting.gradients_of(facts)


def write_table(models: Iterable[ModelFacts]) -> None:
    """Counts the gradients of models and writes the table."""
    with _TABLE.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(_COLUMNS)
        for facts in models:
            found = _count(facts)
            pieces = ' '.join(f'{size}@{ready:g}' for size, ready in found.pieces)
            writer.writerow((facts.name, facts.data_set, facts.image_size, found.tensors, found.largest, pieces))


if __name__ == '__main__':
    write_table(MODELS.list_facts())
