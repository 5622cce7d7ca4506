"""The subcommand `predict`: what it predicts from which results, what it prints, and what it
refuses.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from tests.support.outputs import check_line, refused
from tests.support.sample_results import sample_failure, write_sample
from tf_cnn.cli.predict import read_network
from tf_cnn.compare.predict import (
    CROWDING,
    ERRORS,
    Prediction,
    Series,
    link_bytes,
    num_transfers,
    predict,
)

pytestmark = pytest.mark.unit

PARAMETERS = {'lenet': 2_000_000, 'vgg16': 138_000_000, 'resnet50': 25_600_000}


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(
    rate: float,
    shape: str = '1*1',
    model: str = 'resnet50',
    mode: str = 'replicated',
    batch: int = 32,
    **run: Any,
) -> str:
    """Writes a result into the current folder, and returns its name. The rate is that of all
    devices together.
    """
    workers, devices, servers = (
        int(text) for text in shape.replace('+', '*').split('*') + ['0'] * ('+' not in shape)
    )
    name = f'{model}-{mode}-{shape}-{batch}-{run.get("role", "training")}.json'
    write_sample(
        Path(name),
        seconds=[batch * workers * devices / rate] * 3,
        gap=0.0,
        flags={'model': model, 'variable_update': mode, 'num_gpus': devices, 'batch_size': batch},
        cluster={'num_workers': workers, 'num_ps': servers},
        model={'parameters': PARAMETERS[model]},
        run={'device': 'gpu', 'role': 'training'} | run,
    )
    return name


def rows_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    """What the subcommand predicts; it must succeed, and standard error be empty."""
    code = tf_cnn_benchmarks.main(['predict', *argv, '--format=json'])
    out, err = capsys.readouterr()
    assert (code, err) == (0, '')
    document = json.loads(out)
    assert (document['schema'], document['schema_version']) == ('tf_cnn_benchmarks.prediction', 1)
    return list(document['rows'])


def series(
    model: str = 'a', size: float = 100.0, *, seconds: dict[int, float], alone: float | None = 1.0
) -> Series:
    return Series(model, size, 32, True, alone, seconds)


def predicted(own: Series, others: list[Series], devices: int) -> Prediction:
    found = predict(own, others, devices)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ('seconds', 'devices', 'expected'),
    [
        ({1: 1.0, 2: 1.1}, 4, 1.1**2),
        ({1: 1.0, 2: 1.1, 4: 1.32}, 8, 1.32 * 1.2),
        # The last whole doubling counts, not a single further device.
        ({1: 1.0, 4: 1.0, 7: 2.0, 8: 1.1}, 16, 1.21),
        # More devices are never faster, and those that were measured beyond do not count.
        ({1: 1.0, 2: 0.9, 8: 5.0}, 4, 0.9),
        ({2: 1.0, 4: 1.1}, 6, 1.1 ** (1 + math.log2(1.5))),
    ],
)
def test_the_efficiency_falls_on_with_each_doubling(
    seconds: dict[int, float], devices: int, expected: float
) -> None:
    found = predicted(series(seconds=seconds), [], devices)
    assert (found.rule, found.seconds) == ('more devices', pytest.approx(expected))
    number = math.ceil(math.log2(devices / max(count for count in seconds if count < devices)))
    low, high = ERRORS['more devices'][number - 1]
    assert (found.fastest, found.slowest) == pytest.approx(
        (expected / math.exp(high), expected / math.exp(low))
    )


def test_another_model_tells_the_exchange() -> None:
    own = series(seconds={1: 2.0}, alone=2.0)
    large = series('large', 400.0, seconds={1: 1.0, 8: 1.83})
    found = predicted(own, [large], 8)
    assert found.seconds == pytest.approx(2 * CROWDING + 0.8 / 4)
    assert found.fastest < 2 * CROWDING + 0.8 / 4 < found.slowest
    assert 'large' in found.rule
    # The exchange of smaller gradients grows with the square root.
    small = series('small', 25.0, seconds={1: 1.0, 8: 1.83})
    assert predicted(own, [small], 8).seconds == pytest.approx(2 * CROWDING + 0.8 * 2)


def test_the_other_series_is_the_nearest_one_that_was_measured_there() -> None:
    own = series(seconds={1: 1.0})
    others = [
        series('far', 800.0, seconds={8: 2.0}),
        series('elsewhere', 100.0, seconds={1: 1.0, 2: 1.2}),
        replace(series('real', 110.0, seconds={8: 3.0}), is_synthetic=False),
        series('near', 110.0, seconds={8: 2.0}),
        series('no start', 100.0, alone=None, seconds={8: 2.0}),
    ]
    assert predicted(own, others, 8).rule.endswith('near')
    # Only where none was measured there, its own rule extends another; both errors count.
    found = predicted(own, [others[1]], 4)
    assert found.rule.endswith('elsewhere')
    both = ERRORS['another model'][1][1] + ERRORS['more devices'][0][1]
    assert found.seconds == pytest.approx(found.fastest * math.exp(both))
    assert predict(own, [], 8) is None
    assert predict(series(seconds={4: 1.0}, alone=None), others, 8) is None


def test_the_busiest_link_carries_what_the_mode_sends() -> None:
    # Workers, devices of each and servers; a server on each host: each worker reads three quarters
    # from others.
    found = {(1, 1, 0): 0, (1, 4, 0): 150, (2, 8, 0): 100, (4, 1, 0): 150, (1, 4, 1): 150}
    found |= {(4, 1, 1): 300, (4, 1, 2): 150, (4, 1, 8): 75}
    for (workers, devices, servers), expected in found.items():
        assert link_bytes(100.0, workers, devices, servers) == expected
        assert num_transfers(workers, servers) == (2 if workers > 1 and servers else 1)


def test_results_on_several_devices_are_measured_or_extended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [write(100.0), write(190.0, '1*2'), write(50.0, model='vgg16')]
    found = {(row['model'], row['shape']): row for row in rows_of(capsys, *names, '--num_gpus=2,4')}
    assert set(found) == {
        (model, shape) for model in ('resnet50', 'vgg16') for shape in ('1*2', '1*4')
    }
    measured = found['resnet50', '1*2']
    assert (measured['rule'], measured['low'], measured['high']) == ('measured', None, None)
    assert measured['images_per_second'] == pytest.approx(190)
    more = found['resnet50', '1*4']
    assert more['images_per_second'] == pytest.approx(400 * 0.95**2)
    assert more['low'] < more['images_per_second'] < more['high']
    assert {found['vgg16', shape]['rule'] for shape in ('1*2', '1*4')} == {
        'another model: resnet50'
    }
    (row,) = rows_of(capsys, *names, '--num_gpus=2', '--model=vgg16')
    assert row == found['vgg16', '1*2']


def test_clusters_of_one_number_of_servers_are_one_series(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(rate: float, shape: str) -> str:
        return write(rate, shape, mode='parameter_server')

    names = [write(100.0), run(180.0, '2*1+1'), run(190.0, '2*1+2'), run(361.0, '4*1+2')]
    found = {row['shape']: row for row in rows_of(capsys, *names, '--workers=4,8')}
    assert {shape: row['rule'] for shape, row in found.items()} == {
        '4*1+1': 'more devices',
        '4*1+2': 'measured',
        '8*1+1': 'more devices',
        '8*1+2': 'more devices',
    }
    assert found['4*1+1']['images_per_second'] == pytest.approx(400 * 0.9**2)
    assert found['8*1+2']['images_per_second'] == pytest.approx(800 * 0.95**3)


def test_a_link_alone_gives_a_band_without_a_middle(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows_of(capsys, write(100.0), '--network=1Gbit', '--workers=2')
    modes = {
        'parameter_server',
        'distributed_replicated',
        'collective_all_reduce',
        'distributed_all_reduce',
    }
    assert {row['variable_update'] for row in found} == modes
    compute, exchange = 0.32, 4 * PARAMETERS['resnet50'] / read_network('1Gbit')
    for row in found:
        times = 2 if '+' in row['shape'] else 1
        assert row['images_per_second'] is None
        assert row['low'] == pytest.approx(64 / (compute + times * exchange))
        assert row['high'] == pytest.approx(64 / max(compute, exchange))
    # The devices of a CPU are the same cores.
    name = write(100.0, device='cpu')
    row = rows_of(capsys, name, '--network=1Tbit', '--workers=2', '--num_gpus=2')[0]
    assert row['high'] == pytest.approx(200)


def test_exchanges_alone_are_a_link_for_their_mode(capsys: pytest.CaptureFixture[str]) -> None:
    # lenet's 8 MB meet in 0.2 s, so resnet50's meet in 12.8 times that; around a ring of four 1.5
    # times as much.
    alone = write(100.0)
    role = {'role': 'exchange-only', 'precision': 'fp32'}
    exchange = write(2 / 0.2, '2*1', 'lenet', 'collective_all_reduce', batch=1, **role)
    (two, four) = rows_of(capsys, alone, exchange, '--workers=2,4')
    assert (two['rule'], two['variable_update']) == (
        'band: --exchange_only',
        'collective_all_reduce',
    )
    assert two['low'] == pytest.approx(64 / (0.32 + 2.56))
    assert two['high'] == pytest.approx(64 / 2.56)
    assert four['low'] == pytest.approx(128 / (0.32 + 1.5 * 2.56))
    # Each rule takes the place of the next: results on several devices are better than a link.
    names = [alone, exchange, write(190.0, '2*1', mode='collective_all_reduce'), '--network=1Gbit']
    rules = {
        (row['variable_update'], row['shape']): row['rule']
        for row in rows_of(capsys, *names, '--workers=4')
    }
    assert rules['collective_all_reduce', '4*1'] == 'more devices'
    assert rules['parameter_server', '4*1+1'] == 'band: --network'


def share_a_host(name: str, host: str = 'laptop') -> str:
    """Lets all workers of a result run on one host."""
    document = json.loads(Path(name).read_text())
    document['workers'] = [{**worker, 'host': host} for worker in document['workers']]
    Path(name).write_text(json.dumps(document))
    return name


@pytest.mark.parametrize('role', ['training', 'exchange-only'])
@pytest.mark.parametrize('mode', ['parameter_server', 'collective_all_reduce'])
def test_workers_that_share_a_host_do_not_show_what_more_hosts_reach(
    mode: str, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = '+1' * (mode == 'parameter_server')
    shared = [
        share_a_host(write(11.0, f'{number}*1{servers}', mode=mode, role=role)) for number in (2, 4)
    ]
    assert tf_cnn_benchmarks.main(['predict', write(10.0), *shared, '--workers=8']) == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert 'say nothing about these devices' in error
    for line, name, number in zip(warnings, shared, (2, 4), strict=True):
        assert f'{name}: its {number} workers ran on 1 host (laptop)' in line
    # A link still gives a band.
    assert (
        tf_cnn_benchmarks.main(['predict', write(10.0), *shared, '--workers=8', '--network=10Gbit'])
        == 0
    )
    assert 'band: --network' in capsys.readouterr().out


def test_workers_of_a_controller_are_told_apart_by_their_addresses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = write(11.0, '2*1', mode='distributed_all_reduce')
    for addresses, is_shared in (('a:5000,b:5000', False), ('127.0.0.1:5000,127.0.0.1:5001', True)):
        document = json.loads(Path(name).read_text())
        document['workers'] = document['workers'][:1]
        document['command']['flags']['worker_hosts'] = addresses
        Path(name).write_text(json.dumps(document))
        assert (
            tf_cnn_benchmarks.main(['predict', write(10.0), name, '--workers=4', '--network=1Gbit'])
            == 0
        )
        out, err = capsys.readouterr()
        assert ('more devices' in out, '1 host (127.0.0.1)' in err) == (not is_shared, is_shared)


def test_the_table_says_what_is_not_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    write(100.0), write(190.0, '1*2'), write(90.0, model='vgg16', precision='fp16')
    Path('failed.json').write_text(json.dumps(sample_failure()))
    Path('sync.json').write_text(
        Path(write(100.0, '2*1+1', mode='parameter_server', sync=False)).read_text()
    )
    assert tf_cnn_benchmarks.main(['predict', '.', '--num_gpus=4']) == 0
    out, err = capsys.readouterr()
    assert 'more devices' in out
    assert next(line for line in out.splitlines() if 'vgg16' in line and '1*4' in line).endswith(
        'too little is known'
    )
    assert 'failed.json' in err
    assert 'parameter_server-2*1+1' in err
    for form in ('markdown', 'csv'):
        assert tf_cnn_benchmarks.main(['predict', '.', '--num_gpus=4', f'--format={form}']) == 0
        assert '1*4' in capsys.readouterr().out


def test_a_network_is_read_as_data_sheets_write_it() -> None:
    for text, bits in (('25Gbit', 25e9), ('100 Mbit/s', 1e8), ('1gbps', 1e9), ('1.5Tbit', 1.5e12)):
        assert read_network(text) == pytest.approx(bits / 8 * 0.94, rel=0.002)
    with refused('--network=25GB'):
        read_network('25GB')


def test_runs_under_another_limit_are_neither_pooled_nor_a_series(
    capsys: pytest.CaptureFixture[str],
) -> None:
    free, two = write(10.0), write(19.0, '1*2')
    document = json.loads(Path(free).read_text())
    document |= {'id': 'limited', 'machine': {**document['machine'], 'cgroup_cpus': 1.0}}
    document['throughput'] |= {'images_per_second': 2.0}
    Path('limited.json').write_text(json.dumps(document))
    assert (
        tf_cnn_benchmarks.main(['predict', free, 'limited.json', '--num_gpus=1', '--format=json'])
        == 0
    )
    measured = [row for row in json.loads(capsys.readouterr().out)['rows'] if row['shape'] == '1*1']
    assert {round(row['images_per_second']) for row in measured} == {10, 2}
    assert tf_cnn_benchmarks.main(['predict', free, two, 'limited.json', '--num_gpus=4']) == 0
    out = capsys.readouterr().out
    check_line(
        next(line for line in out.splitlines() if 'not combined' in line),
        'resnet50',
        'cgroup_cpus none and 1.0',
    )
    assert out.count('more devices') == 1
    # A series of runs under different limits predicts nothing.
    assert tf_cnn_benchmarks.main(['predict', two, 'limited.json', '--num_gpus=4']) == 2
