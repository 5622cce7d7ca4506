"""The pictures of README.md and docs/lab.md and the reference results of machines: made of results,
of which only missing ones are measured.
"""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import figures, reference
from tests.support.programs import ROOT
from tests.support.sample_results import sample_document, write_document, write_sample
from tf_cnn.plan.params import SPECS
from tf_cnn.results.collection import collect
from tf_cnn.results.document import as_float
from tf_cnn.system.errors import UsageError

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


# ---- reference results ---------------------------------------------------------------------------


MACHINES = sorted(path for path in reference.REFERENCE.iterdir() if path.is_dir())
REFERENCE_SWEEPS = sorted(reference.REFERENCE.parent.glob('reference*.toml'))


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty folder for reference results."""
    monkeypatch.setattr(reference, 'REFERENCE', tmp_path / 'reference')
    (tmp_path / 'reference').mkdir()
    return tmp_path / 'reference'


def test_the_page_has_the_results_of_the_folders():
    assert reference.PAGE.read_text(encoding='utf-8') == reference.make_page(MACHINES)


def test_reference_results_are_complete_and_name_no_host():
    assert MACHINES
    for folder in MACHINES:
        collection = collect([str(folder)])
        assert not collection.problems
        for result in collection.results:
            assert result.is_complete
            hosts = {result.machine['hostname'], *(row.host for row in result.workers)}
            assert hosts == {folder.name}


@pytest.mark.parametrize('path', REFERENCE_SWEEPS, ids=lambda path: path.stem)
def test_the_flags_of_a_reference_sweep_exist(path):
    sweep = tomllib.loads(path.read_text(encoding='utf-8'))
    for flags in (sweep['flags'], *sweep['include']):
        assert flags.keys() <= SPECS.keys()


def test_added_results_have_the_name_of_the_machine_and_no_path(tmp_path, empty):
    document = sample_document(
        flags={'result_file': '/home/me/a.json'},
        environment={'LD_PRELOAD': '/usr/lib/libtcmalloc.so', 'OMP_NUM_THREADS': '2'},
    )
    write_document(tmp_path / 'mine' / 'a.json', document)
    reference.add_results(str(tmp_path / 'mine'), 'two-cores')
    text = (empty / 'two-cores' / 'a.json').read_text()
    assert document['machine']['hostname'] not in text
    assert '/home/me' not in text
    assert json.loads(text)['environment'] == {'OMP_NUM_THREADS': '2'}


def test_the_page_has_a_table_for_each_machine(tmp_path, empty):
    for seed in range(3):
        write_sample(tmp_path / 'mine' / f'{seed}.json', rate=100, noise=0.001, seed=seed)
    reference.add_results(str(tmp_path / 'mine'), 'two-cores')
    page = reference.make_page([empty / 'two-cores'])
    (row,) = [line for line in page.splitlines() if '--model=lenet' in line]
    cells = [cell.strip() for cell in row.split('|')]
    flops = as_float(collect([str(tmp_path / 'mine')]).results[0].compute.flops_per_image)
    # The rate, its interval, and 10^9 multiply-adds per second.
    assert float(cells[3]) == pytest.approx(100, rel=0.01)
    assert ' to ' in cells[4]
    assert float(cells[5]) == pytest.approx(100 * flops / 2e9, rel=0.01)


def test_incomplete_results_are_no_reference(tmp_path, empty):
    write_sample(tmp_path / 'mine' / 'a.json', complete=False)
    with pytest.raises(UsageError, match='some cases failed'):
        reference.add_results(str(tmp_path / 'mine'), 'two-cores')
    assert not (empty / 'two-cores').exists()
