"""The page of results as text: its plots, weight and colours, with one result and with many."""

import json
import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path

import pytest
from refusals import check_line
from sample_results import sample_document, sample_failure, sample_record, write_sample

from reporting.collection import Collection, collect
from reporting.figures import DARK, LIGHT, NARROW, WIDE
from reporting.measured import read_measured
from reporting.page import Page, make_page
from reporting.plots import plot_rates
from reporting.plots_history import plot_history
from reporting.record import Failure, Record
from reporting.rows import summarize_collection

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def page_of(*records: Record, failures: tuple[Failure, ...] = ()) -> Page:
    return make_page(Collection(records, failures, ()), now=NOW)


class Ids(HTMLParser):
    """Collects the ids of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name == 'id']


def test_one_result_is_a_page_without_empty_plots() -> None:
    page = page_of(sample_record())
    assert [plot.name for plot in page.plots] == ['distribution', 'timeline', 'stages', 'phases']
    assert page.html.count('<figure') == len(page.plots)
    assert 'No steps are marked' in page.html


def test_a_sweep_of_30_results_weighs_less_than_1_mb() -> None:
    records = [
        sample_record(
            devices_per_worker=2 ** (number % 3),
            batch_size=32 << (number // 3 % 5),
            variable_update=('replicated', 'parameter_server')[number // 15],
            rate=100 + number,
            seed=number,
            num_steps=100,
        )
        for number in range(30)
    ]
    page = page_of(*records)
    assert [plot.name for plot in page.plots][:2] == ['rates', 'scaling']
    # About 430 kB; the limit leaves room for other versions of matplotlib.
    assert len(page.html.encode()) < 700_000
    ids = Ids(page.html).found
    assert len(ids) == len(set(ids))


def test_plots_of_200_results_show_at_most_50_settings_and_say_so() -> None:
    records = [
        sample_record(batch_size=size, rate=100 + size + repeat, seed=size, num_steps=4)
        for size in range(1, 68)
        for repeat in range(3)
    ]
    summary = summarize_collection(Collection(tuple(records), (), ()))
    plot = plot_rates(summary)
    assert plot
    assert len(plot.data.rows) == 50
    assert '50 fastest of 67' in plot.caption


def test_failures_alone_are_a_page() -> None:
    page = page_of(failures=(Failure('failed.json', sample_failure(shape='8*1', reason='out of memory')),))
    assert page.plots == ()
    assert 'failed: out of memory' in page.html


def test_missing_parts_of_a_result_leave_their_plots_out() -> None:
    document = sample_document(gap=0.0)
    for name in ('phases', 'compute', 'statistics', 'input', 'memory', 'environment'):
        document.pop(name)
    page = page_of(Record('old.json', document))
    assert [plot.name for plot in page.plots] == ['distribution', 'timeline']


def test_a_run_on_real_data_has_its_loss_plotted() -> None:
    document = sample_document()
    document['run']['is_synthetic'] = False
    document['workers'][0]['steps']['loss'][3] = None
    assert 'losses' in [plot.name for plot in page_of(Record('real.json', document)).plots]


def test_the_history_names_its_changes() -> None:
    records = [
        sample_record(
            rate=rate,
            noise=0.001,
            seed=number,
            started_at=f'2026-{1 + number:02d}-01T08:00:00Z',
        )
        for number, rate in enumerate([100.0] * 5 + [90.0] * 5)
    ]
    plot = plot_history(records[::-1], lambda rates: [5])
    assert plot
    check_line(plot.alt, '-10.0%', '2026-06-01')
    assert len(plot.data.rows) == 10
    assert plot.svg(NARROW).startswith('<svg')
    assert plot_history(records[:2], lambda rates: []) is None


def test_text_in_plots_is_escaped_and_formulas_are_text(tmp_path: Path) -> None:
    label = '<b>$x$ & "y" url(#z) #1f5fa8 12.3456'
    records = [sample_record(seed=seed, model=model, rate=seed) for seed, model in ((1, label), (2, 'lenet'))]
    plot = plot_rates(summarize_collection(Collection(tuple(records), (), ())))
    assert plot
    svg = plot.svg(WIDE)
    assert '<b>' not in svg
    assert '&lt;b&gt;$x$ &amp; "y" url(#z)' in svg
    plot.save(tmp_path)
    assert (tmp_path / 'rates.png').read_bytes().startswith(b'\x89PNG')
    saved = (tmp_path / 'rates.svg').read_text(encoding='utf-8')
    assert '<b>' not in saved
    assert LIGHT['series-1'] in saved


def test_a_damaged_file_among_good_ones_is_listed(tmp_path: Path) -> None:
    write_sample(tmp_path / 'good.json')
    (tmp_path / 'cut-off.json').write_text('{"schema": ')
    broken = sample_document(seed=2)
    broken['throughput']['images_per_second'] = 'fast'
    (tmp_path / 'broken.json').write_text(json.dumps(broken))
    lacking = sample_document(seed=3)
    del lacking['run']['batch_size']
    (tmp_path / 'lacking.json').write_text(json.dumps(lacking))
    collection = collect([str(tmp_path)], read_measured)
    assert len(collection.records) == 1
    for problem, name in zip(collection.problems, ('broken.json', 'cut-off.json', 'lacking.json'), strict=True):
        check_line(problem, name)
    assert 'batch_size' in collection.problems[2]
    html = make_page(collection, now=NOW).html
    assert '3 files could not be read' in html


def _luminance(color: str) -> float:
    """Relative luminance: WCAG 2.1, section 'Definitions'."""
    shares = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(first: str, second: str) -> float:
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize('palette', [LIGHT, DARK], ids=['light', 'dark'])
def test_colours_stand_out_from_the_paper(palette: dict[str, str]) -> None:
    assert all(_contrast(palette[role], palette['paper']) >= 4.5 for role in ('ink', 'soft', 'bad'))
    series = [color for role, color in palette.items() if role.startswith('series')]
    assert all(_contrast(color, palette['paper']) >= 4.5 for color in series)
    assert len(set(palette.values())) == len(palette)
    assert all(re.fullmatch('#[0-9a-f]{6}', color) for color in palette.values())
    assert palette.keys() == LIGHT.keys()
