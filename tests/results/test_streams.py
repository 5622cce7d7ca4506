"""Results are read from pipes and in UTF-16; - is standard input or output."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line
from tests.support.programs import PROGRAM, run_main
from tests.support.sample_results import write_sample
from tf_cnn.results.collection import collect
from tf_cnn.system.errors import read_file

pytestmark = pytest.mark.unit


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
