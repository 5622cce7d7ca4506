"""Fixtures of the tests of checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import Model, cpus, open_session


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Model, Any]]:
    """A model on two devices that keeps two checkpoints in tmp_path, and a session of it."""
    with tf.Graph().as_default() as graph, open_session(2) as session:
        model = Model(tmp_path, cpus(2), max_to_keep=2)
        graph.finalize()
        yield model, session
