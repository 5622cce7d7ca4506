"""The page of results in a real browser: it is whole without a network, and everybody can read and use it."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from comparison.report_page import make_page
from comparison.report_plots import WIDTH
from results.collection import collect
from tests.comparison.browser import Browser, open_browser
from tests.support.sample_results import sample_document, sample_failure

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
# Of a host, a warning and a reason; and of a flag that stands in plots. They try to become part of the page.
HOSTILE = '<img src=x onerror="document.title=1">&amp;$x_1$'
HOSTILE_FLAG = '<i>&lt;$x$'


@pytest.fixture(scope='module')
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp('profile')) as started:
        yield started


@pytest.fixture(scope='module')
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page of 3 modes on 1 to 4 devices, a failure, and texts with HTML."""
    folder = tmp_path_factory.mktemp('results')
    documents = [sample_failure(shape='8*1', reason=f'it ran out of memory {HOSTILE}')]
    modes = ('replicated', 'parameter_server', 'distributed_replicated')
    settings = [(mode, shape) for mode in modes for shape in ((1, 1), (1, 2), (2, 2))]
    # The last one differs from the first only by a flag with HTML in its value.
    for number, (mode, (workers, devices)) in enumerate([*settings, settings[0]]):
        document = sample_document(
            rate=100.0 * workers * devices + number,
            seed=number,
            flags={
                'variable_update': mode,
                'num_gpus': devices,
                'optimizer': HOSTILE_FLAG if number == len(settings) else 'sgd',
            },
            machine={'hostname': f'alpha{HOSTILE}'},
            cluster={'num_workers': workers, 'num_ps': int(mode != 'replicated')},
        )
        document['warnings'] = [{'code': 'outliers', 'text': HOSTILE}] if number == 2 else []
        documents.append(document)
    for number, document in enumerate(documents):
        (folder / f'{number}.json').write_text(json.dumps(document))
    (folder / '<b>damaged.json').write_text('{')
    page = folder / 'page.html'
    page.write_text(make_page(collect([str(folder)]), now=NOW).html, encoding='utf-8')
    return page.as_uri()


def test_the_page_asks_for_nothing_and_reports_no_error(browser: Browser, url: str) -> None:
    browser.errors()
    browser.open(url)
    assert [found for found in browser.requests() if found != url and not found.startswith(('data:', 'chrome:'))] == []
    assert browser.errors() == []


def test_texts_with_html_stay_texts(browser: Browser, url: str) -> None:
    browser.open(url)
    assert browser.run("return document.querySelectorAll('img:not(figure > img)').length") == 0
    assert browser.driver.title == 'How fast lenet trains'
    text = browser.run('return document.body.textContent')
    assert f'alpha{HOSTILE}' in text
    assert f'it ran out of memory {HOSTILE}' in text
    assert '<b>damaged.json' in text
    # The flag stands in labels of plots, too, which are pictures that the browser could read.
    assert HOSTILE_FLAG in text
    assert min(browser.run("return [...document.querySelectorAll('figure img')].map((img) => img.naturalWidth)")) > 0


@pytest.mark.parametrize('width', [360, 768, 1280])
def test_no_window_is_too_narrow(browser: Browser, url: str, width: int) -> None:
    browser.open(url, width=width)
    assert browser.run('return document.documentElement.scrollWidth') <= width
    # Why a run failed can be read without scrolling sideways.
    (left, right) = browser.run(
        """const reason = [...document.querySelectorAll('li')].find((item) => item.textContent.includes('ran out of'));
        const box = reason.getBoundingClientRect(); return [box.left, box.right]"""
    )
    assert 0 <= left < right <= width
    # Plots fit, and their texts of 12 pixels are not scaled down to nothing.
    shown = browser.run(
        """return [...document.querySelectorAll('figure img')].map((img) => img.getBoundingClientRect())
        .map((box) => [box.left, box.right])"""
    )
    assert all(left >= 0 and right <= width for left, right in shown)
    assert min(12 * (right - left) / WIDTH for left, right in shown) > 9


@pytest.mark.parametrize('dark', [False, True], ids=['light', 'dark'])
def test_nobody_is_kept_out(browser: Browser, url: str, dark: bool) -> None:
    browser.open(url, dark=dark)
    background = browser.run('return getComputedStyle(document.body).backgroundColor')
    assert (int(re.findall(r'\d+', background)[0]) < 64) == dark
    assert browser.accessibility_faults(*(['color-contrast'] if dark else [])) == []
    names = browser.run("return [...document.querySelectorAll('img')].map((img) => img.alt)")
    assert len(names) == 3
    assert all(': ' in name for name in names)


def test_the_page_prints_in_light_colours(browser: Browser, url: str) -> None:
    browser.open(url, dark=True, media='print')
    assert browser.run('return getComputedStyle(document.body).backgroundColor') == 'rgb(255, 255, 255)'
    printed = browser.pdf()
    assert printed.startswith(b'%PDF')
    assert 0 < len(re.findall(rb'/Type\s*/Page\b', printed)) < 8
