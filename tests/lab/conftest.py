from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of each test, with a blank in its name."""
    folder = tmp_path / 'a folder'
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
