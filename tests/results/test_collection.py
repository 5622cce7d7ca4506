"""Results are found in folders, and what cannot be read there is named."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tests.support.programs import run_main
from tests.support.sample_results import write_sample
from tf_cnn.results.collection import collect

pytestmark = pytest.mark.unit

_NOBODY = 65534


@pytest.fixture
def results() -> Iterator[Path]:
    """A folder that every user may read, with three results."""
    folder = Path(tempfile.mkdtemp(prefix='tf_cnn_results-'))
    folder.chmod(0o755)
    umask = os.umask(0o022)
    for number in range(3):
        write_sample(folder / f'results/{number}.json', seed=number)
    yield folder / 'results'
    os.umask(umask)
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
def test_a_path_without_permission_in_a_folder_is_named_and_fails_a_gate(name, results):
    locked, before = results.parent / name, results.parent / 'before'
    for path in ('slow.json', 'deeper/slow.json'):
        write_sample(results / 'locked' / path, rate=1)
    for number in range(3):
        write_sample(before / f'{number}.json', seed=10 + number)
    gate = ('--fail_below=0.001', '--format=json')
    run_main('compare', before, results, *gate)
    with without_permission(locked):
        (problem,) = collect([str(results)]).problems
        _, error = run_main('compare', before, results, *gate, code=1)
        _, error_of_history = run_main('compare', before, f'--against={results}', *gate, code=1)
    check_line(problem, f'{locked}: ', 'Permission denied')
    for line in (error + error_of_history).splitlines():
        check_line(line, f'{locked}: ')


def test_linked_folders_are_read_once_and_links_that_lead_nowhere_are_named(results):
    linked = results.parent / 'linked'
    write_sample(linked / 'deeper/slow.json', seed=3, rate=1)
    for name, folder in (('host', linked), ('again', linked), ('up', results)):
        (results / name).symlink_to(folder)
    collection = collect([str(results)])
    assert len(collection.results) == 4
    assert not collection.problems
    (results / 'gone').symlink_to('nowhere')
    (problem,) = collect([str(results)]).problems
    check_line(problem, f'{results}/gone: ', 'nowhere')
    _, error = run_main('compare', results / '0.json', results, '--fail_below=0.001', code=1)
    (results / 'gone').unlink()
    check_line(error.splitlines()[-1], 'some results are unknown', f'{results}/gone: ')
