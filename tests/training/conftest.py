"""Fixtures of the tests of checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.number_model import NumberModel, open_model


@pytest.fixture
def model(tmp_path: Path) -> Iterator[NumberModel]:
    """A model on two devices that keeps two checkpoints in tmp_path."""
    with open_model(tmp_path, 2, max_to_keep=2) as opened:
        yield opened
