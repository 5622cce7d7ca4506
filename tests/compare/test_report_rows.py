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
    untimed_document,
)
from tf_cnn.compare.report_rows import (
    Summary,
    describe_fastest,
    name_settings,
    summarize_collection,
)
from tf_cnn.lab.ratios import estimate
from tf_cnn.results.collection import Collection
from tf_cnn.results.document import Failure, Result
from tf_cnn.results.tables import format_number

pytestmark = pytest.mark.unit


def summary_of(*results: Result, failures: tuple[Failure, ...] = ()) -> Summary:
    return summarize_collection(Collection(results, failures, ()))


def test_a_setting_leads_only_where_compare_would_call_it_faster_than_all_others():
    loaded = {'warnings': [{'code': 'machine_loaded', 'text': ''}]}
    changes: dict[str, Any]
    for second, num_runs, changes, *facts in (
        (80, 3, {}, 'batch 64 leads with '),
        (99.9, 3, {}, ': no significant difference.'),
        (80, 2, {}, ': too few runs', 'three or more runs'),
        (80, 3, loaded, 'batch 64 leads with ', 'doubtful'),
        # A run that was disturbed does not make a winner of settings that do not differ.
        (99.9, 3, loaded, ': no significant difference; ', 'doubtful'),
        (80, 3, {'seconds': [0.01] * 20}, ': too short to judge'),
    ):
        results = [
            sample_record(rate=rate, seed=repeat, flags={'batch_size': size}, **more)
            for size, rate, more in ((64, 100, changes), (32, second, {}), (16, 50, {}))
            for repeat in range(num_runs)
        ]
        (answer,) = describe_fastest(summary_of(*results))
        check_line(answer, *facts)


def test_runs_on_one_and_on_two_gpus_differ_in_nothing_but_their_shape():
    first, two, other_gpus = (
        sample_record(flags={'num_gpus': number}, environment={'CUDA_VISIBLE_DEVICES': gpus})
        for number, gpus in ((1, '0'), (2, '0,1'), (2, '2,3'))
    )
    assert 'CUDA_VISIBLE_DEVICES' not in summary_of(first, two).columns
    assert 'CUDA_VISIBLE_DEVICES' in summary_of(first, other_gpus).columns


def test_settings_and_machines_that_differ_are_columns_and_not_repeats():
    other = sample_record(
        flags={'optimizer': 'momentum'},
        machine={'hostname': 'beta'},
        environment={'OMP_NUM_THREADS': '2'},
    )
    summary = summary_of(sample_record(flags={'optimizer': 'sgd'}), other)
    assert {'machine', 'optimizer', 'OMP_NUM_THREADS'} <= set(summary.columns)
    assert [row.properties['machine'] for row in summary.rows] == ['alpha', 'beta']


def test_a_variable_that_a_flag_sets_is_no_column():
    runs = [
        sample_record(flags={'onednn': value}, environment={'TF_ENABLE_ONEDNN_OPTS': f'{value:d}'})
        for value in (True, False)
    ]
    columns = summary_of(*runs).columns
    assert 'onednn' in columns
    assert 'TF_ENABLE_ONEDNN_OPTS' not in columns


def test_repeats_are_one_row_with_the_interval_of_their_mean():
    runs = [
        sample_record(seed=seed, flags={'result_file': f'{seed}.json', 'num_batches': seed})
        for seed in (1, 2, 3)
    ]
    (row,) = summary_of(*runs).rows
    mean = estimate(runs)
    assert (row.interval, row.rate, len(row.runs)) == (mean.interval, mean.images_per_second, 3)


def test_failures_and_incomplete_runs_are_rows_with_a_reason_and_no_speed_up():
    stopped = sample_record(**cut_off('stopped by SIGTERM'), rate=1000)
    failure = failed_run(shape='8*1', reason='out of memory')
    first, second = (sample_record(flags={'batch_size': size}, rate=size) for size in (32, 64))
    summary = summary_of(first, stopped, second, failures=(failure,))
    assert [row.status for row in summary.rows] == ['complete', 'incomplete', 'complete', 'failed']
    speed_ups = [row.speed_up for row in summary.rows]
    assert speed_ups == [1.0, None, pytest.approx(2, rel=0.02), None]
    assert 'stopped by SIGTERM' in str(summary.rows[1].reason)
    assert 'out of memory' in str(summary.rows[3].reason)
    # An incomplete run is not the fastest.
    assert summary.shown == [summary.rows[0], summary.rows[2]]
    assert summary_of(failures=(failure,)).shown == []


def test_a_row_without_a_partner_has_no_speed_up():
    models = [sample_record(flags={'model': model}) for model in ('lenet', 'alexnet')]
    assert [row.speed_up for row in summary_of(*models).rows] == [None, None]


def test_each_workload_has_a_sentence_in_the_order_of_the_rows():
    runs = [
        sample_record(flags={'model': 'resnet50'}, rate=7, started_at='2026-11-20T08:00:00Z'),
        *(sample_record(seed=seed, rate=100) for seed in range(3)),
        *(sample_record(seed=seed, rate=200, flags={'batch_size': 64}) for seed in range(3)),
    ]
    first, second = describe_fastest(summary_of(*runs))
    check_line(first, 'resnet50: ', 'images/sec with replicated, batch 32')
    check_line(second, 'lenet · batch 64 leads with ')


def test_a_name_has_the_folder_only_if_nothing_else_distinguishes_it():
    settings = [
        {'folder': folder, 'model': model, 'machine': folder}
        for folder, model in (('a', 'lenet'), ('b', 'alexnet'))
    ]
    columns = ('folder', 'model', 'machine')
    assert name_settings(settings, columns) == ['lenet', 'alexnet']
    same = [{**setting, 'model': 'lenet'} for setting in settings]
    assert name_settings(same, columns) == ['a', 'b']


def test_a_run_without_a_timed_step_has_neither_a_rate_nor_a_speed_up():
    (row,) = summary_of(record_of(untimed_document('stopped by SIGINT'))).rows
    assert math.isnan(row.rate)
    assert row.speed_up is None


def test_failures_are_named_by_their_differences_from_results():
    first, second = failed_run(model='resnet50', shape='1*2'), failed_run(model='resnet50')
    first.command.given_flags = {'model': '--model=resnet50'}
    result = sample_record(flags={'variable_update': 'parameter_server'})
    summary = summary_of(result, failures=(first, second))
    labels = [row.label for row in summary.rows]
    assert not any(label.startswith('#') for label in labels)
    assert ['resnet50' in label for label in labels] == [False, True, True]
    # The default.
    assert summary.rows[1].properties['variable_update'] == 'parameter_server'


def test_settings_are_named_by_their_differences():
    settings = [
        {'variable_update': 'replicated', 'batch size': size, 'model': model, 'optimizer': 'sgd'}
        for size, model in (('32', 'lenet'), ('64', 'lenet'), ('64', 'resnet50'))
    ]
    names = name_settings(settings, ('variable_update', 'batch size', 'model'))
    assert names == ['lenet · batch 32', 'lenet · batch 64', 'resnet50 · batch 64']


def test_long_names_are_numbered():
    settings = [
        {'model': 'lenet', 'path': 'x' * 100 + end, 'W*G+P': shape}
        for end in 'ab'
        for shape in ('1*1', '1*2')
    ]
    names = name_settings(settings, ('model', 'W*G+P', 'path'))
    assert len(set(names)) == 4
    assert [name.split()[0] for name in names] == ['#1', '#2', '#3', '#4']
    assert max(map(len, names)) < 60


def test_shortened_names_begin_with_the_differences_in_usual_words():
    settings = [
        {
            'variable_update': 'parameter_server',
            'batch size': '32',
            'W*G+P': '2*1+1',
            'model': model,
            'machine': 'a-host-with-a-long-name',
            'cross_replica_sync': sync,
            'staged_vars': staged,
        }
        for model in ('lenet', 'resnet50')
        for sync in ('true', 'false')
        for staged in ('false', 'true')
    ]
    assert name_settings(settings, [*settings[0]])[:4] == [
        'lenet · sync · not staged',
        'lenet · sync · staged',
        'lenet · async · not staged',
        'lenet · async · staged',
    ]
    # Also where a long value differs only at its end.
    paths = [f'/{"data/" * 20}{name}' for name in ('imagenet', 'flowers')]
    settings = [{**row, 'data_dir': path} for row in settings for path in paths]
    for name, row in zip(name_settings(settings, [*settings[0]]), settings, strict=True):
        assert ('async' in name) == (row['cross_replica_sync'] == 'false')
        assert ('not staged' in name) == (row['staged_vars'] == 'false')
        assert row['data_dir'].rpartition('/')[2] in name or name.endswith('…')


def test_numbers_have_three_digits_or_all_before_the_point():
    values = (0.0123456, 184.59, 12345.6, 0, None, math.nan)
    assert [*map(format_number, values)] == ['0.0123', '185', '12,346', '0', '—', '—']


def test_a_flag_that_a_version_lacks_has_its_default():
    document = sample_document()
    del document['command']['flags']['xla']
    old = record_of(document)
    assert len(summary_of(old, sample_record(flags={'xla': False})).rows) == 1
    other = summary_of(old, sample_record(flags={'xla': True}))
    assert 'xla' in other.columns
    assert [row.properties['xla'] for row in other.rows] == ['false', 'true']
