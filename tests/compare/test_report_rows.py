"""The table of the report: repeats, speed-ups, intervals, failures, and the names of settings."""

import math
from typing import Any

import pytest

from tests.support.outputs import check_line
from tests.support.sample_results import (
    cut_off,
    failed_run,
    record_of,
    sample_document,
    sample_record,
    step_seconds,
)
from tf_cnn.compare.ratios import estimate
from tf_cnn.compare.report_rows import (
    Summary,
    describe_fastest,
    format_number,
    name_settings,
    summarize_collection,
)
from tf_cnn.results.collection import Collection
from tf_cnn.results.document import Failure, Result

pytestmark = pytest.mark.unit


def summary_of(*results: Result, failures: tuple[Failure, ...] = ()) -> Summary:
    return summarize_collection(Collection(results, failures, ()))


def test_a_setting_leads_only_where_compare_would_call_it_faster_than_all_others() -> None:
    def answer(second: float, runs: int = 3, **of_first: Any) -> str:
        results = [
            sample_record(rate=rate, seed=repeat, gap=0, flags={'batch_size': size}, **changes)
            for size, rate, changes in ((64, 100, of_first), (32, second, {}), (16, 50, {}))
            for repeat in range(runs)
        ]
        (found,) = describe_fastest(summary_of(*results).shown)
        return found

    assert answer(80).startswith('batch 64 leads with ')
    assert answer(99.9).endswith(': no significant difference.')
    check_line(answer(80, runs=2), ': too few runs', 'three or more runs')
    loaded = [{'code': 'machine_loaded', 'text': ''}]
    check_line(answer(80, warnings=loaded), 'batch 64 leads with ', 'disturbed')
    # A run that was disturbed does not make a winner of settings that do not differ.
    check_line(answer(99.9, warnings=loaded), ': no significant difference; ', 'disturbed')
    short = step_seconds(0.01, num_steps=20)
    check_line(answer(80, seconds=short), ': too short to judge')


def test_runs_on_one_and_on_two_gpus_differ_in_nothing_but_their_shape() -> None:
    documents = [sample_document(flags={'num_gpus': number}) for number in (1, 2, 2)]
    for document, gpus in zip(documents, ('0', '0,1', '2,3'), strict=True):
        document['environment'] = {'CUDA_VISIBLE_DEVICES': gpus}
    one, two, others = (
        record_of(document, f'{index}.json') for index, document in enumerate(documents)
    )
    assert 'CUDA_VISIBLE_DEVICES' not in summary_of(one, two).columns
    assert 'CUDA_VISIBLE_DEVICES' in summary_of(one, others).columns


def test_machines_flags_and_versions_are_no_repeats_but_columns() -> None:
    other = sample_document(seed=3, flags={'optimizer': 'momentum'}, machine={'hostname': 'beta'})
    other['environment'] = {'OMP_NUM_THREADS': '2'}
    summary = summary_of(sample_record(flags={'optimizer': 'sgd'}), record_of(other))
    assert len(summary.rows) == 2
    assert {'machine', 'optimizer', 'OMP_NUM_THREADS'} <= set(summary.columns)
    assert [row.properties['machine'] for row in summary.rows] == ['alpha', 'beta']


def test_runs_that_differ_in_what_changes_no_step_are_one_row_with_the_interval_of_their_mean() -> (
    None
):
    runs = [
        sample_record(seed=seed, flags={'result_file': f'{seed}.json', 'num_batches': seed})
        for seed in (1, 2, 3)
    ]
    (row,) = summary_of(*runs).rows
    found = estimate(runs)
    assert (row.interval, row.rate, len(row.runs)) == (found.interval, found.images_per_second, 3)


def test_failures_and_incomplete_runs_are_rows_with_their_reason_and_without_speed_up() -> None:
    stopped = sample_record(**cut_off('stopped by SIGTERM'), rate=1000)
    failure = failed_run(shape='8*1', reason='out of memory')
    summary = summary_of(sample_record(rate=100, seed=1), stopped, failures=(failure,))
    assert [row.status for row in summary.rows] == ['complete', 'incomplete', 'failed']
    assert [row.speed_up for row in summary.rows] == [1.0, None, None]
    assert 'stopped by SIGTERM' in str(summary.rows[1].reason)
    assert 'out of memory' in str(summary.rows[2].reason)
    # An incomplete run is not the fastest.
    assert summary.shown == [summary.rows[0]]
    assert summary_of(failures=(failure,)).shown == []
    # A run without a timed step has no rate.
    document = sample_document(seconds=step_seconds(num_steps=1), **cut_off('stopped by SIGINT'))
    document['throughput']['images_per_second'] = None
    (row,) = summary_of(record_of(document)).rows
    assert math.isnan(row.rate)
    assert row.speed_up is None


def test_failures_are_named_by_what_tells_them_from_results() -> None:
    failures = (
        failed_run(model='resnet50', shape='1*2'),
        failed_run('other.json', model='resnet50'),
    )
    failures[0].command.given_flags = {'model': '--model=resnet50'}
    summary = summary_of(
        sample_record(flags={'variable_update': 'parameter_server'}), failures=failures
    )
    labels = [row.label for row in summary.rows]
    assert not any(label.startswith('#') for label in labels)
    assert ['resnet50' in label for label in labels] == [False, True, True]
    # The default.
    assert summary.rows[1].properties['variable_update'] == 'parameter_server'


def test_speed_ups_are_within_one_model() -> None:
    results = [
        sample_record(seconds=[32 / rate] * 4, gap=0, flags={'model': model, 'num_gpus': devices})
        for model, rate in (('lenet', 100), ('resnet50', 10))
        for devices in (1, 2)
    ]
    summary = summary_of(*results)
    assert [row.speed_up for row in summary.rows] == pytest.approx([1, 2, 1, 2])
    # As they were measured.
    assert [row.properties['W*G+P'] for row in summary.rows] == ['1*1', '1*2', '1*1', '1*2']


def test_settings_are_named_by_what_tells_them_apart_and_long_names_are_numbered() -> None:
    columns = ('variable_update', 'batch size', 'W*G+P', 'model')
    settings = [
        {
            'variable_update': 'replicated',
            'batch size': size,
            'W*G+P': '1*1',
            'model': model,
            'optimizer': 'sgd',
        }
        for size, model in (('32', 'lenet'), ('64', 'lenet'), ('64', 'resnet50'))
    ]
    assert name_settings(settings, columns) == [
        'lenet · batch 32',
        'lenet · batch 64',
        'resnet50 · batch 64',
    ]
    long = [
        {'model': 'lenet', 'path': 'x' * 100 + end, 'W*G+P': shape}
        for end in 'ab'
        for shape in ('1*1', '1*2')
    ]
    names = name_settings(long, ('model', 'W*G+P', 'path'))
    assert len(set(names)) == 4
    assert [name.split()[0] for name in names] == ['#1', '#2', '#3', '#4']
    assert max(map(len, names)) < 60


def test_names_that_are_cut_begin_with_what_differs_by_its_usual_name() -> None:
    flags = {
        'variable_update': 'parameter_server',
        'batch size': '32',
        'W*G+P': '2*1+1',
        'model': 'lenet',
    }
    settings = [
        {
            **flags,
            'model': model,
            'machine': 'a-host-with-a-long-name',
            'cross_replica_sync': sync,
            'staged_vars': staged,
        }
        for model in ('lenet', 'resnet50')
        for sync in ('true', 'false')
        for staged in ('false', 'true')
    ]
    names = name_settings(settings, [*settings[0]])
    assert names[:4] == ['lenet · sync · not staged', 'lenet · sync · staged', *names[2:4]]
    assert names[2:4] == ['lenet · async · not staged', 'lenet · async · staged']
    # Also where a long value differs only at its end.
    paths = [f'/{"data/" * 20}{name}' for name in ('imagenet', 'flowers')]
    settings = [{**row, 'data_dir': path} for row in settings for path in paths]
    for name, row in zip(name_settings(settings, [*settings[0]]), settings, strict=True):
        assert ('async' in name, 'not staged' in name) == (
            row['cross_replica_sync'] == 'false',
            row['staged_vars'] == 'false',
        )
        assert row['data_dir'].rpartition('/')[2] in name or name.endswith('…')


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (0.0123456, '0.01235'),
        (184.59, '184.6'),
        (12345.6, '12,346'),
        (0, '0'),
        (None, '—'),
        (math.nan, '—'),
    ],
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text


def test_a_flag_that_a_version_lacks_differs_from_no_default() -> None:
    document, new = sample_document(seed=1), sample_record(seed=2, flags={'xla': False})
    del document['command']['flags']['xla']
    old = record_of(document)
    summary = summary_of(old, new)
    assert len(summary.rows) == 1
    other = summary_of(old, sample_record(seed=2, flags={'xla': True}))
    assert 'xla' in other.columns
    assert [row.properties['xla'] for row in other.rows] == ['false', 'true']
