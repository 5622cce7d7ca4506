"""Results are found in folders, and what cannot be read there is named."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tf_cnn_benchmarks
from tests.support.outputs import check_line, refused
from tests.support.sample_results import write_sample
from tf_cnn.results.collection import collect

pytestmark = pytest.mark.unit

_NOBODY = 65534


@pytest.fixture
def results() -> Iterator[Path]:
    """A folder that every user may read, with three results."""
    folder = Path(tempfile.mkdtemp(prefix='tf_cnn_results-'))
    folder.chmod(0o755)
    for number in range(3):
        write_sample(folder / f'results/{number}.json', seed=number)
    yield folder / 'results'
    for path in folder.rglob('*'):
        path.chmod(0o700)
    shutil.rmtree(folder)


@contextlib.contextmanager
def without_permission(path: Path, mode: int = 0) -> Iterator[None]:
    """Takes away the permission to read a path. Root, who may read everything, is another user in
    the block.
    """
    path.chmod(mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o700)


@pytest.mark.parametrize(
    'name', ['results/locked', 'results/locked/deeper', 'results/locked/slow.json']
)
def test_what_may_not_be_read_in_a_folder_is_named_and_fails_a_gate(
    name: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sample(results / 'locked/slow.json', rate=1, seed=7)
    write_sample(results / 'locked/deeper/slow.json', rate=1, seed=8)
    locked = results.parent / name
    for number in range(3):
        write_sample(results.parent / f'before/{number}.json', seed=10 + number)
    argv = [
        'compare',
        str(results.parent / 'before'),
        str(results),
        '--fail_below=0.001',
        '--format=json',
    ]
    assert tf_cnn_benchmarks.main(argv) == 0
    capsys.readouterr()
    with without_permission(locked):
        (problem,) = collect([str(results)]).problems
        assert tf_cnn_benchmarks.main(argv) == 1
        assert tf_cnn_benchmarks.main([argv[0], argv[1], f'--against={results}', *argv[3:]]) == 1
    check_line(problem, f'{locked}: ', 'Permission denied')
    for line in capsys.readouterr().err.splitlines():
        check_line(line, f'{locked}: ')


@pytest.mark.parametrize('name', ['results', 'results/0.json', '.'])
def test_a_path_that_may_not_be_read_says_so(
    name: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = results.parent / name
    paths = [str(results)] if locked.is_dir() else [str(locked)]
    if name == '.':
        paths.append(str(results / '0.json'))
    with without_permission(locked):
        for path in paths:
            with refused(path, 'Permission denied'):
                collect([path])
            assert tf_cnn_benchmarks.main(['compare', path, path]) == 2
            check_line(capsys.readouterr().err.strip(), path, 'Permission denied')
