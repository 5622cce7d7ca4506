"""The photographs that benchmarks run on: the same files each time, which the subcommand `records` takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.images import REPOSITORY, convert, read_examples

pytestmark = [pytest.mark.graph, pytest.mark.long]


def test_sample_photographs_become_shards_and_a_second_call_changes_nothing(tmp_path: Path) -> None:
    for package in ('skimage', 'sklearn'):
        pytest.importorskip(package, reason='the photographs come with it; the dev extra installs it')
    script = str(REPOSITORY / 'benchmarks' / 'sample_photographs.py')

    def sample(folder: str) -> Path:
        subprocess.run([sys.executable, script, f'--output={tmp_path / folder}', '--num_images=9'], check=True)
        return tmp_path / folder

    photos = sample('photos')
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in photos.rglob('*.jpg')}
    assert len(before) == 9
    sample('photos')
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in photos.rglob('*.jpg')} == before
    again = sample('again')
    assert {again / path.relative_to(photos): data for path, (_, data) in before.items()} == {
        path: path.read_bytes() for path in again.rglob('*.jpg')
    }
    convert(photos, tmp_path / 'out', '--shards=2')
    assert sorted(len(example['image/encoded']) for example in read_examples(tmp_path / 'out')) == sorted(
        len(data) for _, data in before.values()
    )
