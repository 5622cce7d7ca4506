"""The page of `report`: its files, what it says, and what cannot be written. In Chromium, driven by
Selenium, it is whole without a network, and everybody can read it.
"""

import base64
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sample_folders import write_commands, write_runs
from tests.support.files import file_size_limit
from tests.support.outputs import check_error, check_line, failed
from tests.support.programs import run, run_main
from tests.support.sample_results import (
    evaluations,
    sample_document,
    sample_failure,
    write_document,
    write_sample,
)
from tf_cnn.cli import report
from tf_cnn.system.errors import install_command

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path) -> None:
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


# ---- in a browser --------------------------------------------------------------------------------


# Texts of a host, a warning and a reason, and of a flag in plots. They try to become part of the
# page.
HOSTILE = '<img src=x onerror="document.title=1">&amp;$x_1$'
HOSTILE_FLAG = '<i>&lt;$x$'
ARGUMENTS = (
    '--headless=new',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
)
BROWSER, DRIVER = '/usr/bin/chromium', '/usr/bin/chromedriver'


class Page:
    """The page in the browser."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        # Runs JavaScript in the page, and returns its result.
        self.run = driver.execute_script
        # Returns the answer to a command of the Chrome DevTools protocol.
        self.command = driver.execute_cdp_cmd

    def open(self, *, width: int = 1280, dark: bool = False, media: str = '') -> None:
        """Opens the page in a window of this width in CSS pixels, with the user's preferences."""
        window = {'width': width, 'height': 900, 'deviceScaleFactor': 1, 'mobile': width < 600}
        self.command('Emulation.setDeviceMetricsOverride', window)
        scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
        self.command('Emulation.setEmulatedMedia', {'media': media, 'features': [scheme]})
        self.command('Emulation.setScrollbarsHidden', {'hidden': media == 'print'})
        for log in ('performance', 'browser'):
            self.driver.get_log(log)
        self.driver.get(self.url)

    def background(self) -> str:
        return str(self.run('return getComputedStyle(document.body).backgroundColor'))


@pytest.fixture(scope='module')
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip('selenium.webdriver', reason='pip install selenium')
    if not (shutil.which(BROWSER) and shutil.which(DRIVER)):
        pytest.skip('there is no browser: apt-get install chromium chromium-driver')
    profile = tmp_path_factory.mktemp('profile')
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (*ARGUMENTS, f'--user-data-dir={profile}'):
        options.add_argument(argument)
    options.set_capability('goog:loggingPrefs', {'performance': 'ALL', 'browser': 'ALL'})
    service = webdriver.ChromeService(DRIVER, env={**os.environ, 'HOME': str(profile)})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def make_file(*words: object) -> str:
    """Returns the address of the page of `report` with these arguments."""
    file = Path(str(words[0])).with_suffix('.html')
    run_main('report', *words, f'--output={file}')
    return file.as_uri()


@pytest.fixture(scope='module')
def page(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page of 3 modes on 1 to 4 devices, a failure, and texts with HTML."""
    folder = tmp_path_factory.mktemp('results')
    modes = ('replicated', 'parameter_server', 'distributed_replicated')
    settings = [(mode, shape) for mode in modes for shape in ((1, 1), (1, 2), (2, 2))]
    # The last one differs from the first only by a flag with HTML in its value.
    for number, (mode, (workers, devices)) in enumerate([*settings, settings[0]]):
        optimizer = HOSTILE_FLAG if number == len(settings) else 'sgd'
        write_sample(
            folder / f'{number}.json',
            rate=100.0 * workers * devices + number,
            seed=number,
            flags={'variable_update': mode, 'num_gpus': devices, 'optimizer': optimizer},
            machine={'hostname': f'alpha{HOSTILE}'},
            cluster={'num_workers': workers, 'num_ps': int(mode != 'replicated')},
            warnings=[{'code': 'outliers', 'text': HOSTILE}] if number == 2 else [],
        )
    failure = sample_failure(shape='8*1', reason=f'it ran out of memory {HOSTILE}')
    write_document(folder / 'failure.json', failure)
    (folder / '<b>damaged.json').write_text('{')
    return Page(driver, make_file(folder))


@pytest.fixture(scope='module')
def wide_page(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Two machines with every column except the published numbers, and with long values."""
    folders = [tmp_path_factory.mktemp(name) for name in ('epyc-avx512-bf16', 'xeon-avx512')]
    models, optimizers = ('inception_resnet_v2', 'vit_s16'), ('momentum', 'rmsprop')
    settings = itertools.product(folders, models, optimizers, range(3))
    for folder, model, optimizer, seed in settings:
        document = sample_document(
            seed=seed,
            flags={
                'model': model,
                'variable_update': 'distributed_replicated',
                'optimizer': optimizer,
                'stop_at_top_1_accuracy': 0.98,
                'data_dir': f'/data/{model}' * 3,
            },
            machine={'hostname': folder.name},
            environment={'OMP_PROC_BIND': f'spread,close,{folder.name}'},
            evaluations=evaluations(0.5, 0.99),
            warnings=[{'code': code, 'text': ''} for code in ('machine_loaded', 'cpu_quota')],
        )
        document['energy'] |= {'joules': 2.0, 'joules_per_image': 2.0}
        write_document(folder / f'{model}.{optimizer}.{seed}.json', document)
    return Page(driver, make_file(*folders, '--price_per_hour=1.20'))


def test_the_page_asks_for_nothing_and_texts_with_html_stay_texts(page):
    page.open()
    messages = [
        json.loads(entry['message'])['message'] for entry in page.driver.get_log('performance')
    ]
    requests = [
        message['params']['request']['url']
        for message in messages
        if message['method'] == 'Network.requestWillBeSent'
    ]
    # Chromium itself asks for its page of a new tab.
    own_pages = ('data:', 'chrome:', 'chrome-untrusted://new-tab-page/')
    assert {url for url in requests if not url.startswith(own_pages)} == {page.url}
    # Includes warnings and breaches of the content policy.
    assert page.driver.get_log('browser') == []
    assert page.run("return document.querySelectorAll('img:not(figure > img)').length") == 0
    assert page.driver.title == 'Images per second: lenet'
    text = page.run('return document.body.textContent')
    # The flag stands in labels of plots, too, which are pictures that the browser could read.
    reason = f'it ran out of memory {HOSTILE}'
    for expected in (f'alpha{HOSTILE}', reason, '<b>damaged.json', HOSTILE_FLAG):
        assert expected in text
    widths = "return [...document.querySelectorAll('figure img')].map((img) => img.naturalWidth)"
    assert min(page.run(widths)) > 0


@pytest.mark.parametrize('width', [360, 1280])
def test_no_window_is_too_narrow(page, width):
    page.open(width=width)
    assert page.run('return document.documentElement.scrollWidth') <= width
    # Why a run failed can be read without scrolling sideways.
    (left_edge, right_edge) = page.run(
        """const items = [...document.querySelectorAll('li')];
        const reason = items.find((item) => item.textContent.includes('ran out of'));
        const box = reason.getBoundingClientRect(); return [box.left, box.right]"""
    )
    assert 0 <= left_edge < right_edge <= width
    # Plots fit, and their texts of 12 points, 16 pixels, are not scaled down to nothing.
    boxes = page.run(
        """return [...document.querySelectorAll('figure img')]
        .map((img) => [img.getBoundingClientRect(), img.naturalWidth])
        .map(([box, natural]) => [box.left, box.right, natural])"""
    )
    assert all(left_edge >= 0 and right_edge <= width for left_edge, right_edge, _ in boxes)
    assert (
        min(16 * (right_edge - left_edge) / natural for left_edge, right_edge, natural in boxes) > 9
    )


# A sheet of A4 minus its margins, 180 mm, in CSS pixels.
A4 = 680


@pytest.mark.parametrize(('width', 'media'), [(390, ''), (1280, ''), (A4, 'print')])
def test_no_table_is_wider_than_a_screen_or_a_sheet(wide_page, width, media):
    wide_page.open(width=width, media=media)
    assert wide_page.run('return document.documentElement.scrollWidth') <= width
    widths = wide_page.run(
        """return [...document.querySelectorAll('.scroll')]
        .map((table) => [table.scrollWidth, table.clientWidth])"""
    )
    assert widths
    assert all(needed <= available for needed, available in widths)


@pytest.mark.parametrize('dark', [False, True], ids=['light', 'dark'])
def test_the_page_is_accessible(page, dark):
    axe = pytest.importorskip('axe_selenium_python', reason='pip install axe-selenium-python')
    page.open(dark=dark)
    assert (int(re.findall(r'\d+', page.background())[0]) < 64) == dark
    page.run(next(Path(axe.__file__).parent.rglob('axe.min.js')).read_text(encoding='utf-8'))
    # The version for Python before 3.12 does not know that HTML 5.2 allows <div> in <dl>.
    options = {'resultTypes': ['violations'], 'rules': {'dlitem': {'enabled': False}}}
    report = page.driver.execute_async_script(
        'axe.run(document, arguments[0]).then(arguments[1])', options
    )
    assert report['violations'] == []
    names = page.run("return [...document.querySelectorAll('img')].map((img) => img.alt)")
    assert len({*names}) == len(names) > 1


def test_the_page_prints_in_light_colours(page):
    page.open(dark=True, media='print')
    assert page.background() == 'rgb(255, 255, 255)'
    a4 = {'paperWidth': 8.27, 'paperHeight': 11.69, 'printBackground': True}
    printed = base64.b64decode(page.command('Page.printToPDF', a4)['data'])
    assert printed.startswith(b'%PDF')
    assert 0 < len(re.findall(rb'/Type\s*/Page\b', printed)) < 8
