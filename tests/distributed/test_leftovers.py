"""Commands write where their flags say, and change no other folder."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import write_files
from tests.support.images import encoded, picture
from tests.support.programs import run

pytestmark = pytest.mark.distributed

UNSET: dict[str, Any] = dict.fromkeys(
    ('KERAS_HOME', 'MPLCONFIGDIR', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME')
)


def test_commands_create_and_remove_nothing_in_other_folders(tmp_path):
    # Names that look like temporary files; no process has these numbers.
    files = (
        'tf_cnn_benchmarks_20261124_mine/notes',
        'tf_cnn_benchmarks-20261124/notes',
        'tf_cnn_benchmarks_99999999_x/model.ckpt-0.index',
        '.r.json.0123abcd.part',
        '.model-unfinished/notes',
    )
    tmp, home, working, results = (tmp_path / name for name in ('tmp', 'home', 'working', 'out'))
    for folder in (tmp, home, working, results):
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text('mine')
            os.utime(folder / file, (0, 0))

    def times() -> dict[Path, float]:
        paths = [path for folder in (tmp, home, working) for path in folder.rglob('*')]
        return {path: path.lstat().st_mtime for path in paths}

    before = times()
    photos = {f'{name}/1.jpg': encoded(picture()) for name in ('cat', 'dog')}
    write_files(results / 'photos', photos)
    flags = '--model=trivial --device=cpu --batch_size=2 --num_batches=2 --num_warmup_batches=1'
    # The folder of checkpoints looks like a temporary one.
    train = 'tf_cnn_benchmarks_20261124_train'
    for command in (
        f'cluster --workers=1 -- {flags} --train_dir=../out/{train} --result_file=../out/r.json',
        f'{flags} --repeat=2 --result_file=../out/repeats/r.json',
        'records --input=../out/photos --output=../out/shards --shards=1',
        'report ../out/repeats --output=../out/page.html',
    ):
        process = run(command, working, **UNSET, TMPDIR=str(tmp), HOME=str(home))
        assert process.code == 0, process.err
    assert times() == before
    assert all((results / file).read_text() == 'mine' for file in files)
    assert (results / train / 'model.ckpt-3.index').exists()
