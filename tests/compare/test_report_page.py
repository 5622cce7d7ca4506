"""The page of results as text: its plots, weight and colours, with one result and with many."""

import functools
import itertools
import json
import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tests.support.outputs import check_line
from tests.support.programs import run_main
from tests.support.sample_results import (
    evaluations,
    failed_run,
    record_of,
    sample_document,
    sample_failure,
    sample_record,
    write_document,
    write_sample,
)
from tests.sweep.fake_runs import make_sweep
from tf_cnn.compare.report_folders import compare_folders
from tf_cnn.compare.report_page import Page, make_page
from tf_cnn.compare.report_plots import Plot, make_plots
from tf_cnn.compare.report_rows import summarize_collection
from tf_cnn.lab.sweep_file import find_sweep_file
from tf_cnn.results.collection import Collection, collect
from tf_cnn.results.document import Failure, Result
from tf_cnn.results.tables import format_number
from tf_cnn.sweep.run_plan import run_plan
from tf_cnn.sweep.runner import Runner

pytestmark = pytest.mark.unit


def page_of(*results: Result, failures: tuple[Failure, ...] = ()) -> Page:
    return make_page(Collection(results, failures, ()), now=datetime.now(UTC))


def page_in(*folders: Path | str) -> Page:
    return make_page(collect([*map(str, folders)]), now=datetime.now(UTC))


def answer_of(*folders: Path | str) -> str:
    """The first line of a page that compares folders."""
    comparison = compare_folders(collect([*map(str, folders)]))
    assert comparison
    return comparison.answer


def cells_of(html: str, table: str = 'table') -> list[list[str]]:
    """The cells of a table of the page, row by row."""
    text = html[html.index(f'<table id="{table}">') :].partition('</table>')[0]
    rows = re.findall(r'<tr>(.*?)</tr>', text, re.DOTALL)
    return [re.findall(r'<t[dh][^>]*>(.*?)</t[dh]>', row) for row in rows]


def plots_of(*results: Result) -> dict[str, Plot]:
    plots, _ = make_plots(summarize_collection(Collection(results, (), ())))
    return {plot.name: plot for plot in plots}


def test_a_page_of_one_result_has_no_empty_plots():
    page = page_of(sample_record())
    assert [plot.name for plot in page.plots] == ['steps']
    assert page.html.count('<figure') == 1
    assert '1 run on 1 machine, 2026-11-23. Page made' in page.html


def test_a_page_of_failures_has_their_reasons_and_no_plots():
    page = page_of(failures=(failed_run(shape='8*1', reason='out of memory'),))
    assert page.plots == []
    assert '<strong>failed</strong> out of memory' in page.html


def test_a_sweep_of_30_results_weighs_less_than_1_mb():
    modes, sizes = ('replicated', 'parameter_server'), (32, 64, 128, 256, 512)
    settings = [
        {'variable_update': mode, 'batch_size': size, 'num_gpus': gpus}
        for mode, size, gpus in itertools.product(modes, sizes, (1, 2, 4))
    ]
    page = page_of(
        *(
            sample_record(rate=100 + seed, seed=seed, flags=flags)
            for seed, flags in enumerate(settings)
        )
    )
    assert [plot.name for plot in page.plots] == ['rates', 'scaling', 'steps']
    check_line(page.plots[1].finding, ' times its rate with 1*1', 'of ideal')
    (machine,) = re.findall('<strong>alpha</strong>.*', page.html)
    check_line(machine, 'Example CPU', '2 cores')
    assert len(page.html.encode()) < 300_000
    ids = re.findall(r'<\w+[^>]* id="([^"]*)"', page.html)
    assert len(ids) == len(set(ids))


def test_the_command_of_a_setting_has_each_flag_once_and_no_file_of_a_run():
    document = sample_document(flags={'repeat': 1, 'model': 'lenet', 'result_file': '/tmp/a.json'})
    words = '--repeat=3 --model alexnet --model=lenet --result_file /tmp/a.json --repeat=1'
    document['command']['argv'] = words.split()
    (command,) = re.findall(r'<code[^>]*>(.*?)</code>', page_of(record_of(document)).html)
    flags = document['command']['given_flags']
    del flags['repeat'], flags['result_file']
    assert '--model=lenet' in flags.values()
    assert shlex.split(command) == ['tf_cnn_benchmarks', *flags.values()]


def test_scaling_is_computed_within_one_setting():
    rates = {(16, 1): 100, (16, 2): 150, (64, 1): 200, (64, 2): 300}
    results = [
        sample_record(rate=rate, noise=0, flags={'batch_size': size, 'num_gpus': devices})
        for (size, devices), rate in rates.items()
    ]
    check_line(plots_of(*results)['scaling'].finding, 'batch 64', '1.50 times', '75 % of ideal')


def test_energy_and_time_to_accuracy_have_columns_where_a_run_measured_them():
    def result(batch_size: int, joules: float | None, *accuracies: float) -> Result:
        document = sample_document(
            evaluations=evaluations(*accuracies),
            seed=len(accuracies),
            flags={'batch_size': batch_size, 'stop_at_top_1_accuracy': 0.98},
        )
        document['energy'] |= {'source': 'RAPL', 'joules': joules, 'joules_per_image': joules}
        return record_of(document)

    page = page_of(
        result(32, 2.0, 0.98),
        result(32, 3.0, 0.5, 0.99),
        result(32, None, 0.5, 0.6, 0.7),
        result(64, None),
    )
    heading, first, second = cells_of(page.html)
    columns = [heading.index(name) for name in ('J per image', 'time to accuracy')]
    # Means over the runs that measured them: (2 + 3) / 2 J, and (10 + 20) / 2 s.
    assert [first[column] for column in columns] == ['2.50', '15.0 s (top-1 0.98, 2 of 3 runs)']
    assert [second[column] for column in columns] == ['—', '—']
    without = page_of(sample_record()).html
    assert 'J per image' not in without
    assert 'time to accuracy' not in without


def test_plots_show_at_most_12_settings_and_say_so():
    results = [
        sample_record(rate=100 + size, num_steps=4, seed=repeat, flags={'batch_size': size})
        for size in range(1, 18)
        for repeat in range(3)
    ]
    finding = plots_of(*results)['rates'].finding
    # Compares the settings in the plot.
    check_line(finding, 'From batch 6 with ', ' to batch 17 with ', '12 fastest of 17')


def test_the_boxes_of_steps_include_all_repeats():
    seconds = [[0.01] * 90 + [0.02] * 10, [0.01] * 100]
    plot = plots_of(*(sample_record(seconds=step_seconds) for step_seconds in seconds))['steps']
    check_line(plot.finding, 'slowest step took 2.00 times the median')
    assert plot.figure.axes[0].get_xlabel() == 'step time in % of the median'


def test_the_widest_spread_and_the_slowest_step_name_their_settings():
    seconds_by_batch = {
        32: [0.01] * 50 + [0.02] * 50,
        64: [0.01] * 99 + [0.05],
        16: [0.011] * 100,
    }
    plot = plots_of(
        *(
            sample_record(seconds=seconds, flags={'batch_size': size})
            for size, seconds in seconds_by_batch.items()
        )
    )['steps']
    spread, slowest = plot.finding.split(';')
    check_line(spread, '67 % of the median', 'batch 32')
    check_line(slowest, 'took 5.00 times the median of batch 64')


def test_warnings_of_one_code_are_one_line_with_their_count():
    warnings = [{'code': 'others', 'text': 'others used up to 76 % of the cores'}]
    html = page_of(
        *(sample_record(seed=seed, warnings=warnings if seed else []) for seed in range(4))
    ).html
    (line,) = re.findall('<li><strong>others</strong>.*', html)
    check_line(line, 'others used up to 76 %', '3 of 4 runs')


def test_warnings_about_settings_are_a_line_each_and_different_numbers_name_the_first():
    texts = [('settings', '--a has no effect'), ('settings', '--b has no effect')]
    texts += [('others', 'others used 76 %')]
    warnings = [{'code': code, 'text': text} for code, text in texts]
    changed = [*warnings[:2], {'code': 'others', 'text': 'others used 12 %'}]
    html = page_of(sample_record(warnings=warnings), sample_record(seed=1, warnings=changed)).html
    lines = re.findall('<li><strong>(?:settings|others)</strong>.*', html)
    assert len(lines) == 3
    check_line(lines[0], '--a has no effect', '2 of 2 runs: ')
    check_line(lines[1], '--b has no effect', '2 of 2 runs: ')
    check_line(lines[2], 'others used 76 %', '2 of 2 runs, these numbers in the first: ')


RATES_OF_DOUBTFUL_RUNS = ((2403.6, 'drift'), (2163.8, ''), (1553.2, 'machine_loaded'))


@functools.cache
def doubtful_page() -> Page:
    doubtful = [
        sample_record(
            rate=rate, noise=0, num_steps=400, warnings=[{'code': code, 'text': ''}] if code else []
        )
        for rate, code in RATES_OF_DOUBTFUL_RUNS
    ]
    steady = [sample_record(seed=seed, flags={'batch_size': 64}) for seed in range(3)]
    return page_of(*doubtful, *steady)


def test_doubtful_runs_are_counted_and_named():
    html = doubtful_page().html
    heading, first, second = cells_of(html)[:3]
    column = heading.index('doubtful runs')
    assert (first[column], second[column]) == ('2 of 3: other programs (1), drift (1)', '—')
    for code, rate in (('drift', '2,404'), ('machine_loaded', '1,553')):
        (line,) = re.findall(f'<li><strong>{code}</strong>.*', html)
        check_line(line, '1 of 6 runs', f'({rate} images/sec)')


def test_each_run_is_a_dot_and_a_doubtful_one_is_hollow():
    plot = doubtful_page().plots[0]
    dots = [line for line in plot.figure.axes[0].lines if line.get_marker() == 'o']
    hollow = [dot for dot in dots if dot.get_markerfacecolor() == 'white']
    assert len(dots) == 6
    rates = sorted(float(np.ravel(dot.get_xdata())[0]) for dot in hollow)
    assert rates == pytest.approx([1553.2, 2403.6])
    assert 'hollow' in plot.help


def test_an_interval_that_a_plot_cuts_off_ends_in_an_arrow():
    def runs(rates: Iterable[float], devices: int, **flags: object) -> list[Result]:
        flags |= {'num_gpus': devices}
        return [
            sample_record(rate=rate, noise=0, num_steps=400, seed=seed, flags=flags)
            for seed, rate in enumerate(rates)
        ]

    steady, wide = (2000, 2010, 1990), (2403.6, 2163.8, 1553.2)
    for rates, num_arrows in ((steady, 0), (wide, 1)):
        plot = plots_of(*runs(steady, 1, variable_update='independent'), *runs(rates, 1))['rates']
        markers = [line.get_marker() for line in plot.figure.axes[0].lines]
        assert markers.count('>') == num_arrows
    axes = plots_of(*runs(steady, 1), *runs(wide, 2))['scaling'].figure.axes[0]
    arrows = [line for line in axes.lines if line.get_linestyle() == 'None']
    (arrow,) = (line for line in arrows if line.get_marker() in ('^', 'v'))
    assert float(np.ravel(arrow.get_ydata())[0]) in axes.get_ylim()


def test_text_in_plots_is_escaped_and_formulas_are_text():
    label = '<b>$x$ & "y" url(#z) #1f5fa8 12.3456'
    results = [sample_record(seed=1, rate=1, flags={'model': label}), sample_record(seed=2)]
    plot = plots_of(*results)['rates']
    files = dict(plot.files())
    assert files['rates.png'].startswith(b'\x89PNG')
    assert '&lt;b&gt;$x$ &amp; "y" url(#z)' in files['rates.svg'].decode()
    # The same results give the same bytes.
    first, second = (plots_of(*results)['rates'].image() for _ in range(2))
    assert first == second


# The first row is not the first to be measured, and one model follows another.
PUBLISHED = """
published_in = "a book"
[flags]
device = "cpu"
[[include]]
model = "lenet"
variable_update = "parameter_server"
shape = "2*1+1"
published = 40
published_speed_up = 1
[[include]]
model = "lenet"
variable_update = "replicated"
shape = "1*2"
published = 60.5
published_speed_up = 1.51
[[include]]
model = "lenet"
variable_update = "replicated"
shape = "1*4"
[[include]]
model = "alexnet"
variable_update = "replicated"
shape = "1*1"
published = 10
published_speed_up = 1
[[include]]
model = "alexnet"
variable_update = "replicated"
shape = "1*2"
published = 3
published_speed_up = 0.3
"""


def measure_published(path: Path, seed: int = 0) -> str:
    """Writes the results of this sweep, with a failure; returns its folder."""
    path.mkdir()
    plan, folder = make_sweep(path, PUBLISHED)
    for number, configuration in enumerate(plan.configurations):
        file, shape = folder.results / f'{configuration.id}.1.json', configuration.shape
        if number == 2:
            folder.write_failure(file, failed_run(shape='1*4', reason='the disk is on fire'))
            continue
        write_sample(
            file,
            rate=100 + 37 * number,
            seed=seed + number,
            started_at=f'2026-11-2{9 - number}T08:00:00Z',
            flags={
                'model': configuration.varied['model'],
                'variable_update': configuration.variable_update,
                'num_gpus': shape.devices,
            },
            cluster={'num_workers': shape.workers, 'num_ps': shape.num_ps},
        )
    assert run_plan(plan, folder, Runner(())) == 1
    return str(folder.path)


def test_the_page_of_a_sweep_agrees_with_its_table(tmp_path, capsys):
    folders = [measure_published(tmp_path / name, seed) for seed, name in ((0, 'a'), (10, 'b'))]
    table = [line.strip('|').split('|') for line in capsys.readouterr().out.splitlines()]
    speed_ups = [cells[4].strip() for cells in table[2 : 2 + 5]]
    assert [bool(text) for text in speed_ups] == [True, True, False, True, True]
    assert (speed_ups[0], speed_ups[3]) == ('1.00', '1.00')
    alone = summarize_collection(collect(folders[:1])).rows
    assert [f'{row.speed_up:.2f}' if row.speed_up else '' for row in alone] == speed_ups
    both = summarize_collection(collect(folders)).rows
    assert [row.properties['folder'] for row in both] == [folders[0]] * 5 + [folders[1]] * 5
    assert len({row.label for row in both}) == 10
    assert [row.speed_up for row in both[:5]] == [row.speed_up for row in alone]
    assert [both[row].speed_up for row in (5, 8)] == [1.0, 1.0]


def test_the_page_of_a_sweep_has_the_published_rates(tmp_path):
    folder = measure_published(tmp_path / 'sweep')
    html = page_in(folder).html
    assert '4 runs on 1 machine, 2026-11-25 to 2026-11-29. Page made' in html
    assert 'Published: a book' in html
    assert 'Compared with published numbers' in html
    rows = re.findall('<tr.*?</tr>', html, flags=re.DOTALL)
    last_cells = [re.findall(r'>([\d.]+)<', row)[-3:] for row in rows]
    assert ['60.5', '1.51', '1'] in last_cells
    assert ['3', '0.3', '1'] in last_cells
    Path(folder, 'sweep.json').write_text('[]')
    (problem,) = collect([folder]).problems
    check_line(problem, 'sweep.json')


def test_seed_table_with_the_published_rates_has_the_published_speed_ups_or_none(tmp_path, capsys):
    plan, folder = make_sweep(tmp_path, find_sweep_file('seed_table').read_text())
    for configuration in plan.configurations:
        shape = configuration.shape
        write_sample(
            folder.results / f'{configuration.id}.1.json',
            rate=configuration.published,
            noise=0,
            num_steps=20,
            flags={
                'variable_update': configuration.variable_update,
                'batch_size': int(configuration.varied['batch_size']),
                'num_gpus': shape.devices,
            },
            cluster={'num_workers': shape.workers, 'num_ps': shape.num_ps},
        )
    assert run_plan(plan, folder, Runner(())) == 0
    heading, _, *rows = [
        [cell.strip() for cell in line.strip('|').split('|')]
        for line in capsys.readouterr().out.splitlines()[:44]
    ]
    assert [row[heading.index('verdict')] for row in rows].count('baseline') == 1
    page = page_in(folder.path)
    page_heading, *page_rows = cells_of(page.html)
    for title, table in ((heading, rows), (page_heading, page_rows)):
        speed_ups = [float(row[title.index('speed-up')]) for row in table]
        # The report rounded some speed-ups by up to 4 %.
        published = [
            configuration.published_speed_up or 0.0 for configuration in plan.configurations
        ]
        assert speed_ups == pytest.approx(published, rel=0.04)
        assert np.median(np.divide(speed_ups, published)) == pytest.approx(1, abs=0.005)
    assert 'against the row whose published speed-up is 1' in page.html
    (plot,) = (plot for plot in page.plots if plot.name == 'published')
    check_line(plot.finding, 'here over published is 1.00')
    # Without the baseline of the published table there is nothing to compare with.
    (folder.results / f'{plan.configurations[0].id}.1.json').unlink()
    remaining_rows = summarize_collection(collect([str(folder.path)])).rows
    assert {row.speed_up for row in remaining_rows} == {None}


def test_two_folders_are_columns_side_by_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for size, seed in itertools.product((32, 64), range(3)):
        for folder, rate in (('before', 100), ('after', 150)):
            flags = {'batch_size': size}
            write_sample(f'{folder}/{size}.{seed}.json', rate=rate, seed=seed + rate, flags=flags)
    html = page_in('before', 'after').html
    assert html.index('<table id="folders">') < html.index('<table id="table">')
    heading, *rows = cells_of(html, 'folders')
    assert heading == ['setting', 'before', 'after', 'ratio', '95 %', 'verdict']
    assert sorted(row[0] for row in rows) == ['batch 32', 'batch 64', 'geometric mean of 2']
    assert [float(row[3]) for row in rows] == pytest.approx([1.5] * 3, rel=0.02)
    assert [row[-1] for row in rows] == ['faster'] * 3


def two_machines(tmp_path: Path, rates: tuple[float, float], num_runs: int = 3) -> list[str]:
    """Writes results of lenet on two machines, which take 2 and 1 J per image; returns the
    folders.
    """
    for name, rate, joules in zip('AB', rates, (2.0, 1.0), strict=True):
        for seed in range(num_runs):
            document = sample_document(
                rate=rate,
                noise=0.001,
                num_steps=1000,
                seed=seed,
                machine={'hostname': name, 'memory_bytes': 8 * 10**9, 'cgroup_cpus': 1.5},
            )
            document['energy'] |= {'joules': joules, 'joules_per_image': joules}
            write_document(tmp_path / name / f'{seed}.json', document)
    return [str(tmp_path / name) for name in 'AB']


@pytest.mark.parametrize(
    ('rates', 'num_runs', 'fact'),
    [
        ((100, 131), 3, 'B is faster than A: ratio 1.31'),
        ((131, 100), 3, 'B is slower than A: ratio 0.76'),
        ((100, 100), 3, 'No difference is shown between A and B: ratio 1.000 ('),
        ((100, 131), 2, 'Too few runs for a verdict on A and B: ratio 1.31'),
    ],
)
def test_the_first_line_says_which_machine_is_faster(rates, num_runs, fact, tmp_path):
    folders = two_machines(tmp_path, rates, num_runs)
    check_line(answer_of(*folders), fact)
    # The page has compare's sentence and cells.
    page, printed = page_in(*folders), run_main('compare', *folders)[0].splitlines()
    assert printed[0] == page.answers[0]
    heading, row = cells_of(page.html, 'folders')
    assert ' '.join(printed[3].split()) == ' '.join(heading)
    assert printed[5].split() == ' '.join(row).split()


def test_the_first_argument_is_the_baseline_also_if_it_was_measured_last(tmp_path):
    for seed, (folder, hour, rate) in itertools.product(range(3), (('A', 9, 100), ('B', 8, 131))):
        start = f'2026-11-22T0{hour}:0{seed}:00Z'
        write_sample(tmp_path / folder / f'{seed}.json', rate=rate, seed=seed, started_at=start)
    check_line(answer_of(tmp_path / 'A', tmp_path / 'B'), 'B is faster than A: ratio 1.3')


def test_energy_is_a_column_where_one_source_measured_both_sides(tmp_path):
    folders = two_machines(tmp_path, (100, 131))
    heading, row = cells_of(page_in(*folders).html, 'folders')
    assert row[heading.index('energy')] == '0.50'
    # RAPL measures processors, NVML GPUs.
    for path in (tmp_path / 'B').iterdir():
        document = json.loads(path.read_text())
        document['energy']['source'] = 'NVML'
        write_document(path, document)
    assert 'energy' not in cells_of(page_in(*folders).html, 'folders')[0]


def test_a_setting_is_compared_with_the_same_setting_only(tmp_path):
    first, second = two_machines(tmp_path, (100, 131))
    for seed in range(3):
        flags = {'optimizer': 'momentum'}
        write_sample(f'{second}/other{seed}.json', rate=50, seed=seed, num_steps=200, flags=flags)
    check_line(answer_of(first, second), 'B is faster than A: ratio 1.31', '1 setting without')


def test_a_folder_without_a_result_does_not_count(tmp_path):
    folders = two_machines(tmp_path, (100, 131))
    write_document(tmp_path / 'C' / 'failed.json', sample_failure())
    check_line(answer_of(*folders, tmp_path / 'C'), 'B is faster than A: ratio 1.31')


def test_each_of_two_machines_has_one_colour_in_plots_and_list(tmp_path):
    page = page_in(*two_machines(tmp_path, (100, 131)))
    (answer,) = page.answers
    assert f'<p class="answer">{answer}</p>' in page.html
    check_line(answer, 'B is faster than A: ratio 1.31')
    assert 'price of' not in page.html.lower()
    colors = re.findall(r'class="swatch" style="background: (#\w+)"', page.html)
    bars = page.plots[0].figure.axes[0].patches
    # The fastest is on top.
    assert [to_hex(bar.get_facecolor()) for bar in bars] == colors[::-1]
    assert len({*colors}) == 2
    lines = re.findall('<li><span class="swatch".*', page.html)
    for line, name in zip(lines, 'AB', strict=True):
        check_line(line, f'{name}</strong>', '2 cores', '8 GB of memory', 'quota of 1.5 cores')


def test_a_price_per_hour_becomes_the_price_of_a_million_images(tmp_path):
    folders = two_machines(tmp_path, (1000, 2000))
    for price, expected, note in (
        ('A=3.6,B=1.8', [1, 0.25], 'The price of an hour: 3.60 (A), 1.80 (B).'),
        ('3.6', [1, 0.5], 'The price of an hour: 3.60 (A), 3.60 (B).'),
    ):
        page = make_page(collect(folders), now=datetime.now(UTC), price_per_hour=price)
        heading, *rows = cells_of(page.html)
        cells = [row[heading.index('price of 10^6 images')].split(' ') for row in rows]
        assert [float(price) for price, *_ in cells] == pytest.approx(expected, rel=0.01)
        assert note in page.html


def test_a_price_has_the_interval_and_the_doubts_of_its_rate(tmp_path):
    for seed, rate in enumerate((100, 200, 400)):
        for size, warnings in ((32, []), (64, [{'code': 'machine_loaded', 'text': ''}])):
            write_sample(
                tmp_path / 'A' / f'{size}.{seed}.json',
                rate=rate,
                noise=0,
                num_steps=1000,
                warnings=warnings,
                flags={'batch_size': size},
            )
    page = make_page(collect([str(tmp_path / 'A')]), now=datetime.now(UTC), price_per_hour='3.6')
    heading, *rows = cells_of(page.html)
    quiet, loaded = (row[heading.index('price of 10^6 images')] for row in rows)
    estimate = summarize_collection(collect([str(tmp_path / 'A')])).rows[0].estimate
    assert estimate
    assert estimate.interval
    low, high = (format_number(1000 / rate) for rate in reversed(estimate.interval))
    assert quiet == f'{format_number(1000 / estimate.images_per_second)} ({low} to {high})'
    assert loaded == f'! {quiet}'
    check_line(page.plots[0].finding, '3 of 6 runs are doubtful')
    peak = heading.index('of peak')
    assert [row[peak].startswith('! ') for row in rows] == [False, True]


def test_the_words_of_the_table_are_explained():
    settings = [{'variable_update': mode} for mode in ('independent', 'parameter_server')]
    html = page_of(*(sample_record(flags=flags) for flags in settings)).html
    words = re.findall(r'<li><strong>(.*?)</strong>: (.*?)</li>', html.partition('id="words"')[2])
    meanings = dict(words)
    check_line(meanings['independent'], 'nothing is exchanged')
    # The page does not say how fast a mode is: here it may be the slowest.
    assert 'bound' not in html
    check_line(meanings['W*G+P'], 'parameter servers')
    assert 'parameter_server' in meanings
    assert 'replicated' not in meanings


def test_a_single_run_is_a_dot_and_no_bar():
    results = [
        *(sample_record(seed=seed) for seed in range(3)),
        sample_record(flags={'batch_size': 64}),
    ]
    axes = plots_of(*results)['rates'].figure.axes[0]
    assert len(axes.patches) == 1
    assert len([line for line in axes.lines if line.get_marker() == 'o']) == 4


def test_each_network_has_its_plots_also_the_twelfth():
    networks = [f'network{number}' for number in range(12)]
    results = [
        sample_record(flags={'model': model, 'num_gpus': devices}, num_steps=5)
        for model in networks
        for devices in (1, 2)
    ]
    plots = plots_of(*results)
    titles = [plot.title for plot in plots.values()]
    for model in networks:
        assert f'Images per second of {model}' in titles
        assert f'Scaling with devices of {model}' in titles
    # The title has the network already.
    check_line(plots['rates-12'].finding, 'From 1*1 with ', ' to 1*2 with ')


def test_networks_without_a_plot_of_rates_are_named():
    sizes_by_model = {'lenet': (16, 32), 'alexnet': (16,), 'resnet50': (16,)}
    results = [
        sample_record(flags={'model': model, 'batch_size': size})
        for model, sizes in sizes_by_model.items()
        for size in sizes
    ]
    page = page_of(*results)
    assert [plot.title for plot in page.plots] == ['Images per second of lenet', 'Step times']
    assert 'a single setting: alexnet, resnet50.</p>' in page.html
    # Without other plots they share one.
    page = page_of(*results[1:])
    assert page.plots[0].title == 'Images per second'
    assert 'Without a plot' not in page.html


def test_further_flags_are_only_in_the_names_that_need_them():
    settings = [('vgg16', 'fp32', True), ('resnet50', 'fp32', False), ('resnet50', 'bf16', True)]
    results = [
        sample_record(flags={'model': model, 'precision': precision, 'xla': xla})
        for model, precision, xla in [*settings, ('vgg16', 'fp32', False)]
    ]
    html = page_of(*results).html
    names = ['vgg16 · fp32 · xla=true', 'resnet50 · fp32', 'resnet50 · bf16']
    assert [row[0] for row in cells_of(html)[1:]] == [*names, 'vgg16 · fp32 · xla=false']


def test_the_first_folder_is_the_baseline_even_if_it_was_measured_later(tmp_path):
    for name, day in (('old', 1), ('new', 2)):
        write_sample(tmp_path / name / 'a.json', seed=day, started_at=f'2026-11-0{day}T08:00:00Z')
    folders = tmp_path / 'new', tmp_path / 'old'
    assert cells_of(page_in(*folders).html, 'folders')[0][1:3] == ['new', 'old']


def test_the_least_steady_settings_are_in_the_plot_of_step_times():
    """The slowest of 13 networks, which an order by rate would leave out."""
    unsteady = {'model': 'unsteady', 'batch_size': 1}
    results = [
        *(sample_record(flags={'model': f'steady{number}'}, noise=0) for number in range(12)),
        sample_record(flags=unsteady, rate=1, noise=0.3),
    ]
    finding = plots_of(*results)['steps'].finding
    check_line(finding, 'for unsteady', 'the median of unsteady', '12 least steady of 13')


def test_a_row_is_named_by_what_varies_and_a_line_above_has_the_rest():
    results = [
        sample_record(flags={'batch_size': size, 'optimizer': name}, environment={'A': name})
        for size, name in ((16, 'sgd'), (32, 'momentum'))
    ]
    html = page_of(*results).html
    heading, *rows = cells_of(html)
    assert [row[0] for row in rows] == ['batch 16', 'batch 32']
    assert re.findall('<th scope="row" data-title="(.*?)"', html) == ['setting'] * 2
    usual = 'Unless a row says otherwise: variable_update replicated; W*G+P 1*1.'
    assert f'<p class="note">{usual}</p>' in html
    # A change beside another one is not hidden.
    others = [row[heading.index('other differences')] for row in rows]
    assert others == ['optimizer sgd; A sgd', 'optimizer momentum; A momentum']


def test_equal_machines_and_equal_commands_are_one_entry():
    hosts = [f'node{number}' for number in range(32)]
    html = page_of(*(sample_record(machine={'hostname': host}) for host in hosts)).html
    assert [row[0] for row in cells_of(html)[1:]] == hosts
    (machine,) = re.findall(r'<strong>(node.*?)</strong>', html)
    assert machine == ', '.join(hosts)
    assert html.count('<code>') == 1


def test_different_work_is_not_compared_between_folders_or_in_one(tmp_path):
    first, second = tmp_path / 'first', tmp_path / 'second'
    for seed in range(3):
        write_sample(first / f'{seed}.json', rate=7, seed=seed, flags={'model': 'resnet50'})
        write_sample(second / f'{seed}.json', rate=2000, seed=seed)
    page = page_in(first, second)
    assert '<table id="folders">' not in page.html
    assert 'Not compared: different work: model resnet50 → lenet' in page.html
    conclusions = page.plots[0].finding + page.html.partition('Plots')[0].partition('Longer')[0]
    assert not re.search('faster|leads|highest|times', conclusions)
    heading, *_ = cells_of(page.html)
    assert not {'verdict', 'speed-up'} & {*heading}


@pytest.mark.parametrize(
    ('rates', 'runs', 'verdict'),
    [
        ((216, 215, 215), 3, 'no significant difference'),
        ((216, 150, 100), 3, 'slower'),
        ((100, 150, 216), 3, 'faster'),
        ((216, 150, 100), 2, 'too few runs'),
    ],
)
def test_page_and_sweep_have_the_verdicts_of_compare(rates, runs, verdict, tmp_path, capsys):
    modes = '["independent", "parameter_server", "replicated"]'
    text = f'repeats = {runs}\n[grid]\nvariable_update = {modes}\n'
    plan, folder = make_sweep(tmp_path, text)
    disturbed = [{'code': 'machine_loaded', 'text': 'other processes used 90 % of the cores'}]
    for configuration, rate in zip(plan.configurations, rates, strict=True):
        for number in range(1, runs + 1):
            write_sample(
                folder.results / f'{configuration.id}.{number}.json',
                rate=rate * (1 + 0.005 * number),
                seed=number + rate,
                started_at=f'2026-11-22T08:0{number}:00Z',
                warnings=disturbed if number == 1 else [],
                flags={'variable_update': configuration.variable_update},
            )
    compared = json.loads(run_main('compare', folder.results, '--format=json')[0])['rows']
    assert [row['verdict'] for row in compared] == [verdict, verdict]
    assert run_plan(plan, folder, Runner(())) == 0
    lines = capsys.readouterr().out.splitlines()[:5]
    table = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    html = page_in(folder.path).html
    for heading, *rows in ([table[0], *table[2:]], cells_of(html)):
        verdicts = [row[heading.index('verdict')] for row in rows]
        assert verdicts == ['baseline', verdict, verdict]
    (answer,) = re.findall('<p class="answer">(.*?)</p>', html)
    assert ('leads' in answer) == (verdict in ('slower', 'faster'))
    assert 'highest' not in answer
