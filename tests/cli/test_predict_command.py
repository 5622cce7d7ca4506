"""The subcommand `predict`: what it predicts from which results, what it prints, and what it
refuses.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import check_line, refused
from tests.support.programs import run_main
from tests.support.sample_results import sample_document, sample_failure, write_document
from tf_cnn.compare.predict import (
    CROWDING,
    ERRORS,
    Prediction,
    Series,
    link_bytes,
    num_transfers,
    predict,
    read_network,
)

pytestmark = pytest.mark.unit


def series(
    model: str = 'a', size: float = 100.0, *, seconds: dict[int, float], alone: float | None = 1.0
) -> Series:
    return Series(model, size, 32, True, alone, seconds)


def predicted(own: Series, others: list[Series], devices: int) -> Prediction:
    found = predict(own, others, devices)
    assert found is not None
    return found


def test_the_efficiency_falls_on_with_each_doubling():
    for seconds, devices, expected in (
        ({1: 1.0, 2: 1.1}, 4, 1.1**2),
        ({1: 1.0, 2: 1.1, 4: 1.32}, 8, 1.32 * 1.2),
        # The last whole doubling counts, not a single further device.
        ({1: 1.0, 4: 1.0, 7: 2.0, 8: 1.1}, 16, 1.21),
        # More devices are never faster, and those that were measured beyond do not count.
        ({1: 1.0, 2: 0.9, 8: 5.0}, 4, 0.9),
        ({2: 1.0, 4: 1.1}, 6, 1.1 ** (1 + math.log2(1.5))),
    ):
        found = predicted(series(seconds=seconds), [], devices)
        assert (found.rule, found.seconds) == ('more devices', pytest.approx(expected))
        measured = max(count for count in seconds if count < devices)
        low, high = ERRORS['more devices'][math.ceil(math.log2(devices / measured)) - 1]
        interval = (expected / math.exp(high), expected / math.exp(low))
        assert (found.fastest, found.slowest) == pytest.approx(interval)


def test_another_model_shows_the_seconds_of_the_exchange():
    own = series(seconds={1: 2.0}, alone=2.0)
    large = series('large', 400.0, seconds={1: 1.0, 8: 1.83})
    found = predicted(own, [large], 8)
    assert found.seconds == pytest.approx(2 * CROWDING + 0.8 / 4)
    assert found.fastest < 2 * CROWDING + 0.8 / 4 < found.slowest
    assert 'large' in found.rule
    # The exchange of smaller gradients grows with the square root.
    small = series('small', 25.0, seconds={1: 1.0, 8: 1.83})
    assert predicted(own, [small], 8).seconds == pytest.approx(2 * CROWDING + 0.8 * 2)


def test_the_other_series_is_the_nearest_one_that_was_measured_there():
    others = [
        series('far', 800.0, seconds={8: 2.0}),
        series('elsewhere', 100.0, seconds={1: 1.0, 2: 1.2}),
        replace(series('real', 110.0, seconds={8: 3.0}), is_synthetic=False),
        series('near', 110.0, seconds={8: 2.0}),
        series('no start', 100.0, alone=None, seconds={8: 2.0}),
    ]
    assert predicted(series(seconds={1: 1.0}), others, 8).rule.endswith('near')
    assert predict(series(seconds={4: 1.0}, alone=None), others, 8) is None


def test_where_no_other_series_was_measured_one_is_extended_and_both_errors_count():
    own, elsewhere = series(seconds={1: 1.0}), series('elsewhere', seconds={1: 1.0, 2: 1.2})
    found = predicted(own, [elsewhere], 4)
    assert found.rule.endswith('elsewhere')
    both = ERRORS['another model'][1][1] + ERRORS['more devices'][0][1]
    assert found.seconds == pytest.approx(found.fastest * math.exp(both))
    assert predict(own, [], 8) is None


def test_the_busiest_link_carries_what_the_mode_sends():
    for workers, devices, servers, num_bytes in (
        (1, 1, 0, 0),
        (1, 4, 0, 150),
        (2, 8, 0, 100),
        (4, 1, 0, 150),
        (1, 4, 1, 150),
        (4, 1, 1, 300),
        (4, 1, 2, 150),
        # A server on each host: each worker reads three quarters from others.
        (4, 1, 8, 75),
    ):
        assert link_bytes(100.0, workers, devices, servers) == num_bytes
        assert num_transfers(workers, servers) == (2 if workers > 1 and servers else 1)


# ---- the command ---------------------------------------------------------------------------------

PARAMETERS = {'lenet': 2_000_000, 'vgg16': 138_000_000, 'resnet50': 25_600_000}


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def a_result(
    rate: float,
    shape: str = '1*1',
    model: str = 'resnet50',
    mode: str = 'replicated',
    batch: int = 32,
    **run: Any,
) -> dict[str, Any]:
    """The result of a run with this images/sec of all devices together."""
    workers, devices, servers = map(int, re.split(r'[*+]', shape if '+' in shape else f'{shape}+0'))
    return sample_document(
        rate=rate,
        noise=0,
        flags={'model': model, 'variable_update': mode, 'num_gpus': devices, 'batch_size': batch},
        cluster={'num_workers': workers, 'num_ps': servers},
        model={'parameters': PARAMETERS[model]},
        run={'device': 'gpu', 'role': 'training', **run},
    )


def write(*documents: dict[str, Any]) -> list[str]:
    """Writes results into the current folder, and returns their names."""
    return [str(write_document(f'{document["id"]}.json', document)) for document in documents]


def rows_of(*argv: str) -> list[dict[str, Any]]:
    """What the subcommand predicts; it must succeed, and standard error be empty."""
    out, err = run_main('predict', *argv, '--format=json')
    assert err == ''
    document = json.loads(out)
    assert (document['schema'], document['schema_version']) == ('tf_cnn_benchmarks.prediction', 1)
    return list(document['rows'])


def test_results_on_several_devices_are_measured_or_extended():
    names = write(a_result(100), a_result(190, '1*2'), a_result(50, model='vgg16'))
    rows = {(row['model'], row['shape']): row for row in rows_of(*names, '--num_gpus=2,4')}
    assert {key: row['rule'] for key, row in rows.items()} == {
        ('resnet50', '1*2'): 'measured',
        ('resnet50', '1*4'): 'more devices',
        ('vgg16', '1*2'): 'another model: resnet50',
        ('vgg16', '1*4'): 'another model: resnet50',
    }
    measured, more = rows['resnet50', '1*2'], rows['resnet50', '1*4']
    assert (measured['low'], measured['high']) == (None, None)
    assert measured['images_per_second'] == pytest.approx(190)
    assert more['images_per_second'] == pytest.approx(400 * 0.95**2)
    assert more['low'] < more['images_per_second'] < more['high']
    assert rows_of(*names, '--num_gpus=2', '--model=vgg16') == [rows['vgg16', '1*2']]


def test_clusters_of_one_number_of_servers_are_one_series():
    shapes = {'2*1+1': 180, '2*1+2': 190, '4*1+2': 361}
    servers = [a_result(rate, shape, mode='parameter_server') for shape, rate in shapes.items()]
    names = write(a_result(100), *servers)
    rows = {row['shape']: row for row in rows_of(*names, '--workers=4,8')}
    assert {shape: row['rule'] for shape, row in rows.items()} == {
        '4*1+1': 'more devices',
        '4*1+2': 'measured',
        '8*1+1': 'more devices',
        '8*1+2': 'more devices',
    }
    assert rows['4*1+1']['images_per_second'] == pytest.approx(400 * 0.9**2)
    assert rows['8*1+2']['images_per_second'] == pytest.approx(800 * 0.95**3)


def test_gpus_of_one_process_say_nothing_about_several_processes():
    mode = 'distributed_replicated'
    names = write(
        *(a_result(rate, shape, mode=mode) for rate, shape in ((100, '1*1'), (190, '1*2')))
    )
    _, error = run_main('predict', *names, '--workers=2', '--num_gpus=2', code=2)
    check_line(error, 'the results say nothing about these devices')


def test_a_link_alone_gives_a_band_without_a_middle():
    rows = rows_of(*write(a_result(100)), '--network=1Gbit', '--workers=2')
    assert {row['variable_update'] for row in rows} == {
        'parameter_server',
        'distributed_replicated',
        'collective_all_reduce',
        'distributed_all_reduce',
    }
    compute, exchange = 0.32, 4 * PARAMETERS['resnet50'] / read_network('1Gbit')
    for row in rows:
        times = 2 if '+' in row['shape'] else 1
        assert row['images_per_second'] is None
        assert row['low'] == pytest.approx(64 / (compute + times * exchange))
        assert row['high'] == pytest.approx(64 / max(compute, exchange))


def test_the_devices_of_a_cpu_are_the_same_cores():
    names = write(a_result(100, device='cpu'))
    row = rows_of(*names, '--network=1Tbit', '--workers=2', '--num_gpus=2')[0]
    assert row['high'] == pytest.approx(200)


# lenet's 8 MB meet in 0.2 s.
EXCHANGE: dict[str, Any] = {'role': 'exchange-only', 'precision': 'fp32', 'batch': 1}


def test_exchanges_alone_are_a_link_for_their_mode():
    exchange = a_result(2 / 0.2, '2*1', 'lenet', 'collective_all_reduce', **EXCHANGE)
    two, four = rows_of(*write(a_result(100), exchange), '--workers=2,4')
    assert two['rule'] == 'band: --exchange_only'
    assert two['variable_update'] == 'collective_all_reduce'
    # resnet50's bytes meet in 12.8 times that; around a ring of four 1.5 times as much.
    assert two['low'] == pytest.approx(64 / (0.32 + 2.56))
    assert two['high'] == pytest.approx(64 / 2.56)
    assert four['low'] == pytest.approx(128 / (0.32 + 1.5 * 2.56))


def test_results_on_several_devices_are_better_than_exchanges_and_these_than_a_link():
    exchange = a_result(2 / 0.2, '2*1', 'lenet', 'collective_all_reduce', **EXCHANGE)
    several = a_result(190, '2*1', mode='collective_all_reduce')
    names = write(a_result(100), exchange, several)
    rows = rows_of(*names, '--network=1Gbit', '--workers=4')
    rules = {(row['variable_update'], row['shape']): row['rule'] for row in rows}
    assert rules['collective_all_reduce', '4*1'] == 'more devices'
    assert rules['parameter_server', '4*1+1'] == 'band: --network'


@pytest.mark.parametrize('role', ['training', 'exchange-only'])
@pytest.mark.parametrize('mode', ['parameter_server', 'collective_all_reduce'])
def test_workers_that_share_a_host_do_not_show_what_more_hosts_reach(mode, role):
    servers = '+1' * (mode == 'parameter_server')
    shared = [a_result(11, f'{number}*1{servers}', mode=mode, role=role) for number in (2, 4)]
    for document in shared:
        for worker in document['workers']:
            worker['host'] = 'laptop'
    alone, two, four = write(a_result(10), *shared)
    _, err = run_main('predict', alone, two, four, '--workers=8', code=2)
    warning_of_two, warning_of_four, error = err.splitlines()
    assert f'{two}: its 2 workers ran on 1 host (laptop)' in warning_of_two
    assert f'{four}: its 4 workers ran on 1 host (laptop)' in warning_of_four
    assert 'say nothing about these devices' in error
    # A link still gives a band.
    out, _ = run_main('predict', alone, two, four, '--workers=8', '--network=10Gbit')
    assert 'band: --network' in out


def test_workers_of_a_controller_are_told_apart_by_their_addresses():
    document = a_result(11, '2*1', mode='distributed_all_reduce')
    document['workers'] = document['workers'][:1]
    for addresses, is_shared in (('a:5000,b:5000', False), ('127.0.0.1:5000,127.0.0.1:5001', True)):
        document['command']['flags']['worker_hosts'] = addresses
        names = write(a_result(10), document)
        out, err = run_main('predict', *names, '--workers=4', '--network=1Gbit')
        assert ('more devices' in out) == (not is_shared)
        assert ('1 host (127.0.0.1)' in err) == is_shared


def test_every_format_has_the_predictions_and_says_what_was_left_out():
    write(a_result(100), a_result(190, '1*2'))
    write_document('failed.json', sample_failure())
    asynchronous = a_result(100, '2*1+1', mode='parameter_server', sync=False)
    write_document('asynchronous.json', asynchronous)
    for form in ('text', 'markdown', 'csv'):
        out, err = run_main('predict', '.', '--num_gpus=4', f'--format={form}')
        assert 'more devices' in out
        assert 'failed.json' in err
        assert 'asynchronous.json' in err


def test_the_table_says_what_is_not_predicted():
    write(a_result(100), a_result(190, '1*2'), a_result(90, model='vgg16', precision='fp16'))
    out, _ = run_main('predict', '.', '--num_gpus=4')
    (line,) = (line for line in out.splitlines() if 'vgg16' in line and '1*4' in line)
    assert line.endswith('too little is known')


def test_a_network_is_read_as_data_sheets_write_it():
    for text, bits in (('25Gbit', 25e9), ('100 Mbit/s', 1e8), ('1gbps', 1e9), ('1.5Tbit', 1.5e12)):
        assert read_network(text) == pytest.approx(bits / 8 * 0.94, rel=0.002)
    with refused('--network=25GB'):
        read_network('25GB')


def test_runs_under_another_limit_are_neither_pooled_nor_a_series():
    limited = a_result(2)
    limited['machine']['cgroup_cpus'] = 1.0
    free, two, limit = write(a_result(10), a_result(19, '1*2'), limited)
    rows = rows_of(free, limit, '--num_gpus=1')
    assert {round(row['images_per_second']) for row in rows} == {10, 2}
    out, _ = run_main('predict', free, two, limit, '--num_gpus=4')
    (line,) = (line for line in out.splitlines() if 'not combined' in line)
    check_line(line, 'resnet50', 'cgroup_cpus none and 1.0')
    assert out.count('more devices') == 1
    # A series of runs under different limits predicts nothing.
    run_main('predict', two, limit, '--num_gpus=4', code=2)
