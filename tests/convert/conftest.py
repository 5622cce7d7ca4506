from pathlib import Path

import pytest

from tests.support.images import write_photos, write_shards_of


@pytest.fixture(scope='package')
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp('photos'))


@pytest.fixture(scope='package')
def good_shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards_of(photos, tmp_path_factory.mktemp('shards'))
