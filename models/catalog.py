"""The built-in models. Reads them without TensorFlow, which the modules with their networks import.

A model is declared by @model at the function that builds its network. `python -m models.costs`
writes all of them, with their costs, to models/catalog.json.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from models.model_spec import CONSTANT_RATE, BatchNorm, ModelSpec, Network, RateSchedule

FunctionT = TypeVar('FunctionT', bound=Callable[..., Any])

CATALOG_FILE = Path(__file__).with_name('catalog.json')
# The models that the imported modules declare, in order.
DECLARED: list[ModelSpec] = []


# The columns of a row of the catalog.
def model(
    name: str,
    data_set: str,
    *,
    image_size: int,
    batch_size: int,
    learning_rate: float,
    batch_norm: BatchNorm | None = None,
    schedule: RateSchedule = CONSTANT_RATE,
    any_size: bool = False,
    **options: Any,
) -> Callable[[FunctionT], FunctionT]:
    """Returns a decorator that makes a function the network of a model for a data set.

    Decorators can be stacked: Python applies the one next to the function first, and the first data
    set of a model is its default.

    Image sizes, batch sizes and learning rates come from published results of the original program,
    unless a comment names another source.

    Args:
      options: keyword arguments of the function. See ModelSpec for the others.
    """

    def declare(build: FunctionT) -> FunctionT:
        builder = f'{build.__module__.rpartition(".")[2]}:{build.__name__}'
        DECLARED.append(
            ModelSpec(
                name,
                data_set,
                image_size,
                batch_size,
                learning_rate,
                Network(builder, options, batch_norm or BatchNorm()),
                any_size=any_size,
                schedule=schedule,
            )
        )
        return build

    return declare


def read_catalog() -> list[ModelSpec]:
    """Returns the built-in models in the order of the file."""
    return [_to_model(row) for row in _read_rows()]


def read_costs() -> dict[tuple[str, str, int], tuple[int, int]]:
    """Returns (name, data set, image size) -> (parameters, multiply-adds)."""
    return {
        (row['name'], row['data_set'], row['image_size']): (
            row['parameters'],
            row['multiply_adds'],
        )
        for row in _read_rows()
    }


def to_row(spec: ModelSpec, parameters: int, multiply_adds: int) -> dict[str, Any]:
    """Returns a model as JSON values, without fields that have their default."""
    network = spec.network
    row = {
        **vars(spec),
        'network': network.builder,
        'options': dict(network.options),
        'batch_norm': network.batch_norm,
        'parameters': parameters,
        'multiply_adds': multiply_adds,
    }
    defaults = {field.name: field.default for field in dataclasses.fields(ModelSpec)}
    defaults |= {'options': {}, 'batch_norm': BatchNorm()}
    values = {name: value for name, value in row.items() if value != defaults.get(name)}
    return msgspec.json.decode(msgspec.json.encode(values), type=dict[str, Any])


def _read_rows() -> list[dict[str, Any]]:
    return msgspec.json.decode(CATALOG_FILE.read_bytes(), type=list[dict[str, Any]])


def _to_model(row: dict[str, Any]) -> ModelSpec:
    values = {
        field.name: row[field.name] for field in dataclasses.fields(ModelSpec) if field.name in row
    }
    batch_norm = BatchNorm(**row.get('batch_norm', {}))
    values['network'] = Network(row['network'], row.get('options', {}), batch_norm)
    if 'schedule' in row:
        values['schedule'] = msgspec.convert(row['schedule'], RateSchedule)
    return ModelSpec(**values)
