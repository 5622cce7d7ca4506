"""The subcommand `compare`: what it prints for results, folders, logs and histories, and what it
refuses.
"""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.outputs import check_error, check_line
from tests.support.programs import assert_ended, run_main
from tests.support.sample_results import (
    cut_off,
    sample_failure,
    untimed_document,
    write_document,
    write_sample,
)
from tests.sweep.fake_runs import fake_runner, interrupt_when_waiting, sizes_in
from tf_cnn.compare.changes import side_titles
from tf_cnn.compare.report_rows import ReportRow, summarize_collection
from tf_cnn.results.collection import collect
from tf_cnn.sweep import compare_runs

pytestmark = pytest.mark.unit

LOG = """\
TensorFlow:  2.20
Model:       lenet
Dataset:     imagenet (synthetic)
Mode:        training
Batch size:  32 global
             32 per device
Devices:     ['/cpu:0']
1\timages/sec: 80.0 +/- 0.0 (jitter = 0.0)\t7.4
10\timages/sec: 80.1 +/- 0.1 (jitter = 0.2)\t7.4
20\timages/sec: 80.0 +/- 0.1 (jitter = 0.2)\t7.4
total images/sec: 80.00
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines_of(*argv: str) -> list[str]:
    """The lines that the subcommand prints; standard error must be empty."""
    out, err = run_main('compare', *argv)
    assert err == ''
    return out.splitlines()


def rows_of(*argv: str) -> list[dict[str, Any]]:
    document = json.loads('\n'.join(lines_of(*argv, '--format=json')))
    assert (document['schema'], document['schema_version']) == ('tf_cnn_benchmarks.comparison', 2)
    return list(document['rows'])


def errors_of(*argv: str, code: int = 1) -> list[str]:
    return run_main('compare', *argv, code=code)[1].splitlines()


def write_repeats(
    folder: str, rate: float, batch_sizes: tuple[int, ...] = (32,), **flags: Any
) -> None:
    """Writes three results of each batch size; their rates differ by 0.2 %."""
    for number in range(3):
        for size in batch_sizes:
            write_sample(
                f'{folder}/{size}-{number}.json',
                rate=rate * (1 + 0.002 * number),
                seed=100 * size + number + int(rate),
                flags={'batch_size': size, **flags},
            )


def test_two_results_are_compared_and_what_differs_is_named():
    write_sample('a.json', seed=1)
    write_sample(
        'b.json',
        rate=80,
        warnings=[{'code': 'outliers', 'text': '3 steps took long'}],
        flags={'batch_size': 64},
        machine={'hostname': 'beta'},
    )
    answer, common, _, titles, _, row, _, *notes = lines_of('a.json', 'b.json')
    check_line(answer, 'Too few runs', 'a.json and b.json', 'ratio 0.79', '1 of 2 runs is doubtful')
    check_line(common, 'All: lenet, replicated, fp32, 1*1, 1 run each')
    assert titles.split() == ['setting', 'a.json', 'b.json', 'ratio', 'verdict', 'doubtful']
    assert row.startswith('lenet')
    assert row.endswith('too few runs  1 of 2: outliers')
    text = '\n'.join(notes)
    assert 'batch_size 32 -> 64' in text
    assert 'hostname alpha -> beta' in text
    assert '! 1 of 2 runs was disturbed' in text
    assert '--repeat' in text


def test_settings_that_differ_only_in_their_shape_have_different_names():
    for num_workers, num_ps in ((1, 0), (2, 0), (2, 1)):
        cluster = {'num_workers': num_workers, 'num_ps': num_ps}
        write_sample(f'a/{num_workers}-{num_ps}.json', cluster=cluster)
    rows = rows_of('a')
    assert {row['baseline'] for row in rows} == {'1*1'}
    assert sorted(row['setting'] for row in rows) == ['2*1', '2*1+1']
    write_sample('a/other.json', flags={'batch_size': 64})
    settings = {row['setting'] for row in rows_of('a')}
    assert settings == {'batch 32 2*1', 'batch 32 2*1+1', 'batch 64 1*1'}


def test_text_of_a_result_cannot_control_the_terminal():
    write_sample('a.json')
    write_sample('b.json', flags={'optimizer': 'x\x1b[2J\nfake line'})
    lines = lines_of('a.json', 'b.json')
    assert any('fake line' in line for line in lines)
    assert '\x1b' not in ''.join(lines)
    assert not any(line.startswith('fake') for line in lines)


def test_the_doubtful_runs_of_a_row_are_named_with_their_causes():
    for number, (rate, code) in enumerate(
        [(2403.6, 'drift'), (2163.8, ''), (1553.2, 'machine_loaded')]
    ):
        warnings = [{'code': code, 'text': 'so it was'}] if code else []
        write_sample(f'good/{number}.json', seed=number)
        path = f'bad/{number}.json'
        write_sample(path, rate=rate, noise=0, num_steps=400, seed=number, warnings=warnings)
    note = 'doubtful: bad/0.json (2,404, drift), bad/2.json (1,553, machine_loaded)'
    assert note in lines_of('good', 'bad')
    (row,) = rows_of('good', 'bad')
    assert row['doubtful_runs'] == {'bad/0.json': ['drift'], 'bad/2.json': ['machine_loaded']}


def test_csv_has_the_keys_of_json_and_markdown_is_a_table_and_a_list():
    write_sample('a.json')
    write_sample('c.json', flags={'batch_size': 64})
    rows = [*csv.DictReader(lines_of('a.json', 'c.json', '--format=csv'))]
    assert [[*row] for row in rows] == [[*row] for row in rows_of('a.json', 'c.json')]
    assert json.loads(rows[0]['different_flags']) == {'batch_size': [32, 64]}
    lines = lines_of('a.json', 'c.json', '--format=markdown')
    assert [line.count('|') for line in lines[:7]] == [0, 0, 0, 0, 6, 6, 6]
    assert '- flags: batch_size 32 -> 64' in lines


def test_folders_are_compared_setting_by_setting_with_all_numbers_in_json():
    write_repeats('old', 100, (32, 64, 16))
    # A setting that all runs of a folder share may differ between the folders.
    write_repeats('new', 90, (64, 32, 128), xla=True)
    rows = {row['setting']: row for row in rows_of('old', 'new')}
    # Those without a counterpart are below the others.
    assert [*rows][2:] == ['batch 16', 'batch 128', 'geometric mean of 2']
    for size in (32, 64):
        row = rows[f'batch {size}']
        assert (row['baseline_argument'], row['argument']) == ('old', 'new')
        ratio = row['images_per_second'] / row['baseline_images_per_second']
        assert row['ratio'] == pytest.approx(ratio)
        assert row['ratio_low'] < ratio < row['ratio_high'] < 1
        assert (row['verdict'], row['is_significant']) == ('slower', True)
        for side in ('', 'baseline_'):
            assert (row[f'{side}num_runs'], row[f'{side}num_steps']) == (3, 150)
            assert row[f'{side}step_spread'] > 0
        assert row['different_flags'] == {'xla': [False, True]}
        assert row['different_machine'] == row['different_work'] == {}
    only_old, only_new = rows['batch 16'], rows['batch 128']
    assert (only_old['images_per_second'], only_old['remark']) == (None, 'only in old')
    assert (only_new['baseline_images_per_second'], only_new['remark']) == (None, 'only in new')
    assert only_old['ratio'] is only_new['ratio'] is None


def test_the_first_line_counts_the_verdicts_and_rows_are_sorted_by_the_difference():
    loaded = {'warnings': [{'code': 'steal', 'text': 'so it was'}]}
    # Batch size: images/sec of the second folder, and its runs.
    sides: dict[int, tuple[float, int, dict[str, Any]]] = {
        8: (104, 3, {}),
        16: (200, 3, loaded),
        32: (100, 3, {}),
        64: (90, 3, {}),
        128: (50, 2, {}),
        256: (100, 3, {'seconds': [0.01] * 20}),
    }
    for size, (rate, runs, changes) in sides.items():
        flags = {'batch_size': size}
        for number in range(runs):
            noise = {'noise': 0.001, 'flags': flags, 'started_at': f'2026-11-22T08:00:0{number}Z'}
            write_sample(f'old/{size}.{number}.json', rate=100, seed=number, **noise)
            write_sample(
                f'new/{size}.{number}.json', rate=rate, seed=9 + number, **noise, **changes
            )
    answer, common, _, _, _, *rows = lines_of('old', 'new')
    assert answer == (
        'new is faster than old in 2 of 6 settings (ratio up to 2.000: batch 16), slower in 1 '
        '(ratio down to 0.900: batch 64); no difference is shown in 1; too few runs in 1; runs too '
        'short for a verdict in 1; 6 of 34 runs are doubtful.'
    )
    assert 'All: lenet, replicated, fp32, 1*1; rates' in common
    settings = [row.split()[1] for row in rows[:6]]
    assert settings[:3] == ['16', '64', '8']
    assert 'geometric mean' not in ''.join(rows)


def test_the_last_row_is_the_geometric_mean_of_all_common_settings():
    for size, rate in ((16, 200), (32, 100), (64, 90)):
        write_repeats('old', 100, (size,))
        write_repeats('new', rate, (size,))
    *rows, last = rows_of('old', 'new')
    assert (last['setting'], last['status']) == ('geometric mean of 3', 'geometric mean')
    assert last['ratio'] == pytest.approx(np.prod([row['ratio'] for row in rows]) ** (1 / 3))
    assert last['ratio_low'] < last['ratio'] < last['ratio_high']
    assert last['verdict'] == 'faster'
    lines = lines_of('old', 'new')
    assert any(line.startswith('geometric mean of 3') for line in lines)
    # Without an interval of each ratio there is none.
    write_sample('old/8.json', flags={'batch_size': 8})
    write_sample('new/8.json', flags={'batch_size': 8}, seed=1)
    assert {row['status'] for row in rows_of('old', 'new')} == {'complete'}


def test_a_single_setting_is_the_baseline_of_others_unless_they_have_it_too():
    write_repeats('first', 100, (8,))
    write_repeats('second', 110, (16, 32))
    assert {row['baseline'] for row in rows_of('first', 'second')} == {'batch 8'}
    write_repeats('second', 120, (8,))
    pairs = [row for row in rows_of('first', 'second') if row['ratio']]
    assert [row['setting'] for row in pairs] == ['batch 8']


def test_at_most_six_lines_follow_the_table_and_json_has_all():
    noise = {'warnings': [{'code': code, 'text': code} for code in ('steal', *'abcdef')]}
    write_sample('a.json')
    write_sample('b.json', flags={'xla': True}, machine={'hostname': 'beta'}, **noise)
    notes = json.loads('\n'.join(lines_of('a.json', 'b.json', '--format=json')))['notes']
    assert len(notes) > 6
    *rest, last = lines_of('a.json', 'b.json')[7:]
    assert rest == notes[:5]
    check_line(last, f'{len(notes) - 5} more notes', '--format=json')


def test_two_equal_sides_differ_in_none_of_their_settings():
    write_repeats('old', 100, (16, 32))
    write_repeats('new', 100.1, (16, 32))
    answer = 'new is faster or slower than old in none of 2 settings; no difference is shown in 2.'
    assert lines_of('old', 'new')[0] == answer


def test_titles_are_the_ends_of_paths_their_first_words_or_numbers():
    titles = {
        ('data/before/', 'data/after'): ['before', 'after'],
        ('x/epyc-avx512-2-cores', 'x/xeon-avx512-2-cores'): ['epyc', 'xeon'],
        ('results-2026-11-01', 'results-2026-11-02'): ['01', '02'],
        ('x/results', 'y/results'): ['x/results', 'y/results'],
        ('A: --data_dir=/x/y', 'B: --model=lenet'): ['A', 'B'],
        ('a' * 20, 'a' * 21): ['#1', '#2'],
    }
    for arguments, expected in titles.items():
        assert [*side_titles(arguments).values()] == expected
    write_sample(f'{"a" * 20}.json')
    write_sample(f'{"a" * 21}.json', seed=1)
    assert f'#2 is {"a" * 21}.json' in lines_of(f'{"a" * 20}.json', f'{"a" * 21}.json')[1]


def test_other_sides_are_named_in_the_rows_of_three_arguments():
    for folder, rate in (('a', 100), ('b', 200), ('c', 50)):
        write_repeats(folder, rate, (32, 64))
    rows = rows_of('a', 'b', 'c')
    settings = [f'{side}: batch {size}' for side in 'bc' for size in (32, 64)]
    assert sorted(row['setting'] for row in rows) == settings
    check_line(lines_of('a', 'b', 'c')[0], 'Against a: faster in 2 of 4 settings', 'slower in 2')


def test_folders_without_a_common_setting_are_named_in_one_sentence_and_not_compared():
    write_repeats('old', 100, (32, 64, 16))
    write_repeats('new', 90, (128, 256))
    facts = 'nothing was compared', 'batch_size is 16, 32, 64 there and 128, 256 here'
    for form in ('text', 'markdown'):
        (line,) = lines_of('old', 'new', f'--format={form}')
        check_line(line, 'old and new', *facts)
    assert {row['ratio'] for row in rows_of('old', 'new')} == {None}
    _, err = run_main('compare', 'old', 'new', '--fail_below=0.9', code=1)
    check_line(err.splitlines()[-1], '--fail_below=0.9', *facts)


def test_a_side_without_a_throughput_is_not_compared():
    write_repeats('old', 100, (32, 64))
    write_document(Path('new') / 'failed.json', sample_failure())
    line, *_ = lines_of('old', 'new')
    check_line(line, 'nothing was compared', 'new has no run with a throughput')


def test_a_run_that_does_not_count_in_a_folder_is_a_row_with_its_reason():
    write_repeats('old', 100)
    write_repeats('new', 90)
    cut = cut_off('stopped by SIGTERM')
    write_sample('new/alone.json', flags={'batch_size': 256}, **cut)
    # An incomplete run beside complete repeats does not count.
    write_sample('new/cut.json', rate=20, **cut)
    write_document('new/none.json', untimed_document('it ran out of memory'))
    write_document('new/failure.json', sample_failure(reason='the data are gone'))
    write_document('new/notes.json', {'no': 'result'})
    rows = {row['files'][0]: row for row in rows_of('old', 'new')}
    assert rows['new/32-0.json']['num_runs'] == 3
    assert rows['new/alone.json']['status'] == 'incomplete'
    for name, status, reason in (
        ('alone', 'incomplete', 'stopped by SIGTERM'),
        ('cut', 'left out', 'stopped by SIGTERM'),
        ('none', 'left out', 'it ran out of memory'),
        ('failure', 'left out', 'the data are gone'),
    ):
        row = rows[f'new/{name}.json']
        assert row['status'] == status
        assert reason in row['remark'], name
    assert any('new/notes.json' in line for line in lines_of('old', 'new'))


def test_fail_below_fails_for_significantly_slower_results_only():
    write_repeats('a', 100)
    write_repeats('slow', 80)
    for number, rate in enumerate((70, 90, 30)):
        write_sample(f'noisy/{number}.json', rate=rate, seed=number)
    (error,) = errors_of('a', 'slow', '--fail_below=0.95')
    check_line(error, '--fail_below=0.95', 'slow (0.799)')
    for argv in (
        ('a', 'slow', '--fail_below=0.7'),
        ('a', 'noisy', '--fail_below=0.95'),
        ('slow', 'a', '--fail_below=0.95'),
    ):
        assert errors_of(*argv, code=0) == []
    # A single run gets no verdict, and scripts must see that.
    (warning,) = errors_of('a', 'slow/32-0.json', '--fail_below=0.95', code=0)
    check_line(warning, '--fail_below=0.95', 'slow/32-0.json', 'too few runs')


@pytest.mark.parametrize(('value', 'ratio'), [('95', '0.95'), ('2', '0.02')])
def test_a_percentage_for_fail_below_is_refused_with_its_ratio(value, ratio):
    (error,) = errors_of('a', 'slow', f'--fail_below={value}', code=2)
    check_line(error, f'--fail_below={value}:', f'--fail_below={ratio}')


def test_the_time_between_steps_counts():
    write_sample('a.json')
    write_sample('b.json', gap=0.1)
    assert rows_of('a.json', 'b.json')[0]['ratio'] < 0.8


def test_different_work_needs_force():
    write_sample('a.json')
    write_sample('c.json', run={'role': 'forward-only'}, flags={'model': 'trivial'})
    argv = ('a.json', 'c.json', '--force')
    assert rows_of(*argv)[0]['different_work'] == {
        'model': ['lenet', 'trivial'],
        'role': ['training', 'forward-only'],
    }
    assert 'different work: model lenet -> trivial' in '\n'.join(lines_of(*argv))


def test_a_log_is_compared_with_a_result():
    Path('old.log').write_text(LOG)
    write_sample('new.json')
    (row,) = rows_of('old.log', 'new.json')
    assert row['different_machine'] == {'versions.tensorflow': ['2.20', '2.21.0']}
    assert (row['baseline_images_per_second'], row['baseline_low']) == (80.0, None)
    assert row['ratio'] == pytest.approx(100 / 80, rel=0.01)
    assert (row['ratio_low'], row['verdict']) == (None, 'too few runs')


def test_a_log_that_begins_like_json_is_a_log():
    for name, rate in (('a', '80.00'), ('b', '40.00')):
        lines = LOG.replace('80.00', rate).splitlines()
        Path(name).write_text(''.join(f'[1,0]<stdout>:{line}\n' for line in lines))
    assert rows_of('a', 'b')[0]['ratio'] == 0.5


def write_history() -> tuple[str, ...]:
    """Writes earlier runs and new ones; returns the arguments that judge these."""
    for number in range(12):
        start, rate = f'2026-10-{number + 1:02}T08:00:00Z', 100 + number % 3
        write_sample(f'earlier/{number}.json', rate=rate, seed=number, started_at=start)
    for name, rate in (('same', 101), ('slow', 80)):
        write_sample(f'{name}.json', rate=rate, seed=99)
    write_sample('other.json', flags={'batch_size': 64})
    return 'same.json', 'slow.json', 'other.json', '--against=earlier'


def test_results_are_judged_by_earlier_ones_in_every_format():
    argv = write_history()
    rows = json.loads('\n'.join(lines_of(*argv, '--format=json')))['rows']
    assert {row['name']: (row['verdict'], row['is_regression']) for row in rows} == {
        'same.json': ('as before', False),
        'slow.json': ('slower than the 10 runs before', True),
        'other.json': ('no run before this one', False),
    }
    assert len(lines_of(*argv, '--format=csv')) == 4
    assert lines_of(*argv, '--format=markdown')[0].split()[:4] == ['|', 'run', '|', 'shape']


def test_fail_below_fails_for_a_regression_and_names_what_has_no_verdict():
    unjudged, slow = errors_of(*write_history(), '--fail_below=0.95')
    check_line(unjudged, '--fail_below=0.95', 'other.json', 'no run before this one')
    check_line(slow, '--fail_below=0.95', 'slow.json')


def test_an_outlying_run_is_named():
    for number, rate in enumerate((100, 101, 99, 50, 100, 102)):
        write_sample(f'a/{number}.json', rate=rate, noise=0)
        write_sample(f'b/{number}.json', rate=80 + number % 2, noise=0, seed=number)
    (line,) = [line for line in lines_of('a', 'b') if 'far from' in line]
    check_line(line, 'a/3.json (50.0)', 'far from the others')
    assert [*rows_of('a', 'b')[0]['outliers']] == ['a/3.json']


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('{"schema', 'JSON'),
        (json.dumps(sample_failure(reason='out of memory')), 'out of memory'),
    ],
)
def test_fail_below_fails_for_an_unreadable_file_and_a_failed_run(text, reason):
    write_repeats('old', 100)
    write_repeats('new', 100.5, xla=True)
    write_sample('earlier/9.json', seed=9)
    # An evaluation has no throughput in any case.
    write_document('new/evaluation.json', untimed_document('', run={'role': 'evaluation'}))
    assert errors_of('old', 'new', '--fail_below=0.9', code=0) == []
    Path('new/bad.json').write_text(text)
    lines_of('old', 'new')
    (error,) = errors_of('old', 'new', '--fail_below=0.9')
    check_line(error, '--fail_below=0.9', 'new/bad.json', reason)
    # The table of --against has no rows for what it leaves out.
    *left_out, error = errors_of('new', '--against=earlier', '--fail_below=0.9')
    check_line(error, '--fail_below=0.9', 'new/bad.json', reason)
    assert any('new/bad.json' in line and reason in line for line in left_out)


def test_against_names_the_new_runs_that_it_leaves_out():
    write_sample('earlier/9.json', seed=9)
    write_sample('new/short.json', **cut_off('the run was interrupted'))
    write_document('new/evaluation.json', untimed_document('', run={'role': 'evaluation'}))
    evaluation, short = errors_of('new', '--against=earlier', code=0)
    check_line(evaluation, 'new/evaluation.json')
    check_line(short, 'new/short.json', 'interrupted')


RUNS = ('compare', '--run=--model=lenet --batch_size=8', '--run', '--model=lenet --batch_size=16')


def replace_program(
    monkeypatch: pytest.MonkeyPatch, folder: Path, behaviours: dict[str, object]
) -> None:
    """Puts the small program in place of the real one."""
    program = fake_runner(folder, behaviours)
    monkeypatch.setattr(compare_runs, 'Runner', lambda environment, timeout_secs: program)


def test_two_commands_run_in_turns(monkeypatch, tmp_path):
    replace_program(monkeypatch, tmp_path, {})
    out, err = run_main(*RUNS, '--rounds=3', '--output=out', '--format=json')
    # Each round has the reverse order of the previous one.
    assert sizes_in(tmp_path)[:4] == [8, 16, 16, 8]
    assert sorted(sizes_in(tmp_path)[4:]) == [8, 16]
    (row,) = json.loads(out)['rows']
    assert (row['baseline_num_runs'], row['num_runs'], row['verdict']) == (3, 3, 'faster')
    assert row['ratio'] == pytest.approx(2)
    lines = [line for line in err.splitlines() if line.startswith('round')]
    for number, line in enumerate(lines, start=1):
        check_line(line, f'round {number}: A 80.0 images/sec, B 160.0 images/sec')
    assert '95 %' not in lines[1]
    check_line(lines[2], 'B / A 2.000, 95 % 2.000 to 2.000')
    # The files are there for later comparisons.
    assert rows_of('out/results/a', 'out/results/b')[0]['ratio'] == row['ratio']


def test_turns_go_on_in_a_folder_of_the_same_commands_only(monkeypatch, tmp_path):
    replace_program(monkeypatch, tmp_path, {})
    run_main(*RUNS, '--rounds=3', '--output=out')
    _, error = run_main(*RUNS[:3], '--model=lenet --batch_size=4', '--output=out', code=2)
    check_line(error.splitlines()[-1], '--output=out', 'other commands')
    out, _ = run_main(*RUNS, '--rounds=4', '--output=out', '--format=json')
    (row,) = json.loads(out)['rows']
    assert (row['baseline_num_runs'], row['num_runs']) == (4, 4)
    assert len(sizes_in(tmp_path)) == 8


@pytest.mark.parametrize(
    ('flags', 'fact'),
    [
        ('--model=alexnet', 'model lenet and alexnet'),
        ('--model=lenet --forward_only', 'role training and forward-only'),
    ],
)
def test_different_work_is_refused_before_the_first_run(monkeypatch, tmp_path, flags, fact):
    replace_program(monkeypatch, tmp_path, {})
    _, error = run_main(*RUNS[:2], f'--run={flags}', code=2)
    check_error(error, fact, '--force')
    assert not (tmp_path / 'log.txt').exists()


def test_a_run_that_fails_ends_the_turns_with_its_reason(monkeypatch, tmp_path):
    replace_program(monkeypatch, tmp_path, {'--batch_size=16': 'fail'})
    _, error = run_main(*RUNS, '--output=failed', code=1)
    check_line(error.splitlines()[-1], '--batch_size=16', 'the disk is on fire', 'failed')


def test_ctrl_c_ends_the_turns_and_the_run(monkeypatch, tmp_path):
    waits = {f'--batch_size={size}': {'5': 'wait'} for size in (8, 16)}
    replace_program(monkeypatch, tmp_path, {**waits})
    with interrupt_when_waiting(tmp_path):
        _, error = run_main(*RUNS, '--output=stopped', code=130)
    check_line(error.splitlines()[-2], 'stopped')
    pids = [json.loads(line)[0] for line in (tmp_path / 'log.txt').read_text().splitlines()]
    assert len(pids) == 5
    assert_ended(pids)


@pytest.mark.parametrize('name', ['b.json', 'b.log'])
def test_standard_input_is_a_result_or_a_log(name, monkeypatch):
    write_sample('a.json')
    write_sample('b.json', rate=50)
    Path('b.log').write_text(LOG)
    (expected,) = rows_of('a.json', name)
    for argv, side in ((('a.json', '-'), ''), (('-', 'a.json'), 'baseline_')):
        with open(name) as text:
            monkeypatch.setattr('sys.stdin', text)
            (row,) = rows_of(*argv)
        assert row[f'{side}images_per_second'] == expected['images_per_second']
        assert row[f'{side}files'] == ['standard input']


@pytest.mark.parametrize(
    ('argv', 'fact'),
    [(['-', 'a.json'], 'standard input: it is empty'), (['-', '-'], 'only once')],
)
def test_standard_input_is_read_once_and_not_empty(argv, fact, monkeypatch):
    write_sample('a.json')
    with open('/dev/null') as text:
        monkeypatch.setattr('sys.stdin', text)
        (error,) = errors_of(*argv, code=2)
    check_line(error, fact)


def test_settings_of_one_folder_are_compared_within_their_batch_size():
    write_repeats('all/replicated', 100, (32, 64), variable_update='replicated')
    write_repeats('all/independent', 120, (32, 64), variable_update='independent')
    # No other setting has this batch size.
    write_repeats('all/replicated', 50, (16,))
    rows = {row['setting']: row for row in rows_of('all')}
    first, second = (f'independent batch {size}' for size in (32, 64))
    assert {name: row['baseline'] for name, row in rows.items()} == {
        'replicated batch 32': first,
        'replicated batch 64': second,
        'replicated batch 16': first,
    }
    assert [*rows['replicated batch 64']['different_flags']] == ['variable_update']
    check_line(lines_of('all')[0], 'Against the baseline: slower in 3 of 3 settings')
    for page_row in summarize_collection(collect(['all'])).rows:
        assert isinstance(page_row.baseline, ReportRow)
        sizes = [row.properties['batch size'] for row in (page_row, page_row.baseline)]
        assert sizes[0] in ('16', sizes[1])


def test_batch_sizes_are_compared_where_each_setting_has_its_own():
    write_repeats('sizes', 100, (32, 64, 128))
    assert {row['baseline'] for row in rows_of('sizes')} == {'batch 128'}
    check_line(lines_of('sizes')[1], 'baseline batch 128')


def test_different_work_in_one_folder_is_refused_also_where_batch_sizes_differ():
    write_repeats('works', 100, (32, 64))
    write_repeats('works/more', 10, (16, 8), model='trivial')
    (error,) = errors_of('works', code=2)
    check_line(error, 'different work', 'lenet', 'trivial')
    assert len([row for row in rows_of('works', '--force') if row['ratio']]) == 3
