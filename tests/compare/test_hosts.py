"""Of several hosts, `compare --across=hosts` names those that differ from the others."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compare.host_simulation import (
    EQUAL,
    FIFTH,
    HOSTS,
    SLOW,
    SLOW_AND_WILD,
    WIDE,
    WILD,
    estimate_hosts,
    simulate,
)
from tests.support.outputs import check_error, check_line
from tests.support.programs import run_main
from tests.support.sample_results import (
    cut_off,
    sample_document,
    sample_failure,
    write_document,
    write_sample,
)
from tf_cnn.compare.report_page import make_page
from tf_cnn.compare.report_plots import SERIES
from tf_cnn.lab.host_ratios import compare_with_others, variance_of_median
from tf_cnn.lab.intervals import estimate_runs
from tf_cnn.lab.ratios import compare
from tf_cnn.results.collection import collect

pytestmark = pytest.mark.unit


def num_trials(num_hosts: int) -> int:
    return max(40, 800 // num_hosts)


def tolerance(trials: int, share: float = 0.05) -> float:
    """Four standard errors of a simulated share."""
    return 4 * math.sqrt(share * (1 - share) / trials)


def write_host(folder: Path, name: str, rates: list[float], **changes: Any) -> None:
    """Writes a result for each of these images/sec; machine has further properties."""
    machine = {'hostname': name} | changes.pop('machine', {})
    for number, rate in enumerate(rates):
        write_sample(
            folder / f'{name}-{changes.get("flags", {}).get("batch_size", 0)}-{number}.json',
            rate=rate,
            num_steps=300,
            noise=0.001,
            seed=number,
            machine=machine,
            **changes,
        )


def write_hosts(folder: Path, num_hosts: int, **changes: Any) -> None:
    for number in range(num_hosts):
        write_host(folder, f'node{number}', [100 + number % 3, 101, 99 - number % 2], **changes)


def compare_hosts(*arguments: object, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Returns the rows and the first line."""
    out, _ = run_main('compare', *arguments, '--across=hosts', '--format=json', code=code)
    document = json.loads(out)
    return document['rows'], document['answer']


@pytest.mark.parametrize('num_runs', [3, 5, 10])
def test_one_of_20_collections_of_equal_hosts_has_a_host_that_is_called_different(num_runs):
    shares = {hosts: simulate(EQUAL, hosts, num_runs, num_trials(hosts))[1] for hosts in HOSTS}
    assert all(share <= 0.05 + tolerance(num_trials(hosts)) for hosts, share in shares.items())
    mean = np.average([*shares.values()], weights=[*map(num_trials, HOSTS)])
    assert 0.02 < mean < 0.065


@pytest.mark.parametrize('num_hosts', HOSTS)
def test_a_host_with_a_wild_run_makes_no_host_slow(num_hosts):
    trials = num_trials(num_hosts)
    assert simulate(WILD, num_hosts, 3, trials)[1] <= 0.05 + tolerance(trials)


@pytest.mark.parametrize('num_hosts', HOSTS[1:])
def test_a_slow_host_is_found_and_the_others_are_not_blamed(num_hosts):
    trials = num_trials(num_hosts)
    for scenario in (SLOW, FIFTH, *([SLOW_AND_WILD] if num_hosts > 4 else [])):
        found, wrong = simulate(scenario, num_hosts, 3, trials)
        assert found >= 0.8 - tolerance(trials, 0.2)
        assert wrong <= 0.08 + tolerance(trials)
        assert simulate(scenario, num_hosts, 5, trials // 3)[0] >= 0.95


@pytest.mark.parametrize(('num_hosts', 'most'), [(4, 0.08), (8, 0.1), (32, 0.2)])
def test_unequal_spreads_name_more_hosts_but_not_many(num_hosts, most):
    trials = num_trials(num_hosts)
    assert simulate(WIDE, num_hosts, 3, trials)[1] <= most + tolerance(trials, most)


def test_two_hosts_are_compared_as_two_settings_are():
    sides = [estimate_runs([100, 101, 102]), estimate_runs([90, 93, 89, 92])]
    first, second = compare_with_others(sides, [0, 0])
    assert (second.value, second.interval) == (
        compare(*sides).value,
        compare(*sides).interval,
    )
    assert first.value == pytest.approx(1 / second.value)


def test_the_simulation_estimates_as_the_program_does():
    rates = np.random.default_rng(1).uniform(90, 110, (4, 5))
    for estimate, runs in zip(estimate_hosts(rates), rates, strict=True):
        expected = estimate_runs(runs)
        assert (estimate.images_per_second, estimate.variance) == pytest.approx(
            (expected.images_per_second, expected.variance)
        )
        assert estimate.interval == pytest.approx(expected.interval)


def test_the_variance_of_a_median_is_exact():
    # Sarhan and Greenberg 1962, Contributions to Order Statistics, table 10C.1.
    assert [variance_of_median(size) for size in (1, 3, 5, 9)] == pytest.approx(
        [1, 0.44867, 0.28683, 0.16610], abs=1e-5
    )


def test_the_first_line_names_the_slow_host_and_the_note_what_it_alone_has(tmp_path):
    write_hosts(tmp_path, 5, machine={'governor': 'performance'})
    write_host(tmp_path, 'slow', [80, 81, 79], machine={'governor': 'powersave'})
    out, err = run_main('compare', tmp_path, '--across=hosts', '--fail_below=0.95', code=1)
    first_line, *lines = out.splitlines()
    assert first_line.startswith('slow is slower: 0.80 of the others (0.7')
    assert first_line.endswith('; 5 hosts agree within 0.67 %')
    assert lines[3].split()[:2] == ['slow', '80.0']
    assert out.splitlines()[-1] == 'slow alone: governor performance -> powersave'
    assert 'slow (0.80' in err
    run_main('compare', tmp_path, '--across=hosts', '--fail_below=0.7')


def test_a_host_that_is_slow_in_one_of_two_settings_is_said_to_be(tmp_path):
    for batch_size, rate in ((16, 100), (32, 80)):
        write_hosts(tmp_path, 4, flags={'batch_size': batch_size})
        rates = [rate, rate + 1, rate - 1.0]
        write_host(tmp_path, 'slow', rates, flags={'batch_size': batch_size})
    rows, answer = compare_hosts(tmp_path)
    assert answer.startswith('slow is slower in 1 of 2 settings: 0.80 of the others')
    assert ' for batch 32; 4 hosts agree' in answer
    assert [row['verdict'] for row in rows].count('slower') == 1
    assert rows[0]['host'] == 'slow'
    assert len(rows) == 10


def test_a_long_table_has_the_most_different_hosts_and_counts_the_rest(tmp_path):
    write_hosts(tmp_path, 16)
    lines = run_main('compare', tmp_path, '--across=hosts')[0].splitlines()
    assert lines[0] == 'no host differs; 16 hosts agree within 0.66 %'
    assert sum('node' in line for line in lines) == 12
    assert max(map(len, lines)) <= 80
    assert lines[-1] == '4 more without a significant difference: --format=json'
    assert len(compare_hosts(tmp_path)[0]) == 16


def test_an_unsteady_host_is_named_and_its_median_counts(tmp_path):
    write_hosts(tmp_path, 5)
    write_host(tmp_path, 'wild', [40, 100, 101])
    rows, answer = compare_hosts(tmp_path)
    assert answer == 'no host differs; 5 hosts agree within 0.66 %; unsteady: wild'
    (wild,) = (row for row in rows if row['is_unsteady'])
    assert wild['images_per_second'] == pytest.approx(100, rel=1e-3)
    assert '  unsteady' in run_main('compare', tmp_path, '--across=hosts')[0]


def test_two_hosts_of_one_name_differ_by_fingerprint_or_folder(tmp_path):
    for folder, rate, num_cores in (('a', 99, 4), ('b', 80, 4), ('c', 100, 4), ('c', 101, 8)):
        rates = [rate, rate + 1, rate - 1.0]
        name = f'{folder}{num_cores}'
        write_host(
            tmp_path / folder, name, rates, machine={'hostname': 'n', 'num_cores': num_cores}
        )
    rows, answer = compare_hosts(tmp_path)
    assert answer.startswith('n (b) is slower')
    names = [row['host'] for row in rows]
    assert names[0] == 'n (b)'
    assert len({*names}) == 4
    assert sum(str(tmp_path / 'c') in name for name in names) == 2


def test_a_result_that_cannot_be_read_or_failed_is_a_row_and_the_other_hosts_count(tmp_path):
    write_hosts(tmp_path / 'good', 3)
    write_document(tmp_path / 'new' / 'new.json', sample_document() | {'schema_version': 9})
    write_document(tmp_path / 'failed' / 'failed.json', sample_failure(reason='out of memory'))
    write_host(tmp_path / 'few', 'few', [100, 101])
    folders = [tmp_path / name for name in ('good', 'new', 'failed', 'few')]
    rows, answer = compare_hosts(*folders)
    assert answer.startswith('no host differs; 3 hosts agree')
    verdicts = {row['host']: row['verdict'] for row in rows}
    assert verdicts['few'] == 'too few runs'
    assert verdicts['failed/failed.json'] == 'left out: out of memory'
    assert 'schema_version is 9' in verdicts['new']
    assert compare_hosts(*folders, '--fail_below=0.9', code=1)[0] == rows


def test_fail_below_accepts_no_host_without_a_verdict(tmp_path):
    write_hosts(tmp_path, 3)
    write_host(tmp_path, 'few', [100, 101])
    assert compare_hosts(tmp_path)[1].endswith('no verdict: few')
    _, err = run_main('compare', tmp_path, '--across=hosts', '--fail_below=0.9', code=1)
    check_line(err.strip(), '--fail_below=0.9', 'few: too few runs')


def test_a_single_host_or_hosts_without_a_common_setting_are_not_compared(tmp_path):
    write_host(tmp_path / 'a', 'a', [100, 101, 99])
    rows, answer = compare_hosts(tmp_path, code=1)
    assert answer.startswith('nothing was compared')
    assert [row['verdict'] for row in rows] == ['no other host']
    # The same flags, but other work: the size of the images is the data set's.
    write_host(tmp_path / 'b', 'b', [100, 101, 99], run={'image_size': 32})
    rows, answer = compare_hosts(tmp_path, code=1)
    assert answer.startswith('nothing was compared')
    assert [row['verdict'] for row in rows] == [
        'different work: image_size 32 -> 28',
        'different work: image_size 28 -> 32',
    ]


def test_a_run_that_two_arguments_hold_counts_once(tmp_path):
    write_hosts(tmp_path / 'all', 3)
    rows = compare_hosts(tmp_path / 'all')[0]
    assert compare_hosts(tmp_path / 'all', tmp_path / 'all')[0] == rows


def test_incomplete_runs_and_unreadable_folders_alone_are_rows(tmp_path):
    write_hosts(tmp_path / 'a', 2)
    write_host(tmp_path / 'a', 'cut', [50, 51, 49], **cut_off('interrupted'))
    verdicts = {row['host']: row['verdict'] for row in compare_hosts(tmp_path / 'a')[0]}
    assert verdicts['cut'] == 'incomplete: interrupted'
    (tmp_path / 'b').mkdir()
    rows, answer = compare_hosts(tmp_path / 'b', code=1)
    assert answer.startswith('nothing was compared')
    assert [row['host'] for row in rows] == ['b']


def test_what_a_run_chose_for_its_machine_does_not_separate_hosts(tmp_path):
    write_hosts(tmp_path, 3)
    write_host(tmp_path, 'cpu', [50, 51, 49], run={'data_format': 'NCHW'})
    rows, _ = compare_hosts(tmp_path)
    assert rows[0]['only_this_host'] == {'data_format': ['NHWC', 'NCHW']}


def test_the_page_opens_with_the_slow_host_and_its_plot_names_it(tmp_path):
    write_hosts(tmp_path / 'hosts', 13)
    write_host(tmp_path / 'hosts', 'slow', [80, 81, 79])
    page, plots = tmp_path / 'page.html', tmp_path / 'plots'
    out, _ = run_main('report', tmp_path / 'hosts', f'--output={page}', f'--plots={plots}')
    assert out.startswith('slow is slower: 0.80 of the others')
    plot = (plots / 'hosts.svg').read_text()
    assert '>slow<' in plot
    assert '>node1<' not in plot
    assert SERIES[1] in plot
    assert 'slow is slower' in page.read_text()


def test_two_hosts_or_three_folders_of_a_host_have_no_plot(tmp_path):
    write_hosts(tmp_path / 'hosts', 2)
    for number in range(3):
        write_host(tmp_path / f'folder{number}', 'node0', [100 + number, 101, 99.0])
    for names in (['hosts'], ['folder0', 'folder1', 'folder2']):
        folders = [str(tmp_path / name) for name in names]
        page = make_page(collect(folders), now=datetime.now(UTC))
        assert 'hosts' not in [plot.name for plot in page.plots]


@pytest.mark.parametrize('flag', ['--force', '--against=.'])
def test_hosts_are_not_compared_with_earlier_results_or_across_work(tmp_path, flag):
    _, err = run_main('compare', tmp_path, '--across=hosts', flag, code=2)
    check_error(err, '--across=hosts', flag.split('=')[0])
