"""The script that judges `predict` on published throughputs: its protocols, its errors and what it refuses."""

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import published
from errors import UsageError
from scaling.terms import Exchange

pytestmark = pytest.mark.unit

HEAD = 'source,hw,net_or_mode,data,model,batch_per_gpu,num_ps,gpus,images_per_sec,gpu,precision,xla,hosts'
MACHINE = '8xExample'


def line(
    model: str = 'resnet50', gpus: int = 1, rate: float = 100.0, mode: str = 'replicated/nccl', **cells: str
) -> str:
    found = {'source': 'x', 'hw': MACHINE, 'data': 'synthetic', 'precision': 'fp32'} | cells
    found |= {
        'net_or_mode': mode,
        'model': model,
        'batch_per_gpu': '64',
        'gpus': str(gpus),
        'images_per_sec': str(rate),
    }
    return ','.join(found.get(name, '') for name in HEAD.split(','))


def table(folder: Path, *lines: str) -> Path:
    path = folder / 'rows.csv'
    path.write_text('\n'.join([HEAD, *lines]) + '\n')
    return path


def series(model: str, one: float, efficiency: float, **cells: str) -> list[str]:
    """Rows of 1 to 8 GPUs, whose efficiency falls by the same factor with each doubling."""
    return [line(model, gpus, one * gpus * efficiency ** math.log2(gpus), **cells) for gpus in (1, 2, 4, 8)]


def test_larger_predicts_the_rows_above_half(tmp_path: Path) -> None:
    rows = published.read_rows(table(tmp_path, *series('resnet50', 100, 0.97)))
    (task,) = published.tasks_of_larger(rows)
    assert [row.gpus for row in task.known] == [1, 2, 4]
    assert [row.gpus for row in task.unknown] == [8]
    (found,) = published.judge([task])
    assert found.error < 5
    assert found.low < found.row.images_per_second < found.high
    assert found.yardsticks['falling on'] == pytest.approx(found.row.images_per_second)
    assert found.yardsticks['0.95 n'] == pytest.approx(760)


def test_rules_compare_rows_of_one_number_of_parameter_servers(tmp_path: Path) -> None:
    def rows(servers: dict[int, str]) -> list[str]:
        return [line(gpus=n, rate=90.0 * n, mode='parameter_server', num_ps=ps) for n, ps in servers.items()]

    def rules(lines: list[str]) -> dict[str, float]:
        (task,) = published.tasks_of_larger(published.read_rows(table(tmp_path, *lines)))
        (found,) = published.judge([task])
        return dict(found.yardsticks)

    assert rules(rows({1: '1', 2: '1', 4: '1'})) == {
        '0.95 n': pytest.approx(0.95 * 360),
        'falling on': pytest.approx(360),
    }
    # Another number of servers is another configuration; so is one whose throughput on one GPU nobody measured.
    assert rules(rows({1: '1', 2: '2', 4: '4'})) == {}
    assert rules(rows({2: '1', 4: '1', 8: '1'})) == {}
    # One row alone has no efficiency that falls.
    assert [*rules(rows({1: '1', 2: '1'}))] == ['0.95 n']


@pytest.mark.parametrize(('number', 'place'), [(1, 1), (10, 10), (11, 10), (50, 46), (56, 51)])
def test_the_90th_percentile_is_the_first_error_that_more_than_nine_tenths_do_not_exceed(
    number: int, place: int
) -> None:
    assert published.summary_of([*range(number, 0, -1)])['p90'] == place
    assert 10 * place > 9 * number >= 10 * (place - 1)


def test_other_models_predicts_from_one_model_and_single_gpus(tmp_path: Path) -> None:
    lines = [*series('resnet50', 100, 0.97), *series('inception3', 70, 0.98)]
    tasks = published.tasks_of_other_models(published.read_rows(table(tmp_path, *lines)))
    assert len(tasks) == 2
    for task, known in zip(tasks, ('resnet50', 'inception3'), strict=True):
        assert {row.gpus for row in task.known if row.model == known} == {1, 2, 4, 8}
        assert [row.gpus for row in task.known if row.model != known] == [1]
        assert [row.gpus for row in task.unknown] == [2, 4, 8]
    assert all(one.error < 10 for one in published.judge(tasks))


def test_a_series_without_smaller_rows_is_not_predicted(tmp_path: Path) -> None:
    lines = [*series('resnet50', 100, 0.97), line('vgg16', 8, 500)]
    (task,) = published.tasks_of_larger(published.read_rows(table(tmp_path, *lines)))
    assert {row.model for row in task.unknown} == {'resnet50'}
    # ResNet-50 tells nothing about the other model, which has no row with one GPU.
    (task,) = published.tasks_of_other_models(published.read_rows(table(tmp_path, *lines)))
    assert {row.model for row in task.unknown} == {'resnet50'}


@pytest.mark.parametrize(
    ('hw', 'gpus', 'hosts'),
    [
        ('EC2 p2.8xlarge 8xK80/node', 32, 4),
        ('EC2 p2.xlarge 1xK80/node', 32, 32),
        ('EC2 p3.2xlarge 1xV100/node', 4, 4),
        ('DGX-1 8xP100', 8, 1),
        ('GCE n1-standard-32-k80x8', 16, 2),
        ('a cupboard', 16, 1),
    ],
)
def test_hardware_says_how_many_gpus_a_host_has(hw: str, gpus: int, hosts: int, tmp_path: Path) -> None:
    (row,) = published.read_rows(table(tmp_path, line(gpus=gpus, hw=hw)))
    assert row.cluster.hosts == hosts
    (row,) = published.read_rows(table(tmp_path, line(gpus=gpus, hw=hw, hosts='2')))
    assert row.cluster.hosts == 2


@pytest.mark.parametrize(
    ('mode', 'exchange'),
    [
        ('parameter_server/cpu', Exchange.SERVERS),
        ('distributed_replicated', Exchange.SERVERS),
        ('replicated/no_nccl gpu', Exchange.RING),
        ('horovod', Exchange.RING),
        ('independent', Exchange.NONE),
        ('something new', Exchange.RING),
    ],
)
def test_a_mode_says_how_gradients_meet(mode: str, exchange: Exchange, tmp_path: Path) -> None:
    (row,) = published.read_rows(table(tmp_path, line(gpus=8, mode=mode)))
    assert row.cluster.exchange is exchange


def test_an_unknown_model_counts_as_a_typical_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = published.read_rows(table(tmp_path, line('a_network_of_2031')))
    assert row.work.gradients.parameters == 25_000_000
    assert 'a_network_of_2031' in capsys.readouterr().err
    (row,) = published.read_rows(table(tmp_path, line('inception_v3')))
    assert row.work.gradients.parameters > 23_000_000
    assert capsys.readouterr().err == ''


def test_leaving_machines_out_judges_every_row_once(tmp_path: Path) -> None:
    lines = [*series('resnet50', 100, 0.97), *series('resnet50', 100, 0.9, hw='4xOther')]
    tasks = published.tasks_of_larger(published.read_rows(table(tmp_path, *lines)))
    assert len(published.leave_one_out(tasks, 2)) == 2


def test_json_has_all_and_each_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, *series('resnet50', 100, 0.97))
    monkeypatch.setattr(sys, 'argv', ['published.py', str(path), '--protocol=larger', '--json'])
    assert published.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert found['machines'] == {MACHINE: found['all']}
    assert set(found['all']) == {'rows', 'median', 'p90'}
    monkeypatch.setattr(sys, 'argv', ['published.py', str(path), '--all'])
    assert published.main() == 0
    assert 'falling on' in capsys.readouterr().out


@pytest.mark.parametrize('text', ['', 'a,b\n1,2\n', f'{HEAD}\n', f'{HEAD}\n{line(rate=0)}\n', f'{HEAD}\nx,y\n'])
def test_a_table_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / 'rows.csv'
    path.write_text(text)
    with pytest.raises(UsageError, match='rows'):
        published.read_rows(path)
    with pytest.raises(UsageError):
        published.read_rows(tmp_path / 'none.csv')
