"""The subcommand `predict`: what it prints, what it refuses, and `compare` with what was measured then."""

import json
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from scaling.links import LinkRow, write_links
from tests.support.outputs import check_line
from tests.support.sample_results import sample_document, sample_failure, write_sample

pytestmark = pytest.mark.unit

FROM = '--from=alone.json'
NETWORK = '--network=1Gbit'
PAIR: dict[str, Any] = {'flags': {'variable_update': 'collective_all_reduce'}, 'cluster': {'num_workers': 2}}


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sample(tmp_path / 'alone.json')


def run(capsys: pytest.CaptureFixture[str], *argv: str, command: str = 'predict') -> str:
    """What the subcommand prints; it must succeed, and standard error be empty."""
    code = tf_cnn_benchmarks.main([command, *argv])
    out, err = capsys.readouterr()
    assert (code, err) == (0, '')
    return str(out)


def rows_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    document = json.loads(run(capsys, *argv, '--format=json'))
    assert (document['schema'], document['schema_version']) == ('tf_cnn_benchmarks.prediction', 1)
    return list(document['rows'])


def refused(capsys: pytest.CaptureFixture[str], *argv: str, command: str = 'predict') -> str:
    """The one line with which the subcommand refuses."""
    assert tf_cnn_benchmarks.main([command, *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    check_line(err)
    return str(err)


def write_rows(path: Path, **changes: Any) -> str:
    row: dict[str, Any] = {
        'exchange': 'collective',
        'dtype': 'float32',
        'hosts': 2,
        'workers': 2,
        'devices': 1,
        'servers': 0,
        'tensors': 1,
        **changes,
    }
    sizes = [1 << 16, 1 << 20, 1 << 24]
    write_links([LinkRow(**row, bytes=size, largest=size, seconds=size / 12e6 + 1e-4) for size in sizes], path)
    return str(path)


def test_every_mode_is_predicted_for_each_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows_of(capsys, FROM, NETWORK, '--workers=2,4')
    asked = {(row['variable_update'], row['num_workers'], row['num_hosts']) for row in found}
    modes = ('parameter_server', 'distributed_replicated', 'collective_all_reduce', 'distributed_all_reduce')
    assert asked == {(mode, workers, workers) for mode in modes for workers in (2, 4)}
    for row in found:
        assert 0 < row['low'] < row['images_per_second'] < row['high']
        assert sum(row['terms'].values()) == pytest.approx(row['step_seconds'])
        images = 32 * row['num_workers']
        assert row['images_per_second'] == pytest.approx(images / row['step_seconds'])
        assert row['efficiency'] == pytest.approx(row['images_per_second'] / 100 / row['num_workers'], rel=0.02)


def test_the_table_names_limits_and_what_it_starts_from(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, FROM, NETWORK, '--workers=2')
    assert 'parameter_server' in text
    assert 'network' in text
    assert '95 % interval' in text
    assert 'alone.json' in text
    assert 'data sheet' in text


@pytest.mark.parametrize('form', ['markdown', 'csv'])
def test_other_formats_have_a_row_for_each_cluster(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, FROM, NETWORK, '--variable_update=collective_all_reduce', f'--format={form}')
    assert len([line for line in text.splitlines() if 'collective_all_reduce' in line]) == 3


def test_links_that_were_measured_are_narrower_than_a_data_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(Path('links.json'))
    asked = ('--workers=2', '--variable_update=collective_all_reduce')
    (measured,) = rows_of(capsys, FROM, f'--links={path}', *asked)
    (sheet,) = rows_of(capsys, FROM, '--network=100Mbit', *asked)
    assert measured['high'] / measured['low'] < sheet['high'] / sheet['low']
    # 8.7 MB at 12 MB/s.
    assert measured['terms']['network'] == pytest.approx(0.72, rel=0.3)


def test_target_finds_the_smallest_cluster_of_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    argv = (FROM, '--network=10Gbit', '--target=1000', '--num_ps=1,each')
    found = rows_of(capsys, *argv)
    (collective,) = [row for row in found if row['variable_update'] == 'collective_all_reduce']
    assert collective['images_per_second'] >= 1000
    assert collective['num_workers'] < 15
    assert {row['num_ps'] for row in found if row['variable_update'] == 'parameter_server'} != {0}


def test_target_says_what_cannot_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, FROM, '--network=10Mbit', '--target=1000000')
    assert 'parameter_server, 1 device each, 1 ps: no number of hosts up to 1024 reaches 1e+06' in text


def test_16_bits_send_half(capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(Path('half.json'), flags={'precision': 'bf16'})
    asked = (NETWORK, '--workers=2', '--variable_update=collective_all_reduce')
    (whole,), (half,) = (rows_of(capsys, f'--from={name}.json', *asked) for name in ('alone', 'half'))
    assert half['bytes_per_step'] == whole['bytes_per_step'] / 2


def test_a_result_without_slices_is_predicted_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(Path('whole.json'), flags={'slice_variables': False})
    asked = (NETWORK, '--workers=4', '--num_ps=each', '--variable_update=parameter_server')
    (cut,), (whole,) = (rows_of(capsys, f'--from={name}.json', *asked) for name in ('alone', 'whole'))
    # LeNet's largest variable has 6.4 of its 8.7 MB.
    assert whole['terms']['server_link'] > 1.3 * (cut['terms']['server_link'] + cut['terms']['network'])
    assert whole['bytes_per_step'] == cut['bytes_per_step']


def test_results_of_clusters_are_fitted_to(capsys: pytest.CaptureFixture[str]) -> None:
    document = sample_document(rate=50.0, **PAIR)
    for number, worker in enumerate(document['workers']):
        worker['host'] = f'host{number}'
    Path('runs').mkdir()
    Path('runs/pair.json').write_text(json.dumps(document))
    asked = (FROM, '--workers=2', '--variable_update=collective_all_reduce')
    (found,) = rows_of(capsys, *asked, '--fit=runs')
    assert found['images_per_second'] == pytest.approx(50, rel=0.1)


def test_devices_of_one_host_need_no_network(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = rows_of(capsys, FROM, '--variable_update=replicated', '--workers=1', '--num_gpus=4')
    assert (found['num_hosts'], found['devices_per_worker']) == (1, 4)


def test_compare_shows_a_prediction_beside_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    Path('predicted.json').write_text(run(capsys, FROM, NETWORK, '--workers=2', '--format=json'))
    write_sample(Path('pair.json'), rate=120.0, **PAIR)
    text = run(capsys, 'predicted.json', 'pair.json', command='compare')
    assert 'exchange and waiting' in text
    assert '95 % interval' in text
    found = json.loads(run(capsys, 'predicted.json', 'pair.json', '--format=json', command='compare'))
    by_name = {row['name']: row for row in found['rows']}
    assert by_name['images/sec']['measured'] == pytest.approx(120, rel=0.02)
    assert by_name['step']['measured'] == pytest.approx(64 / 120, rel=0.02)
    rest = by_name['step']['difference']
    assert by_name['exchange and waiting']['difference'] == pytest.approx(rest)
    assert by_name['compute']['measured'] is None
    assert '--trace_file' in text


def test_compare_shows_how_long_a_traced_cluster_computes(capsys: pytest.CaptureFixture[str]) -> None:
    Path('predicted.json').write_text(run(capsys, FROM, NETWORK, '--workers=2', '--format=json'))
    document = sample_document(rate=120.0, **PAIR)
    document['compute']['computing_seconds'] = 16 / 120
    Path('pair.json').write_text(json.dumps(document))
    found = json.loads(run(capsys, 'predicted.json', 'pair.json', '--format=json', command='compare'))
    by_name = {row['name']: row for row in found['rows']}
    compute, waiting = by_name['compute'], by_name['exchange and waiting']
    assert compute['measured'] == pytest.approx(16 / 120, rel=0.02)
    assert waiting['measured'] == pytest.approx(48 / 120, rel=0.02)
    differences = compute['difference'] + waiting['difference']
    assert differences == pytest.approx(by_name['step']['difference'])
    assert '--trace_file' not in run(capsys, 'predicted.json', 'pair.json', command='compare')


def test_compare_refuses_a_prediction_of_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    Path('predicted.json').write_text(run(capsys, FROM, NETWORK, '--workers=2', '--format=json'))
    others: dict[str, dict[str, Any]] = {
        'model': {'flags': {**PAIR['flags'], 'model': 'alexnet'}},
        '4*1': {'cluster': {'num_workers': 4}},
        'batch': {'flags': {**PAIR['flags'], 'batch_size': 64}},
    }
    for name, changes in others.items():
        write_sample(Path('other.json'), **(PAIR | changes))
        assert name in refused(capsys, 'predicted.json', 'other.json', command='compare')
    assert 'predicted.json' in refused(capsys, 'predicted.json', command='compare')
    Path('cut.json').write_text(Path('predicted.json').read_text()[:-100])
    assert 'damaged' in refused(capsys, 'cut.json', 'other.json', command='compare')


@pytest.mark.parametrize(
    ('argv', 'named'),
    [
        ([], '--from'),
        ([FROM], '--network=25Gbit'),
        ([FROM, '--target=100'], '--network=25Gbit'),
        ([FROM, '--network=0Gbit'], '--network=0Gbit'),
        ([FROM, '--network=25'], '--network=25'),
        ([FROM, '--network=25 parsec'], 'parsec'),
        ([FROM, NETWORK, '--links=links.json'], 'clashes'),
        ([FROM, '--hosts=1', '--latency_us=5'], '--network'),
        ([FROM, NETWORK, '--latency_us=-1'], '--latency_us=-1'),
        ([FROM, '--links=none.json'], 'none.json'),
        ([FROM, NETWORK, '--workers=0'], '--workers=0'),
        ([FROM, NETWORK, '--workers=two'], '--workers=two'),
        ([FROM, NETWORK, '--workers=99999999'], '--workers=99999999'),
        ([FROM, NETWORK, '--workers='], '--workers='),
        ([FROM, NETWORK, '--num_ps=0'], '--num_ps=0'),
        ([FROM, NETWORK, '--variable_update=paramter_server'], 'parameter_server'),
        ([FROM, NETWORK, '--variable_update=replicated'], 'one process'),
        ([FROM, NETWORK, '--target=0'], '--target=0'),
        ([FROM, NETWORK, f'--workers={",".join(map(str, range(1, 400)))}'], '1000'),
        ([FROM, '--fit=.'], '--fit'),
        ([FROM, '--fit=none'], 'none'),
        (['--from=none.json', NETWORK], 'none.json'),
        (['--from=.', NETWORK], 'folder'),
        (['--from=cluster.json', NETWORK], 'cluster'),
        (['--from=forward.json', NETWORK], 'training'),
        (['--from=failed.json', NETWORK], 'failed'),
        (['--from=unknown.json', NETWORK], 'resnet51'),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sample(Path('cluster.json'), cluster={'num_workers': 2, 'num_ps': 1})
    write_sample(Path('forward.json'), run={'role': 'forward-only'})
    write_sample(Path('unknown.json'), flags={'model': 'resnet51'})
    Path('failed.json').write_text(json.dumps(sample_failure()))
    if '--fit=.' in argv:
        for path in Path().glob('*.json'):
            if path.name != 'alone.json':
                path.unlink()
    assert named in refused(capsys, *argv)


def test_links_that_do_not_fit_the_result_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(Path('links.json'), model='alexnet')
    assert 'alexnet' in refused(capsys, FROM, f'--links={path}')
    path = write_rows(Path('links.json'), dtype='float16')
    assert 'float16' in refused(capsys, FROM, f'--links={path}')
    write_links([], path)
    assert 'no rows' in refused(capsys, FROM, f'--links={path}')
