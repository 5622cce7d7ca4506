"""A real browser for tests of pages: the distribution's Chromium, headless, driven by Selenium."""

import base64
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ARGUMENTS = (
    '--headless=new',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
)
_BROWSER, _DRIVER = '/usr/bin/chromium', '/usr/bin/chromedriver'


class Browser:
    """A page in Chromium, and the browser's messages about it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, dark: bool = False, media: str = '') -> None:
        """Opens a page in a window of this width in CSS pixels, with the user's preferences."""
        self.command(
            'Emulation.setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
        self.command('Emulation.setEmulatedMedia', media=media, features=[scheme])
        self.driver.get_log('performance')
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """Runs JavaScript in the page, and returns its result."""
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **parameters: object) -> Any:
        """Returns the answer to a command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def requests(self) -> list[str]:
        """Returns the URLs that the page has requested since it was opened."""
        messages = [json.loads(entry['message'])['message'] for entry in self.driver.get_log('performance')]
        return [
            message['params']['request']['url']
            for message in messages
            if message['method'] == 'Network.requestWillBeSent'
        ]

    def errors(self) -> list[str]:
        """Returns the console's lines since the last call, including warnings and breaches of the content policy."""
        return [entry['message'] for entry in self.driver.get_log('browser')]

    def pdf(self) -> bytes:
        """Returns the page as PDF, printed on A4."""
        printed = self.command('Page.printToPDF', paperWidth=8.27, paperHeight=11.69, printBackground=True)
        return base64.b64decode(printed['data'])

    def accessibility_faults(self, *rules: str) -> list[str]:
        """Returns the faults that axe-core finds, by all or some of its rules: the rule and the elements."""
        axe = pytest.importorskip('axe_selenium_python', reason='pip install axe-selenium-python')
        source = next(Path(axe.__file__).parent.rglob('axe.min.js'))
        self.run(source.read_text(encoding='utf-8'))
        # The version for Python before 3.12 does not know that HTML 5.2 allows <div> in <dl>.
        options = {
            'resultTypes': ['violations'],
            'rules': {'dlitem': {'enabled': False}},
            **({'runOnly': {'type': 'rule', 'values': list(rules)}} if rules else {}),
        }
        found = self.driver.execute_async_script('axe.run(document, arguments[0]).then(arguments[1])', options)
        return [f'{fault["id"]}: {[node["html"][:80] for node in fault["nodes"]][:3]}' for fault in found['violations']]


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Starts Chromium with a new profile in a folder; skips the test if there is none."""
    webdriver = pytest.importorskip('selenium.webdriver', reason='pip install selenium')
    if not (shutil.which(_BROWSER) and shutil.which(_DRIVER)):
        pytest.skip('there is no browser: apt-get install chromium chromium-driver')
    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER
    for argument in (*_ARGUMENTS, f'--user-data-dir={folder}'):
        options.add_argument(argument)
    options.add_experimental_option('prefs', {'download.default_directory': str(folder / 'downloads')})
    options.set_capability('goog:loggingPrefs', {'performance': 'ALL', 'browser': 'ALL'})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(_DRIVER, env={**os.environ, 'HOME': str(folder)})
    )
    try:
        yield Browser(driver)
    finally:
        driver.quit()
