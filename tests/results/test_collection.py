"""Results are found in folders, read from pipes and in UTF-16, and what cannot be read is named."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line
from tests.support.programs import PROGRAM, run_main
from tests.support.sample_results import write_sample
from tf_cnn.results.collection import collect
from tf_cnn.system.errors import read_file

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
    locked.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            # Root may read everything.
            os.seteuid(_NOBODY)
        (problem,) = collect([str(results)]).problems
        _, error = run_main('compare', before, results, *gate, code=1)
        _, error_of_history = run_main('compare', before, f'--against={results}', *gate, code=1)
    finally:
        os.seteuid(user)
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


# ---- streams -------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path: Path) -> str:
    write_sample(tmp_path / 'a.json', seed=1)
    write_sample(tmp_path / 'b.json', seed=2)
    return (tmp_path / 'a.json').read_text()


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16'])
def test_results_logs_and_sweeps_are_read_in_the_encodings_of_windows(encoding, text, tmp_path):
    log = 'Model:       lenet\ntotal images/sec: 80.00\n'
    for name, content in (('result.json', text), ('run.log', log)):
        (tmp_path / name).write_text(content, encoding=encoding)
        out, _ = run_main('compare', tmp_path / name, tmp_path / 'b.json', '--force')
        assert name in out
    assert len(collect([str(tmp_path / 'result.json')]).results) == 1
    sweep = '[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2]\n'
    (tmp_path / 'mine.toml').write_text(sweep, encoding=encoding)
    assert '--batch_size=2' in run_main('sweep', tmp_path / 'mine.toml', '--dry_run')[0]


def test_a_pipe_is_read_to_its_end(text, tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    # The writer begins late, and writes in parts.
    writer = 'sleep 0.3; head -c 9 a.json; sleep 0.3; tail -c +10 a.json'
    with subprocess.Popen(['sh', '-c', f'({writer}) > pipe'], cwd=tmp_path):
        assert read_file(pipe).decode() == text
    with pytest.raises(OSError, match='more than 1000 bytes'):
        read_file('/dev/zero', 1000)


@pytest.mark.surroundings
def test_a_dash_is_standard_input_or_output(text, tmp_path):
    other = str(tmp_path / 'b.json')
    outputs = [
        subprocess.run([*PROGRAM, *words], input=text, capture_output=True, text=True)
        for words in (['compare', '-', other], ['report', '-', other, '--output=-'])
    ]
    assert [process.returncode for process in outputs] == [0, 0]
    assert 'standard input' in outputs[0].stdout
    page, lines = outputs[1].stdout, outputs[1].stderr
    assert page.startswith('<!doctype html>')
    assert page.rstrip().endswith('</html>')
    assert '-: 2 results' in lines
    _, error = run_main('sweep', 'precision', '--output=-', code=2)
    check_line(error, '--output=-:', './-')
    assert not Path('-').exists()
    script = f'{" ".join(PROGRAM)} report {quoted(tmp_path)}/a.json --output=/dev/stdout | head -1'
    assert subprocess.check_output(['bash', '-c', script], text=True) == '<!doctype html>\n'
