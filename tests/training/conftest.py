"""Fixtures of the tests of checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.graphs import Model, open_model


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Model, Any]]:
    """A model that saves in tmp_path, and a session of it."""
    with open_model(tmp_path) as model_and_session:
        yield model_and_session
