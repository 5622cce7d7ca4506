from collections.abc import Iterator

import pytest

from models.registry import MODELS, register_model
from tests.support.graphs import convolved, linear, normalised


@pytest.fixture(scope='package', autouse=True)
def _networks() -> Iterator[None]:
    """Registers small networks for MNIST, and for images of 28 x 28 pixels in records."""
    names = []
    for network in (linear, normalised, convolved):
        for data_set, end in (('mnist', ''), ('imagenet', '_on_records')):
            names.append(f'{network.__name__}{end}')
            register_model(names[-1], network, data_set=data_set, image_size=28)
    yield
    MODELS.unregister(*names)
