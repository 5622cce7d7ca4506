"""The page of `report`: its files, what it says without a network, and what cannot be written."""

import re
import sys
from pathlib import Path

import pytest

from tests.lab.sample_folders import write_commands, write_runs
from tests.support.files import file_size_limit
from tests.support.outputs import check_error, check_line, failed
from tests.support.programs import run, run_main
from tests.support.sample_results import (
    sample_document,
    sample_failure,
    write_document,
    write_sample,
)
from tf_cnn.cli import report
from tf_cnn.system.errors import install_command

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_runs('a')
    write_runs('b', 80)


def test_the_page_and_the_plots_are_written_with_the_answer(tmp_path):
    Path('b/torn.json').write_text('{')
    write_document('b/failure.json', sample_failure(shape='8*1', reason='out of <memory>'))
    files = ('--plots=figures/new', '--output=new/page.html')
    out, _ = run_main('report', 'a', 'b', '--title=A <title>', *files)
    page = Path('new/page.html').read_text(encoding='utf-8')
    answer = run_main('compare', 'a', 'b')[0].splitlines()[0]
    assert re.findall('<p class="answer">(.*?)</p>', page) == [answer] == out.splitlines()[:1]
    check_line(out.splitlines()[-1], 'new/page.html')
    for fact in ('<h1>A &lt;title&gt;</h1>', 'torn.json', 'out of &lt;memory&gt;'):
        assert fact in page
    # Nothing in it leads elsewhere: no script, style or picture of another file or host.
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    names = {path.stem for path in Path('figures/new').iterdir()}
    assert len(names) == page.count('<img') == len([*Path('figures/new').iterdir()]) / 2 == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a', 'b', 'figures', 'new']


def test_sides_of_different_work_stand_each_by_itself_with_the_rates_of_small_ones():
    for value, rate in ((False, 40), (True, 50)):
        flags = {'model': 'resnet50', 'onednn': value}
        write_sample(Path(f'resnet50/{value}.json'), flags=flags, rate=rate)
    out, _ = run_main('report', 'resnet50', 'a')
    start = r'resnet50: onednn=False [34]\d\.\d, onednn=True [45]\d\.\d images/sec; '
    assert re.match(start, out), out
    assert re.search(r'; a: [\d.]+ images/sec; ', out)


def test_a_setting_alone_has_its_time_and_the_interval_in_order():
    write_commands('time', None, flags={'command': 'make'})
    assert run_main('report', 'time')[0].startswith('make: 20.0 s (19.9 s to 20.1 s).\n')


def test_a_page_on_standard_output_is_that_of_compare():
    page, _ = run_main('report', 'a', 'b', '--output=-')
    assert page.startswith('<!doctype html>')
    assert page == run_main('compare', 'a', 'b', '--format=html')[0]


def test_no_warning_of_a_library_reaches_the_user(tmp_path):
    """Letters that the font lacks, numbers beyond the range of arithmetic, wrong settings of
    matplotlib.
    """
    for number, seconds in enumerate([1e-90, 1e-5, 1e90]):
        flags = {'num_gpus': number + 1}
        write_sample(f'results/{number}.json', seconds=[seconds] * 20, gap=1e-4, flags=flags)
    letter = '\N{CJK UNIFIED IDEOGRAPH-6A21}'
    for number, rate in enumerate([1e-100, 1e100, 1e-9]):
        document = sample_document(seed=number, flags={'model': f'{letter}\x07\x1b[31m'})
        document['throughput'] |= {'images_per_second': rate, 'images': 0}
        write_document(f'results/rate{number}.json', document)
    Path('matplotlibrc').write_text('no.such.key: 1\nfont.family: no such font\n')
    code, _, err = run('report results --plots=plots', cwd=tmp_path, MPLCONFIGDIR='/proc/nothing')
    assert (code, err) == (0, '')
    assert all(path.name.isprintable() for path in Path('plots').iterdir())
    code, _, err = run('compare results --force', cwd=tmp_path)
    assert (code, err) == (0, '')
    # The page and its plots have no character that could control a terminal or a browser.
    for path in (Path('report.html'), *tmp_path.glob('plots/*.svg')):
        text = path.read_text(encoding='utf-8')
        assert {letter for letter in text if not letter.isprintable()} == {'\n'}
    assert '\\x1b[31m' in Path('report.html').read_text(encoding='utf-8')


@pytest.mark.parametrize('name', ['jinja2', 'matplotlib'])
def test_a_missing_extra_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, 'tf_cnn.lab.page', raising=False)
    _, err = run_main('report', 'a', 'b', code=2)
    check_error(err, name, install_command(name))


def test_an_older_page_stays_whole_if_the_new_one_cannot_be_written(tmp_path):
    page = tmp_path / 'page.html'
    page.write_text('<!doctype html>old')
    with file_size_limit(10_000), failed(page, '(file too large)'):
        report.main(['a', 'b', f'--output={page}'])
    assert page.read_text() == '<!doctype html>old'
    assert not list(tmp_path.glob('.*'))
