"""The subcommand `report` writes a page, or serves one and keeps it up to date."""

import os
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from refusals import check_line, failed, refused
from report_server import DEADLINE_SECS, serving
from sample_results import write_sample

import tf_cnn_benchmarks
from commands import report
from reporting.serve import NotNowError, PageServer

pytestmark = pytest.mark.unit


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / 'results'
    write_sample(folder / 'first.json')
    return folder


def test_the_page_and_the_plots_are_written(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (results / 'other.json').write_text('[]')
    assert tf_cnn_benchmarks.main(['report', 'results', '--title=A <title>', '--plots=figures/new']) == 0
    out, err = capsys.readouterr()
    check_line(out.strip(), 'report.html', '1 result in')
    check_line(err.strip(), 'other.json')
    page = Path('report.html').read_text(encoding='utf-8')
    assert '<h1>A &lt;title&gt;</h1>' in page
    assert 'other.json' in page
    # Nothing in it leads elsewhere: no script, style or picture of another file or host.
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    names = {path.name for path in Path('figures/new').iterdir()}
    assert {'timeline.png', 'timeline.svg'} <= names
    assert sorted(path.name for path in tmp_path.iterdir()) == ['figures', 'report.html', 'results']


def test_wrong_use_is_refused_before_the_work(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'empty').mkdir()
    with refused('missing'):
        report.main(['missing'])
    with refused('empty'):
        report.main(['empty'])
    with refused('--port=80', '--serve'):
        report.main(['results', '--port=80'])
    with refused('--output=empty'):
        report.main(['results', '--output=empty'])
    with refused('--output=none/page.html', 'none'):
        report.main(['results', '--output=none/page.html'])
    with refused('--plots=results/first.json'):
        report.main(['results', '--plots=results/first.json'])
    assert not Path('report.html').exists()


@pytest.mark.parametrize('name', ['jinja2', 'matplotlib'])
def test_a_missing_extra_is_named(results: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with refused(name, "pip install 'tf_cnn_benchmarks[report]'"):
        report.main([str(results)])


def test_an_older_page_stays_whole_if_the_new_one_cannot_be_written(results: Path, tmp_path: Path) -> None:
    page = tmp_path / 'page.html'
    page.write_text('old')
    (tmp_path / f'.page.html.{os.getpid()}').mkdir()
    with failed(page):
        report.main([str(results), f'--output={page}'])
    assert page.read_text() == 'old'


def fetch(url: str, host: str | None = None) -> str:
    request = urllib.request.Request(url, headers={'Host': host} if host else {})
    with urllib.request.urlopen(request, timeout=DEADLINE_SECS) as answer:
        return str(answer.read().decode())


def test_a_served_page_is_made_again_when_results_come(tmp_path: Path) -> None:
    folder = tmp_path / 'results'
    folder.mkdir()
    with serving(str(folder)) as (process, url):
        waiting, version = fetch(url), fetch(f'{url}version')
        assert 'Waiting for results' in waiting
        assert f'data-version="{version}"' in waiting
        write_sample(folder / 'first.json')
        deadline = time.monotonic() + DEADLINE_SECS
        while fetch(f'{url}version') == version:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        page = fetch(url)
        assert 'How fast lenet trains' in page
        assert f'data-version="{fetch(f"{url}version")}"' in page
        with pytest.raises(urllib.error.HTTPError, match='404'):
            fetch(f'{url}first.json')
        with pytest.raises(urllib.error.HTTPError, match='403'):
            fetch(url, host='example.org')
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == 130
        check_line(err.strip())


def test_sigterm_ends_the_server_in_one_line(results: Path) -> None:
    with serving(str(results)) as (process, _):
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == 143
        check_line(err.strip(), 'SIGTERM')


def test_a_port_that_is_taken_is_refused(results: Path) -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(f'--port={port}', '--port=0'):
            report.main([str(results), '--serve', f'--port={port}'])


def test_a_page_that_cannot_be_made_now_is_made_later(results: Path) -> None:
    answers: list[object] = [NotNowError('locked'), 'first', NotNowError('locked'), 'second']

    def make(version: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, NotNowError):
            raise answer
        return str(answer)

    server = PageServer([results], make, 0)
    seen = []
    for _ in range(2):
        seen.append((server.refresh(), server.page.decode()))
    version = server.version
    write_sample(results / 'more.json', seed=7)
    for _ in range(2):
        seen.append((server.refresh(), server.page.decode()))
    assert seen == [(False, 'locked'), (True, 'first'), (False, 'first'), (True, 'second')]
    assert server.version != version
