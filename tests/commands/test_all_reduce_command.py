"""`all_reduce` measures exchanges here and between two hosts, and writes the links that `predict` reads."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands.all_reduce import main
from scaling.exchanges import link_bandwidth
from scaling.links import read_links
from tests.support.hosts import NEEDED, make_hosts
from tests.support.outputs import refused

ROOT = Path(__file__).resolve().parent.parent.parent
RATE_MBIT = 100.0


@pytest.mark.distributed
@pytest.mark.long
def test_one_process_measures_each_exchange_and_goes_on_where_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output, links = tmp_path / 'out', tmp_path / 'links.json'
    argv = [f'--output={output}', '--sizes=4k,64k', '--exchanges=copies,ring', '--steps=3', f'--links_file={links}']
    assert main([*argv, '--', '--device=cpu']) == 0
    out = capfd.readouterr().out
    assert [row.split()[:3] for row in out.splitlines() if '1*2' in row] == [
        [name, '1*2', size] for name in ('copies', 'ring') for size in ('4096', '65536')
    ]
    found = read_links(str(links)).rows
    assert [(row.exchange, row.bytes, row.devices, row.dtype) for row in found] == [
        (name, size, 2, 'float32') for name in ('copies', 'ring') for size in (4096, 65536)
    ]
    results = sorted((output / 'results').iterdir())
    assert {json.loads(path.read_text())['run']['role'] for path in results} == {'exchange-only'}
    results[0].unlink()
    assert main([*argv, '--resume', '--', '--device=cpu']) == 0
    assert capfd.readouterr().err.count('images/sec') == 1


@pytest.mark.parametrize(
    ('argv', 'named'),
    [
        ('--devices=1', '--devices=1'),
        ('--hosts=a,b --workers=2', '--workers=2'),
        ('--exchanges=pigeons', 'pigeons'),
        ('--sizes=1', '--sizes=1'),
        ('--resume', '--output'),
        ('--hosts=a,a', '--hosts'),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    argv: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(named):
        main([*argv.split(), '--', '--device=cpu'])
    assert not list(tmp_path.iterdir())


@pytest.mark.distributed
@pytest.mark.long
@NEEDED
@pytest.mark.parametrize('exchange', ['collective', 'parameter_servers'])
def test_a_link_of_100_mbit_is_found_between_two_hosts(exchange: str, tmp_path: Path) -> None:
    links = tmp_path / 'links.json'
    words = ['--hosts=node1,node2', '--devices=1', '--sizes=4k,4m', f'--exchanges={exchange}', '--steps=2']
    words += [f'--output={tmp_path / "out"}', f'--links_file={links}', '--', '--device=cpu', '--num_warmup_batches=1']
    with make_hosts(2, rate_mbit=RATE_MBIT, latency_ms=0.2) as network:
        command = network.command(sys.executable, ROOT / 'tf_cnn_benchmarks.py', 'all_reduce', *words)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    assert re.search(rf'{exchange} +2\*1', ended.stdout), ended.stdout
    small, large = read_links(str(links)).rows
    assert (small.hosts, small.workers, small.bytes, large.bytes) == (2, 2, 4096, 4 << 20)
    assert small.seconds < large.seconds
    found = link_bandwidth(large)
    assert found
    assert 0.7 * RATE_MBIT < 8e-6 * found <= RATE_MBIT
