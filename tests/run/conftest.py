"""Data sets that several files of tests read."""

from pathlib import Path

import pytest

from tests.support.images import write_noise


@pytest.fixture(scope='session')
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 16 training images and 23 validation images."""
    folder = tmp_path_factory.mktemp('noise')
    write_noise(folder, 23)
    return folder
