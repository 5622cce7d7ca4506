"""The subcommand `report` writes a page."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.files import file_size_limit
from tests.support.outputs import check_line, check_warning, failed, refused
from tests.support.programs import run, run_main
from tests.support.sample_results import sample_document, write_document, write_sample
from tf_cnn.cli import report
from tf_cnn.system.errors import install_command

pytestmark = pytest.mark.unit


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / 'results'
    write_sample(folder / 'first.json')
    return folder


def test_the_page_and_the_plots_are_written(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (results / 'other.json').write_text('[]')
    files = ('--plots=figures/new', '--output=new/page.html')
    out, err = run_main('report', 'results', '--title=A <title>', *files)
    check_line(out.splitlines()[-1], 'new/page.html', '1 result in')
    check_line(err, 'other.json')
    page = Path('new/page.html').read_text(encoding='utf-8')
    assert '<h1>A &lt;title&gt;</h1>' in page
    assert '1 file could not be read' in page
    assert 'other.json' in page
    # Nothing in it leads elsewhere: no script, style or picture of another file or host.
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert {path.name for path in Path('figures/new').iterdir()} == {'steps.png', 'steps.svg'}
    assert sorted(path.name for path in tmp_path.iterdir()) == ['figures', 'new', 'results']


def test_no_warning_of_a_library_reaches_the_user(tmp_path):
    """Letters that the font lacks, numbers beyond the range of arithmetic, wrong settings of
    matplotlib.
    """
    folder = tmp_path / 'results'
    for number, seconds in enumerate([1e-90, 1e-5, 1e90]):
        flags = {'num_gpus': number + 1}
        write_sample(folder / f'{number}.json', seconds=[seconds] * 20, gap=1e-4, flags=flags)
    letter = '\N{CJK UNIFIED IDEOGRAPH-6A21}'
    for number, rate in enumerate([1e-100, 1e100, 1e-9]):
        document = sample_document(seed=number, flags={'model': f'{letter}\x07\x1b[31m'})
        document['throughput'] |= {'images_per_second': rate, 'images': 0}
        write_document(folder / f'rate{number}.json', document)
    (tmp_path / 'matplotlibrc').write_text('no.such.key: 1\nfont.family: no such font\n')
    code, out, err = run('report results --plots=plots', cwd=tmp_path, MPLCONFIGDIR='/proc/nothing')
    assert code == 0
    check_line(out.splitlines()[-1], 'report.html: 6 results')
    assert err.count('\n') == 1
    check_warning(err, '--plots=plots', letter, 'PNG')
    code, _, err = run('compare results --force', cwd=tmp_path)
    assert (code, err) == (0, '')
    # The page and its plots have no character that could control a terminal or a browser.
    for path in (tmp_path / 'report.html', *tmp_path.glob('plots/*.svg')):
        text = path.read_text(encoding='utf-8')
        assert {letter for letter in text if not letter.isprintable()} == {'\n'}
    assert '\\x1b[31m' in (tmp_path / 'report.html').read_text(encoding='utf-8')


def test_the_first_lines_of_the_page_are_printed(results, tmp_path):
    write_sample(results / 'second.json', flags={'model': 'resnet50'}, rate=7, noise=0)
    out, _ = run_main('report', results, f'--output={tmp_path / "page.html"}')
    page = (tmp_path / 'page.html').read_text(encoding='utf-8')
    first, second, _ = out.splitlines()
    assert re.findall('<p class="answer">(.*?)</p>', page) == [first, second]
    check_line(second, 'resnet50: 7.00 images/sec', 'batch 32', '1*1')


@pytest.mark.parametrize(
    ('price', 'facts'),
    [
        ('a=1.20,other=1', ('other', 'a or b')),
        ('cheap', ('cheap', 'positive number')),
        ('a=-1', ('-1', 'positive number')),
        ('1,20', ('no name', '1.20')),
        ('a=1,a=2', ('two prices',)),
    ],
)
def test_a_price_must_be_a_positive_number_for_a_folder(price, facts, results, tmp_path):
    for name in 'ab':
        write_sample(tmp_path / name / 'run.json', seed=ord(name))
    with refused(f'--price_per_hour={price}', *facts):
        report.main([str(tmp_path / 'a'), str(tmp_path / 'b'), f'--price_per_hour={price}'])


@pytest.mark.parametrize('name', ['jinja2', 'matplotlib'])
def test_a_missing_extra_is_named(results, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with refused(name, install_command(name)):
        report.main([str(results)])


def test_an_older_page_stays_whole_if_the_new_one_cannot_be_written(results, tmp_path):
    page = tmp_path / 'page.html'
    page.write_text('<!doctype html>old')
    with file_size_limit(10_000), failed(page, '(file too large)'):
        report.main([str(results), f'--output={page}'])
    assert page.read_text() == '<!doctype html>old'
    assert not list(tmp_path.glob('.*'))


@pytest.mark.parametrize('is_there', [False, True])
def test_a_plot_is_whole_or_not_there_if_the_disk_is_full(results, tmp_path, is_there):
    argv = [str(results), '--output=/dev/null', f'--plots={tmp_path / "plots"}']
    if is_there:
        report.main(argv)
        write_sample(results / 'second.json', seed=2)
    old = {path.name: path.read_bytes() for path in tmp_path.glob('plots/*')}
    # The SVG file fits, the PNG file does not.
    with file_size_limit(12_000), failed(tmp_path / 'plots' / 'steps.png'):
        report.main(argv)
    new = {path.name: path.read_bytes() for path in tmp_path.glob('plots/*')}
    assert new.keys() == {'steps.svg', *old}
    assert new['steps.svg'].endswith(b'</svg>\n')
    assert new.get('steps.png') == old.get('steps.png')
    assert not [*tmp_path.glob('plots/.*')]
