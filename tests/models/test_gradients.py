"""The stored table of gradients agrees with the catalog and with what is counted."""

import pytest

from models import gradients
from models.costs import read_table as read_costs
from models.registry import MODELS

pytestmark = pytest.mark.graph

QUICK = ('trivial', 'lenet', 'alexnet', 'vgg16', 'resnet50')


def test_every_row_of_the_catalog_is_in_the_table_with_its_parameters() -> None:
    rows = {(facts.name, facts.data_set, facts.image_size) for facts in MODELS.list_facts()}
    found = gradients.read_table()
    assert set(found) == rows, 'write it anew with: python -m models.gradients'
    assert {key: row.parameters for key, row in found.items()} == {key: row[0] for key, row in read_costs().items()}


def test_gradients_are_ready_in_the_order_of_the_table() -> None:
    for key, row in gradients.read_table().items():
        ready = [after for _, after in row.pieces]
        assert ready == sorted(ready), key
        assert 0 <= ready[0] <= ready[-1] == 1, key


@pytest.mark.parametrize('model', QUICK)
def test_the_table_of_gradients_is_what_is_counted(model: str) -> None:
    facts = MODELS.find_model(model)
    assert gradients.read_table()[facts.name, facts.data_set, facts.image_size] == gradients._count(facts)


@pytest.mark.all_modes
def test_all_of_the_table_of_gradients_is_what_is_counted() -> None:
    for facts in MODELS.list_facts():
        key = (facts.name, facts.data_set, facts.image_size)
        assert gradients.read_table()[key] == gradients._count(facts), key
