"""The subcommand `compare`: what it prints for results, folders, logs and histories, and what it
refuses.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from tests.support.outputs import check_line
from tests.support.sample_results import (
    assert_ended,
    cut_off,
    interrupt_when_waiting,
    sample_document,
    sample_failure,
    sizes_in,
    starter,
    step_seconds,
    untimed_document,
    write_sample,
)
from tf_cnn.compare.report_rows import summarize_collection
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


def run_compare(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    """What the subcommand prints; standard error must be empty, or for code 1 one line, which is
    appended.
    """
    assert tf_cnn_benchmarks.main(['compare', *argv]) == code
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == code
    return str(out + err)


def rows_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    document = json.loads(run_compare(capsys, *argv, '--format=json'))
    assert (document['schema'], document['schema_version']) == ('tf_cnn_benchmarks.comparison', 1)
    return list(document['rows'])


def write_repeats(
    folder: str,
    rate: float,
    batch_sizes: tuple[int, ...] = (32,),
    flags: Mapping[str, Any] | None = None,
    **parts: Any,
) -> None:
    for number in range(3):
        for batch_size in batch_sizes:
            path = Path(folder, f'{batch_size}-{number}.json')
            seed = 100 * batch_size + number + int(rate)
            given = {'batch_size': batch_size, **(flags or {})}
            write_sample(path, rate=rate * (1 + 0.002 * number), seed=seed, flags=given, **parts)


def test_two_results_are_compared_and_what_differs_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_sample(Path('a.json'), seed=1)
    slow = [
        {'code': 'outliers', 'text': '3 steps took long'},
        {'code': 'evil', 'text': 'x\x1b[2J\nfake line'},
    ]
    write_sample(
        Path('b.json'),
        seed=2,
        rate=80,
        warnings=slow,
        flags={'batch_size': 64},
        machine={'hostname': 'beta'},
    )
    lines = run_compare(capsys, 'a.json', 'b.json').splitlines()
    titles, _, first, second, *told = lines
    columns = 'run shape runs images/sec 95 % ratio 95 % verdict doubtful runs'
    assert titles.split() == columns.split()
    assert first.split()[:3] == ['a.json', '1*1', '1']
    assert first.endswith('baseline')
    assert '+/-' in second
    assert second.split()[-4:] == ['too', 'few', 'runs', 'outliers']
    text = '\n'.join(told)
    assert 'batch_size 32 -> 64' in text
    assert 'hostname alpha -> beta' in text
    assert '! 1 of 2 runs was disturbed' in text
    # Text of a result cannot control the terminal.
    assert '\x1b' not in text
    assert not any(line.startswith('fake') for line in told)
    assert '--repeat' in text


def test_the_doubtful_runs_of_a_row_are_counted_and_named_with_their_causes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(3):
        write_sample(
            Path(f'good/{number}.json'),
            seconds=[0.02 + number / 1e4] * 400,
            flags={'batch_size': 32},
        )
    for number, (rate, code) in enumerate(
        [(2403.6, 'drift'), (2163.8, None), (1553.2, 'machine_loaded')]
    ):
        warnings = [{'code': code, 'text': 'so it was'}] if code else []
        path = Path(f'bad/{number}.json')
        write_sample(
            path,
            seconds=[32 / rate] * 400,
            gap=0,
            seed=number,
            warnings=warnings,
            flags={'batch_size': 32},
        )
    lines = run_compare(capsys, 'good', 'bad').splitlines()
    assert lines[2].endswith('baseline')
    assert lines[3].endswith('2 of 3: other programs (1), drift (1)')
    (line,) = (line for line in lines if line.startswith('bad: doubtful'))
    assert (
        line == 'bad: doubtful: bad/0.json (2403.60, drift), bad/2.json (1553.20, machine_loaded)'
    )
    (line,) = (line for line in lines if line.startswith('! '))
    check_line(line, '2 of 6 runs were disturbed', 'other programs (1 run', 'drift (1 run')
    good, bad = rows_of(capsys, 'good', 'bad')
    assert (good['doubtful_runs'], bad['doubtful_runs']) == (
        {},
        {'bad/0.json': ['drift'], 'bad/2.json': ['machine_loaded']},
    )


def test_json_has_all_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    write_repeats('a', 100)
    write_repeats('b', 80, flags={'precision': 'fp16'})
    first, second = rows_of(capsys, 'a', 'b')
    assert (first['is_baseline'], first['ratio'], first['verdict']) == (True, None, None)
    assert second['baseline'] == 'a'
    assert second['ratio'] == pytest.approx(
        second['images_per_second'] / first['images_per_second']
    )
    assert second['ratio_low'] < second['ratio'] < second['ratio_high'] < 1
    assert (second['verdict'], second['is_significant']) == ('slower', True)
    assert (second['num_runs'], second['num_steps']) == (3, 150)
    assert second['step_spread'] > 0
    assert second['different_flags'] == {'precision': ['fp32', 'fp16']}
    assert second['different_machine'] == second['different_work'] == {}


def test_csv_has_the_keys_of_json_and_markdown_is_a_table_and_a_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_sample(Path('a.json'))
    write_sample(Path('c.json'), flags={'batch_size': 64})
    rows = rows_of(capsys, 'a.json', 'c.json')
    read = [*csv.DictReader(run_compare(capsys, 'a.json', 'c.json', '--format=csv').splitlines())]
    assert [[*row] for row in read] == [[*row] for row in rows]
    assert json.loads(read[1]['different_flags']) == {'batch_size': [32, 64]}
    lines = run_compare(capsys, 'a.json', 'c.json', '--format=markdown').splitlines()
    assert {line.count('|') for line in lines[:4]} == {9}
    assert '- flags: batch_size 32 -> 64' in lines


def test_folders_are_compared_setting_by_setting(capsys: pytest.CaptureFixture[str]) -> None:
    write_repeats('old', 100, (32, 64, 16))
    # What all runs of a folder share may differ from the other folder.
    new: dict[str, Any] = {'machine': {'versions': {'python': '3.12', 'tensorflow': '2.22.0'}}}
    write_repeats('new', 90, (64, 32, 128), flags={'xla': True}, **new)
    flags = {'batch_size': 256, 'xla': True}
    write_sample(Path('new/256.json'), flags=flags, **new, **cut_off('stopped by SIGTERM'))
    Path('new/none.json').write_text(json.dumps(untimed_document('it ran out of memory')))
    Path('new/failure.json').write_text(json.dumps(sample_failure(reason='the data are gone')))
    Path('new/notes.json').write_text('{"no": "result"}')
    rows = rows_of(capsys, 'old', 'new')
    compared = {row['name']: row['baseline'] for row in rows if row['ratio']}
    assert compared == {f'new: batch_size={size}': f'old: batch_size={size}' for size in (32, 64)}
    by_size = {
        (row['argument'], row['flags'].get('batch_size')): row for row in rows if row['num_runs']
    }
    for size in (32, 64):
        row = by_size['new', size]
        assert (row['num_runs'], row['verdict']) == (3, 'slower')
        assert row['ratio'] == pytest.approx(0.9, rel=0.02)
        assert row['different_flags'] == {'xla': [False, True]}
    for key in (('old', 16), ('new', 128)):
        assert by_size[key]['ratio'] is None
        assert 'only here' in by_size[key]['remark']
    assert by_size['new', 256]['status'] == 'incomplete'
    assert 'stopped by SIGTERM' in by_size['new', 256]['remark']
    left_out = {row['files'][0]: row['remark'] for row in rows if row['status'] == 'left out'}
    assert left_out['new/failure.json'] == 'the data are gone'
    assert 'it ran out of memory' in left_out['new/none.json']
    assert 'new/notes.json' in run_compare(capsys, 'old', 'new')
    # An incomplete run beside complete repeats does not count.
    write_sample(
        Path('new/cut.json'),
        rate=20,
        flags={**flags, 'batch_size': 32},
        **new,
        **cut_off('interrupted'),
    )
    rows = rows_of(capsys, 'old', 'new')
    assert [row['num_runs'] for row in rows if row['name'] == 'new: batch_size=32'] == [3]
    assert any('interrupted' in row['remark'] for row in rows if row['files'] == ['new/cut.json'])


def test_fail_below_fails_for_significantly_slower_results_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_repeats('a', 100)
    write_repeats('slow', 80)
    for number, noise in enumerate((0.7, 0.9, 0.3)):
        write_sample(Path(f'noisy/{number}.json'), rate=100 * noise, seed=number)
    text = run_compare(capsys, 'a', 'slow', '--fail_below=0.95', code=1)
    check_line(text.splitlines()[-1], '--fail_below=0.95', 'slow (0.799)')
    run_compare(capsys, 'a', 'slow', '--fail_below=0.7')
    run_compare(capsys, 'a', 'noisy', '--fail_below=0.95')
    run_compare(capsys, 'slow', 'a', '--fail_below=0.95')
    # A single run cannot be judged, which scripts must see.
    assert tf_cnn_benchmarks.main(['compare', 'a', 'slow/32-0.json', '--fail_below=0.95']) == 0
    check_line(
        capsys.readouterr().err.strip(), '--fail_below=0.95', 'slow/32-0.json', 'too few runs'
    )


def test_the_time_between_steps_counts_and_different_work_needs_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_sample(Path('a.json'), gap=0.0)
    write_sample(Path('b.json'), gap=0.1)
    assert rows_of(capsys, 'a.json', 'b.json')[1]['ratio'] < 0.8
    write_sample(Path('c.json'), run={'role': 'forward-only'}, flags={'model': 'trivial'})
    row = rows_of(capsys, 'a.json', 'c.json', '--force')[1]
    assert row['different_work'] == {
        'model': ['lenet', 'trivial'],
        'role': ['training', 'forward-only'],
    }
    assert 'different work: model lenet -> trivial' in run_compare(
        capsys, 'a.json', 'c.json', '--force'
    )


def test_a_log_is_compared_with_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    Path('old.log').write_text(LOG)
    write_sample(Path('new.json'))
    first, second = rows_of(capsys, 'old.log', 'new.json')
    assert second['different_machine'] == {'versions.tensorflow': ['2.20', '2.21.0']}
    assert (first['images_per_second'], first['low']) == (80.0, None)
    assert second['ratio'] == pytest.approx(100 / 80, rel=0.01)
    assert (second['ratio_low'], second['verdict']) == (None, 'too few runs')
    # A log that begins like JSON is a log.
    for name, rate in (('a', 80), ('b', 40)):
        lines = LOG.replace('80.00', f'{rate}.00').splitlines()
        Path(f'{name}.log').write_text(''.join(f'[1,0]<stdout>:{line}\n' for line in lines))
    assert rows_of(capsys, 'a.log', 'b.log')[1]['ratio'] == 0.5


def test_results_are_judged_by_earlier_ones(capsys: pytest.CaptureFixture[str]) -> None:
    Path('earlier').mkdir()
    for number in range(12):
        document = sample_document(
            rate=100 + number % 3, seed=number, started_at=f'2026-10-{number + 1:02}T08:00:00Z'
        )
        Path(f'earlier/{number}.json').write_text(json.dumps(document))
    for name, rate in (('same', 101), ('slow', 80)):
        write_sample(Path(f'{name}.json'), rate=rate, seed=99)
    write_sample(Path('other.json'), flags={'batch_size': 64})
    argv = ('same.json', 'slow.json', 'other.json', '--against=earlier')
    document = json.loads(run_compare(capsys, *argv, '--format=json'))
    verdicts = {row['name']: row['verdict'] for row in document['rows']}
    assert verdicts == {
        'same.json': 'as before',
        'slow.json': 'slower than the 10 runs before',
        'other.json': 'no run before this one',
    }
    assert [row['is_regression'] for row in document['rows']] == [False, True, False]
    assert tf_cnn_benchmarks.main(['compare', *argv, '--fail_below=0.95']) == 1
    unjudged, slow = capsys.readouterr().err.splitlines()
    check_line(unjudged, '--fail_below=0.95', 'other.json', 'no run before this one')
    check_line(slow, '--fail_below=0.95', 'slow.json')
    assert len(run_compare(capsys, *argv, '--format=csv').splitlines()) == 4
    assert run_compare(capsys, *argv, '--format=markdown').split()[:4] == ['|', 'run', '|', 'shape']


def test_an_outlying_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for number, rate in enumerate((100, 101, 99, 50, 100, 102)):
        for folder, own, seed in (('a', rate, number), ('b', 80 + number % 2, 50 + number)):
            write_sample(
                Path(folder, f'{number}.json'),
                seconds=step_seconds(32 / own, noise=0.001, seed=seed),
            )
    (line,) = [line for line in run_compare(capsys, 'a', 'b').splitlines() if 'far from' in line]
    check_line(line, 'a: ', 'a/3.json (49.9', 'far from the others')
    first, second = rows_of(capsys, 'a', 'b')
    assert [*first['outliers']] == ['a/3.json']
    assert second['outliers'] == {}


def test_fail_below_fails_for_an_unreadable_file_and_a_failed_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_repeats('old', 100)
    write_repeats('new', 100.5, flags={'xla': True})
    write_sample(Path('earlier/9.json'), seed=9)
    run_compare(capsys, 'old', 'new', '--fail_below=0.9')
    # An evaluation has no throughput in any case.
    evaluation = untimed_document('', run={'role': 'evaluation'})
    Path('new/evaluation.json').write_text(json.dumps(evaluation))
    run_compare(capsys, 'old', 'new', '--fail_below=0.9')
    bad = Path('new/bad.json')
    for text, reason in (
        ('{"schema', 'JSON'),
        (json.dumps(sample_failure(reason='out of memory')), 'out of memory'),
    ):
        bad.write_text(text)
        run_compare(capsys, 'old', 'new')
        for argv in (('old', 'new'), ('new', '--against=earlier')):
            assert tf_cnn_benchmarks.main(['compare', *argv, '--fail_below=0.9']) == 1
            lines = capsys.readouterr().err.splitlines()
            check_line(lines[-1], '--fail_below=0.9', 'new/bad.json', reason)
            # The table of --against has no rows for what it leaves out.
            if argv[1] != 'new':
                assert any('new/bad.json' in line and reason in line for line in lines[:-1])
                assert any('new/evaluation.json' in line for line in lines[:-1])
    write_sample(Path('short.json'), **cut_off('the run was interrupted'))
    assert tf_cnn_benchmarks.main(['compare', 'short.json', '--against=earlier']) == 0
    check_line(capsys.readouterr().err.strip(), 'short.json', 'interrupted')


def test_two_commands_run_in_turns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compare_runs, 'Runner', lambda environment: starter(tmp_path))
    argv = [
        'compare',
        '--run=--model=lenet --batch_size=8',
        '--run',
        '--model=lenet --batch_size=16',
    ]
    assert tf_cnn_benchmarks.main([*argv, '--rounds=3', '--output=out', '--format=json']) == 0
    out, err = capsys.readouterr()
    # Each round is backwards after the one before.
    assert sizes_in(tmp_path)[:4] == [8, 16, 16, 8]
    assert sorted(sizes_in(tmp_path)[4:]) == [8, 16]
    first, second = json.loads(out)['rows']
    assert (first['num_runs'], second['num_runs'], second['verdict']) == (3, 3, 'faster')
    assert second['ratio'] == pytest.approx(2)
    lines = [line for line in err.splitlines() if line.startswith('round')]
    assert [line.partition(';')[0] for line in lines] == [
        f'round {n}: A 80.0 images/sec, B 160.0 images/sec' for n in (1, 2, 3)
    ]
    assert '95 %' not in lines[1]
    check_line(lines[2], 'B / A 2.000, 95 % 2.000 to 2.000')
    # The files are there for later comparisons.
    assert rows_of(capsys, 'out/results/a', 'out/results/b')[1]['ratio'] == second['ratio']
    assert tf_cnn_benchmarks.main([*argv[:3], '--batch_size=4', '--output=out']) == 2
    check_line(capsys.readouterr().err.strip().splitlines()[-1], '--output=out', 'other commands')
    # The same runs go on.
    assert tf_cnn_benchmarks.main([*argv, '--rounds=4', '--output=out', '--format=json']) == 0
    assert [row['num_runs'] for row in json.loads(capsys.readouterr().out)['rows']] == [4, 4]
    assert len(sizes_in(tmp_path)) == 8
    # A run that fails ends the comparison, with its reason.
    behaviours: dict[str, object] = {'--batch_size=16': 'fail'}
    monkeypatch.setattr(
        compare_runs,
        'Runner',
        lambda environment: starter(tmp_path, behaviours=behaviours),
    )
    assert tf_cnn_benchmarks.main([*argv, '--output=failed']) == 1
    check_line(
        capsys.readouterr().err.splitlines()[-1], '--batch_size=16', 'the disk is on fire', 'failed'
    )


def test_ctrl_c_ends_the_turns_and_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    argv = [
        'compare',
        '--run=--batch_size=8',
        '--run=--batch_size=16',
        '--output=stopped',
    ]
    behaviours: dict[str, object] = {f'--batch_size={size}': {'5': 'wait'} for size in (8, 16)}
    monkeypatch.setattr(
        compare_runs,
        'Runner',
        lambda environment: starter(tmp_path, behaviours=behaviours),
    )
    with interrupt_when_waiting(tmp_path):
        assert tf_cnn_benchmarks.main(argv) == 130
    check_line(capsys.readouterr().err.splitlines()[-2], 'stopped')
    pids = [json.loads(line)[0] for line in (tmp_path / 'log.txt').read_text().splitlines()]
    assert len(pids) == 5
    assert_ended(pids)


@pytest.mark.parametrize('form', ['a result', 'a log'])
def test_standard_input_is_a_result_or_a_log(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sample(Path('a.json'), seed=1)
    write_sample(Path('b.json'), seed=2, rate=50)
    Path('b.log').write_text(LOG)
    source = Path('b.json' if form == 'a result' else 'b.log')
    expected = rows_of(capsys, 'a.json', str(source))
    for argv, place in ((('a.json', '-'), 1), (('-', 'a.json'), 0)):
        with source.open() as text:
            monkeypatch.setattr('sys.stdin', text)
            rows = rows_of(capsys, *argv)
        assert rows[place]['images_per_second'] == expected[1]['images_per_second']
        assert rows[place]['files'] == ['standard input']
    for argv, fact in ((('-', 'a.json'), 'standard input: it is empty'), (('-', '-'), 'only once')):
        with Path('/dev/null').open() as text:
            monkeypatch.setattr('sys.stdin', text)
            assert tf_cnn_benchmarks.main(['compare', *argv]) == 2
        check_line(capsys.readouterr().err.strip(), fact)


def test_settings_of_one_folder_are_compared_within_their_batch_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for mode, rate in (('replicated', 100), ('independent', 120)):
        write_repeats(f'all/{mode}', rate, (32, 64), flags={'variable_update': mode})
    # No other setting has this batch size.
    write_repeats('all/replicated', 50, (16,))
    rows = {row['name']: row for row in rows_of(capsys, 'all')}
    found = {name: row['baseline'] for name, row in rows.items()}
    first, second = (f'batch_size={size} variable_update=independent' for size in (32, 64))
    assert found == {
        first: None,
        second: None,
        'batch_size=32 variable_update=replicated': first,
        'batch_size=64 variable_update=replicated': second,
        'batch_size=16 variable_update=replicated': first,
    }
    assert [*rows['batch_size=64 variable_update=replicated']['different_flags']] == [
        'variable_update'
    ]
    page = summarize_collection(collect(['all'])).rows
    for row in page:
        assert row.baseline
        same_size = [
            other
            for other in page
            if other.properties['batch size'] == row.properties['batch size']
        ]
        assert (
            len(same_size) == 1
            or row.baseline.properties['batch size'] == row.properties['batch size']
        )
    # Where every setting has a batch size of its own, batch sizes are compared.
    write_repeats('sizes', 100, (32, 64, 128))
    assert len({row['baseline'] for row in rows_of(capsys, 'sizes')}) == 2
    # Different work in one folder is refused as before, also where batch sizes differ.
    write_repeats('works', 100, (32, 64))
    write_repeats('works/more', 10, (16, 8), flags={'model': 'trivial'})
    assert tf_cnn_benchmarks.main(['compare', 'works']) == 2
    check_line(capsys.readouterr().err.strip(), 'different work', 'lenet', 'trivial')
    assert len([row for row in rows_of(capsys, 'works', '--force') if row['baseline']]) == 3
