import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.local_cluster import LocalCluster


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Makes clusters; after the test all their tasks stop."""
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **options: Any) -> LocalCluster:
            return stack.enter_context(contextlib.closing(LocalCluster(*args, **options)))

        yield make
