"""A run writes where its flags say, and neither leaves nor removes anything in other folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.images import encoded, picture, write_files

pytestmark = pytest.mark.distributed

PROGRAM = Path(__file__).resolve().parent.parent.parent / 'tf_cnn_benchmarks.py'
RUN = (
    '--model=trivial',
    '--device=cpu',
    '--batch_size=2',
    '--num_batches=2',
    '--num_warmup_batches=1',
)
# Names like those of temporary files of this program and others, whose numbers are of no process.
FILES = (
    'tf_cnn_benchmarks_20261124_mine/notes',
    'tf_cnn_benchmarks-20261124/notes',
    'tf_cnn_benchmarks_99999999_x/model.ckpt-0.index',
    '.r.json.0123abcd.part',
    '.model-unfinished/notes',
)


def test_commands_leave_and_remove_nothing_elsewhere(tmp_path: Path) -> None:
    watched = [tmp_path / name for name in ('tmp', 'home', 'working')]
    results = tmp_path / 'results'
    for folder in (*watched, results):
        for file in FILES:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text('mine')
            os.utime(folder / file, (0, 0))
    before = {path: path.lstat().st_mtime for folder in watched for path in folder.rglob('*')}
    unset = ('KERAS_HOME', 'MPLCONFIGDIR', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME')
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {'TMPDIR': str(watched[0]), 'HOME': str(watched[1])}
    write_files(
        results / 'photos', {f'{name}/1.jpg': encoded(picture()) for name in ('cat', 'dog')}
    )
    # The folder of checkpoints looks like a temporary one.
    train = results / 'tf_cnn_benchmarks_20261124_train'
    for command in (
        (
            *RUN,
            f'--train_dir={train}',
            f'--export_saved_model={results}/model',
            f'--result_file={results}/r.json',
        ),
        (*RUN, '--repeat=2', f'--result_file={results}/repeats/r.json'),
        (
            'cluster',
            '--ps=1',
            '--workers=1',
            '--',
            *RUN,
            f'--export_saved_model={results}/of_cluster',
        ),
        ('records', f'--input={results}/photos', f'--output={results}/shards', '--shards=1'),
        ('report', str(results / 'repeats'), f'--output={results}/page.html'),
    ):
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), *command],
            cwd=watched[2],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
    assert {
        path: path.lstat().st_mtime for folder in watched for path in folder.rglob('*')
    } == before
    assert all((results / file).read_text() == 'mine' for file in FILES)
    assert (train / 'model.ckpt-3.index').exists()
