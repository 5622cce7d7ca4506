"""The stored table of costs agrees with the catalog, with the docs and with what is counted."""

import pytest

from models import costs
from models.registry import MODELS

pytestmark = pytest.mark.graph


def test_every_row_of_the_catalog_is_in_the_table_of_costs() -> None:
    rows = {(facts.name, facts.data_set, facts.image_size) for facts in MODELS.list_facts()}
    assert set(costs.read_table()) == rows, 'write it anew with: python -m models.costs'


# Those whose graphs are large are held to the parameters that their own tests know.
QUICK = ('trivial', 'lenet', 'mnist', 'alexnet', 'vgg16', 'resnet50*')


@pytest.mark.parametrize('pattern', QUICK)
def test_the_table_of_costs_is_what_is_counted(pattern: str) -> None:
    table = costs.read_table()
    for facts in MODELS.list_facts(pattern):
        assert table[facts.name, facts.data_set, facts.image_size] == costs._count(facts), facts


@pytest.mark.all_modes
def test_all_of_the_table_of_costs_is_what_is_counted() -> None:
    for key, cost in costs.read_table().items():
        (facts,) = [row for row in MODELS.list_facts(key[0]) if row.data_set == key[1]]
        assert costs._count(facts) == cost, key
