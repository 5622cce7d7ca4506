"""The photographs that benchmarks run on: the same files each time, which the subcommand `records` takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.images import REPOSITORY, convert, read_examples

pytestmark = [pytest.mark.graph, pytest.mark.long]


def test_sample_photographs_are_the_same_each_time_and_become_shards(tmp_path: Path) -> None:
    def sample(folder: str) -> subprocess.CompletedProcess[bytes]:
        script = str(REPOSITORY / 'benchmarks' / 'sample_photographs.py')
        command = [sys.executable, script, f'--output={tmp_path / folder}', '--num_images=9']
        return subprocess.run(command, stderr=subprocess.PIPE, check=False)

    assert [sample(folder).returncode for folder in ('photos', 'again', 'photos')] == [0, 0, 2]
    photos, again = (
        {path.relative_to(tmp_path / folder): path.read_bytes() for path in (tmp_path / folder).rglob('*.jpg')}
        for folder in ('photos', 'again')
    )
    assert len(photos) == 9
    assert photos == again
    convert(tmp_path / 'photos', tmp_path / 'out', '--shards=2')
    sizes = sorted(len(example['image/encoded']) for example in read_examples(tmp_path / 'out'))
    assert sizes == sorted(map(len, photos.values()))
