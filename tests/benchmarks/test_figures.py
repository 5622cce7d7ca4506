"""Pictures of README.md and docs/lab.md are made of results; only missing ones are measured."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import figures
from tests.support.programs import ROOT
from tests.support.sample_results import write_sample

pytestmark = pytest.mark.unit

SWEEPS = [*(folder for folder, _ in figures.PLOTS.values()), figures.RESULTS[1]]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of all pictures, as `make bench` and sweeps write them."""
    write_sample(tmp_path / figures.RESULTS[0] / 'run.json', flags={'model': 'resnet50'})
    for folder in SWEEPS:
        for mode in ('replicated', 'parameter_server'):
            path = tmp_path / folder / 'results' / f'{mode}.1.json'
            write_sample(path, flags={'variable_update': mode})
        commands = 'replicated: a\nparameter_server: b\n'
        (tmp_path / folder / 'commands.txt').write_text(commands)
    (tmp_path / figures.PAGE).parent.mkdir(exist_ok=True)
    (tmp_path / figures.PAGE).touch()
    return tmp_path


def test_results_that_are_there_are_not_measured_again(results):
    assert [*figures.missing_commands(results)] == []


def test_missing_results_are_measured_by_the_commands_of_the_pages(tmp_path):
    bench, *sweeps = figures.missing_commands(tmp_path)
    assert bench == ['make', 'bench']
    for (_, program, subcommand, *words), folder in zip(sweeps, SWEEPS[:2], strict=True):
        assert (program, subcommand) == ('tf_cnn_benchmarks.py', 'sweep')
        assert {f'--output={folder}', '--repeats=3', '--model=lenet'} <= {*words}


def test_the_pictures_are_those_of_the_pages(results, tmp_path):
    if not any(map(shutil.which, figures.BROWSERS)):
        pytest.skip('there is no browser: apt-get install chromium chromium-driver')
    pictures = {path.name: path for path in figures.make_figures(results, tmp_path / 'figures')}
    assert {*pictures} == {path.name for path in (ROOT / 'docs/figures').iterdir() if path.suffix}
    pages = ''.join((ROOT / page).read_text() for page in ('README.md', 'docs/lab.md'))
    for name in pictures:
        assert f'figures/{name})' in pages
    assert '>parameter_server</text>' in pictures['sweep.svg'].read_text()
    with Image.open(pictures['bench.png']) as picture:
        # Title, table and two rows of plots.
        assert picture.width == 1220
        assert 800 < picture.height < 2000
