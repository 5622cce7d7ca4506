"""The page of results as text: its plots, weight and colours, with one result and with many."""

import json
import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from commands.sweep import run_plan
from page import plots
from page.html_page import Page, make_page
from page.plots import Plot, make_plots
from page.rows import summarize_collection
from results.collection import Collection, collect
from results.document import Failure, Record
from sweeps.folder import Folder
from sweeps.runner import Starter
from tests.support.outputs import check_line
from tests.support.sample_results import (
    evaluations,
    plan_of,
    sample_document,
    sample_failure,
    sample_record,
    step_seconds,
    write_sample,
)

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def page_of(*records: Record, failures: tuple[Failure, ...] = ()) -> Page:
    return make_page(Collection(records, failures, ()), now=NOW)


def plots_of(*records: Record) -> dict[str, Plot]:
    made = make_plots(summarize_collection(Collection(records, (), ())))
    return {plot.name: plot for plot in made}


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
    assert [plot.name for plot in page.plots] == ['distribution', 'timeline', 'time']
    assert page.html.count('<figure') == len(page.plots)
    assert 'No steps are marked' in page.html


def test_a_sweep_of_30_results_weighs_less_than_1_mb() -> None:
    records = [
        sample_record(
            rate=100 + number,
            seed=number,
            flags={
                'num_gpus': 2 ** (number % 3),
                'batch_size': 32 << number // 3 % 5,
                'variable_update': ('replicated', 'parameter_server')[number // 15],
            },
        )
        for number in range(30)
    ]
    page = page_of(*records)
    assert [plot.name for plot in page.plots][:2] == ['rates', 'scaling']
    # About 270 kB; the limit leaves room for other versions of matplotlib.
    assert len(page.html.encode()) < 500_000
    ids = Ids(page.html).found
    assert len(ids) == len(set(ids))


def test_energy_and_time_to_accuracy_have_columns_where_a_run_knows_them() -> None:
    def record(batch_size: int, joules: float | None, *accuracies: float) -> Record:
        flags = {'stop_at_top_1_accuracy': 0.98}
        document = sample_document(
            **evaluations(*accuracies), seed=len(accuracies), flags={'batch_size': batch_size, **(flags or {})}
        )
        document['energy'] |= {'source': 'RAPL', 'joules': joules, 'joules_per_image': joules}
        return Record('sample.json', document)

    page = page_of(record(32, 2.0, 0.98), record(32, 3.0, 0.5, 0.99), record(32, None, 0.5, 0.6, 0.7), record(64, None))
    table = page.html[page.html.index('<table id="table">') :]
    rows = [re.findall(r'<t[dh][^>]*>(.*?)</t[dh]>', row) for row in re.findall(r'<tr>(.*?)</tr>', table, re.DOTALL)]
    heading, first, second = rows[:3]
    known = [heading.index(name) for name in ('J per image', 'time to accuracy')]
    # Means over the runs that know them: (2 + 3) / 2 J, and (10 + 20) / 2 s.
    assert [first[column] for column in known] == ['2.50', '15.0 s (top-1 0.98, 2 of 3 runs)']
    assert [second[column] for column in known] == ['—', '—']
    without = page_of(sample_record()).html
    assert 'J per image' not in without
    assert 'time to accuracy' not in without


def test_a_wide_interval_ends_at_an_axis_that_follows_the_rates() -> None:
    # 3 runs of 200, 300 and 400 images/sec: the interval of the second setting reaches to 1.9 times its rate.
    rates = ((1, 320, 0), (1, 322, 1), (1, 321, 2), (2, 250, 3), (2, 300, 4), (2, 400, 5))
    records = [sample_record(rate=rate, seed=seed, flags={'num_gpus': size}) for size, rate, seed in rates]
    made = plots_of(*records)
    assert max(float(row[3]) for row in made['rates'].rows) > 500
    assert made['rates'].figure.axes[0].get_xlim()[1] < 1.6 * 320
    assert made['scaling'].figure.axes[0].get_ylim()[1] < 1.6 * 640
    assert 'beyond' in made['rates'].help


def test_exchanges_of_several_sizes_have_a_line_each() -> None:
    def exchange(spec: str, size: int, seconds: float) -> Record:
        flags = {'all_reduce_spec': spec, 'exchange_bytes': size, 'num_gpus': 2}
        document = sample_document(seconds=[seconds, seconds, 9 * seconds], flags=flags, run={'role': 'exchange-only'})
        document['model']['name'] = f'{size} bytes'
        return Record('sample.json', document)

    rows = [('xring', 1 << 20, 0.02), ('pscpu', 4096, 0.001), ('xring', 4096, 0.002), ('pscpu', 1 << 20, 0.04)]
    found = plots_of(*(exchange(*row) for row in rows), sample_record())['exchanges']
    # Bytes over the median seconds.
    assert [*found.rows] == [
        ('all_reduce_spec=xring', '4,096', '2.000', '2.048'),
        ('all_reduce_spec=xring', '1,048,576', '20.00', '52.43'),
        ('all_reduce_spec=pscpu', '4,096', '1.000', '4.096'),
        ('all_reduce_spec=pscpu', '1,048,576', '40.00', '26.21'),
    ]
    assert '52.43 MB/s with 1,048,576 bytes' in found.finding
    lines = found.figure.axes[0].get_lines()
    assert [np.asarray(line.get_xdata()).tolist() for line in lines] == [[4096, 1 << 20]] * 2
    # What stands at the axes has no markup of mathematics, which nobody draws.
    assert b'mathdefault' not in found.image()
    assert b'1Mi<' in found.image()
    assert '<h1>How fast gradients meet</h1>' in page_of(exchange(*rows[0])).html
    assert 'exchanges' not in plots_of(exchange('xring', 4096, 0.001), exchange('pscpu', 4096, 0.001))


def test_an_exchange_of_one_size_is_a_point_beside_the_lines_of_others() -> None:
    def exchange(size: int, seconds: float, *, slices: bool = True) -> Record:
        flags = {'exchange_bytes': size, 'slice_variables': slices}
        return sample_record(seconds=[seconds] * 3, flags=flags, run={'role': 'exchange-only'})

    lines = exchange(1 << 20, 0.01), exchange(1 << 24, 0.1)
    found = plots_of(*lines, exchange(1 << 24, 0.05, slices=False))['exchanges']
    assert [row[:2] for row in found.rows] == [
        ('slice_variables=false', '16,777,216'),
        ('slice_variables=true', '1,048,576'),
        ('slice_variables=true', '16,777,216'),
    ]
    drawn = found.figure.axes[0].get_lines()
    assert [np.asarray(line.get_xdata()).tolist() for line in drawn] == [[1 << 24], [1 << 20, 1 << 24]]
    assert 'slice_variables=false is the fastest' in found.finding


def test_plots_of_200_results_show_at_most_50_settings_and_say_so() -> None:
    records = [
        sample_record(
            seconds=step_seconds(size / (100 + size + repeat), num_steps=4, seed=size), flags={'batch_size': size}
        )
        for size in range(1, 68)
        for repeat in range(3)
    ]
    plot = plots_of(*records)['rates']
    assert len(plot.rows) == 50
    assert '50 fastest of 67' in plot.finding


def test_failures_alone_are_a_page() -> None:
    page = page_of(failures=(Failure('failed.json', sample_failure(shape='8*1', reason='out of memory')),))
    assert page.plots == []
    assert '<strong>failed</strong> out of memory' in page.html


def test_missing_parts_of_a_result_leave_their_plots_out() -> None:
    document = sample_document(gap=0.0)
    for name in ('phases', 'compute', 'statistics', 'input', 'memory', 'environment'):
        document.pop(name)
    page = page_of(Record('old.json', document))
    assert [plot.name for plot in page.plots] == ['distribution', 'timeline']


def test_the_bars_of_the_time_are_the_phases_and_the_steps() -> None:
    document = sample_document(gap=0.001)
    document['phases'] = {'import': 3.0, 'build': 0.5, 'initialise': 0.25, 'warm_up': 9.0, 'first_step': 4.8}
    document['input'] = {'wait_seconds': 4.0, 'wait_share': 0.25}
    plot = plots_of(Record('sample.json', document))['time']
    ((_, *seconds),) = plot.rows
    names = [name.removesuffix(' s') for name in plot.columns[1:]]
    steps = document['throughput']['step_seconds'] - 4.0
    expected = {'import': 3.0, 'build': 0.5, 'initialise': 0.25, 'warm-up': 9.0, 'step': steps, 'input wait': 4.0}
    expected |= {'printing': 0.049}
    assert dict(zip(names, map(float, seconds), strict=True)) == pytest.approx(expected, rel=0.01)
    bars = [bar.get_width() for bar in plot.figure.axes[0].patches if isinstance(bar, Rectangle)]
    assert bars == pytest.approx([*expected.values()])
    # The other warm-up steps are not part of the time to the first step.
    check_line(plot.finding, 'start takes 12.8 s', 'first step was done after 4.80 s')


def test_text_in_plots_is_escaped_and_formulas_are_text(tmp_path: Path) -> None:
    label = '<b>$x$ & "y" url(#z) #1f5fa8 12.3456'
    records = [
        sample_record(seed=seed, rate=seed, flags={'model': model}) for seed, model in ((1, label), (2, 'lenet'))
    ]
    plot = plots_of(*records)['rates']
    plot.save(tmp_path)
    assert (tmp_path / 'rates.png').read_bytes().startswith(b'\x89PNG')
    saved = (tmp_path / 'rates.svg').read_text(encoding='utf-8')
    assert '<b>' not in saved
    assert '&lt;b&gt;$x$ &amp; "y" url(#z)' in saved
    # The same results give the same bytes.
    assert saved.encode() == plots_of(*records)['rates'].image()


def test_the_page_of_a_sweep_agrees_with_its_table_and_has_the_published_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first row is neither the plainest nor the first to be measured, and one model follows another.
    text = """
    published_in = "a book"
    include = [
        { model = "lenet", variable_update = "parameter_server", shape = "2*1+1", published = 40 },
        { model = "lenet", variable_update = "replicated", shape = "1*2", published = 60.5 },
        { model = "lenet", variable_update = "replicated", shape = "1*4" },
        { model = "alexnet", variable_update = "replicated", shape = "1*1", published = 10 },
        { model = "alexnet", variable_update = "replicated", shape = "1*2" },
    ]
    [flags]
    device = "cpu"
    """
    folders: list[str] = []
    for name in ('before', 'after'):
        plan = plan_of(tmp_path, text)
        folder = Folder(tmp_path / name)
        folder.create(plan)
        for number, one in enumerate(plan.configurations):
            path = folder.results / f'{one.id}.1.json'
            if number == 2:
                folder.write_failure(path, sample_failure(shape='1*4', reason='the disk is on fire'))
                continue
            write_sample(
                path,
                rate=100 + 37 * number,
                seed=10 * len(folders) + number,
                started_at=f'2026-11-2{9 - number}T08:00:00Z',
                flags={'model': one.model, 'variable_update': one.variable_update, 'num_gpus': one.shape.devices},
                cluster={'num_workers': one.shape.workers, 'num_ps': one.shape.num_ps},
            )
        assert run_plan(plan, folder, Starter(())) == 1
        folders.append(str(folder.path))
    table = [line.strip('|').split('|') for line in capsys.readouterr().out.splitlines()]
    speed_ups = [cells[4].strip() for cells in table[2 : 2 + 5]]
    assert [bool(text) for text in speed_ups] == [True, True, False, True, True]
    alone = summarize_collection(collect(folders[:1]))
    assert [f'{row.speed_up:.2f}' if row.speed_up else '' for row in alone.rows] == speed_ups
    assert (speed_ups[0], speed_ups[3]) == ('1.00', '1.00')
    both = summarize_collection(collect(folders))
    assert [row.traits['folder'] for row in both.rows] == ['before'] * 5 + ['after'] * 5
    assert len({row.label for row in both.rows}) == 10
    assert [row.speed_up for row in both.rows[:5]] == [row.speed_up for row in alone.rows]
    assert [both.rows[row].speed_up for row in (5, 8)] == [1.0, 1.0]
    html = make_page(collect(folders[:1]), now=NOW).html
    assert 'Published: a book' in html
    (second,) = [row for row in re.findall('<tr.*?</tr>', html, flags=re.DOTALL) if '60.50' in row]
    assert re.findall(r'>([\d.]+)<', second)[-3:] == ['60.50', '1.51', '1']
    (tmp_path / 'after' / 'sweep.json').write_text('[]')
    (problem,) = collect(folders).problems
    check_line(problem, 'after/sweep.json')


def test_a_damaged_file_among_good_ones_is_listed(tmp_path: Path) -> None:
    write_sample(tmp_path / 'good.json')
    (tmp_path / 'cut-off.json').write_text('{"schema": ')
    broken = sample_document(seed=2)
    broken['throughput']['images_per_second'] = 'fast'
    (tmp_path / 'broken.json').write_text(json.dumps(broken))
    lacking = sample_document(seed=3)
    del lacking['run']['batch_size']
    (tmp_path / 'lacking.json').write_text(json.dumps(lacking))
    collection = collect([str(tmp_path)])
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


def test_colours_stand_out_from_the_paper() -> None:
    colors = [plots.INK, plots.SOFT, plots.BAD, *plots.SERIES]
    assert all(_contrast(color, '#ffffff') >= 4.5 for color in colors)
    assert len(set(colors)) == len(colors)
