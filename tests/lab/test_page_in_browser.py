"""The page of results in Chromium, driven by Selenium: it is whole without a network, and everybody
can read it.
"""

import base64
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_main
from tests.support.sample_results import (
    evaluations,
    sample_document,
    sample_failure,
    write_document,
    write_sample,
)

pytestmark = pytest.mark.unit

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
