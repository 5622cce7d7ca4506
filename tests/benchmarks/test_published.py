"""The script that judges `predict` on published throughputs: its protocols, its errors and what it refuses."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import published
from comparison import predict
from errors import UsageError

pytestmark = pytest.mark.unit

HEAD = 'source,hw,net_or_mode,data,model,batch_per_gpu,num_ps,gpus,images_per_sec,gpu,precision,xla,hosts'
MACHINE = '8xExample'


def line(
    model: str = 'resnet50', gpus: int = 1, rate: float = 100.0, mode: str = 'replicated/nccl', **cells: str
) -> str:
    found = {'source': 'x', 'hw': MACHINE, 'data': 'synthetic', 'precision': 'fp32'} | cells
    found |= {'net_or_mode': mode, 'model': model, 'batch_per_gpu': '64', 'gpus': str(gpus)}
    found |= {'images_per_sec': str(rate)}
    return ','.join(found.get(name, '') for name in HEAD.split(','))


def table(folder: Path, *lines: str) -> Path:
    path = folder / 'rows.csv'
    path.write_text('\n'.join([HEAD, *lines]) + '\n')
    return path


def series(model: str, one: float, efficiency: float, **cells: str) -> list[str]:
    """Rows of 1 to 8 GPUs, whose efficiency falls by the same factor with each doubling."""
    return [line(model, gpus, one * gpus * efficiency ** math.log2(gpus), **cells) for gpus in (1, 2, 4, 8)]


def test_larger_predicts_the_rows_above_half(tmp_path: Path) -> None:
    # The row of one size alone is known, and not asked.
    rows = published.read_rows(table(tmp_path, *series('resnet50', 100, 0.97), line('vgg16', 8, 500)))
    ((row, known),) = published.larger(rows)
    assert [(one.model, one.gpus) for one in known] == [('resnet50', 1), ('resnet50', 2), ('resnet50', 4), ('vgg16', 8)]
    assert row.gpus == 8
    found = published.answer(row, known)
    assert found.seconds == pytest.approx(row.seconds)
    assert found.fastest < row.seconds < found.slowest


def test_other_models_predicts_from_one_model_and_single_gpus(tmp_path: Path) -> None:
    # Without a row with one GPU, the third model is not asked.
    lines = [*series('resnet50', 100, 0.97), *series('inception3', 70, 0.98), line('vgg16', 8, 500)]
    questions = [*published.other_models(published.read_rows(table(tmp_path, *lines)))]
    assert len(questions) == 2 * 3 + 6
    for row, known in questions:
        assert {one.gpus for one in known if one.model == row.model} == {1}
        if any(one.model != 'vgg16' and one.gpus > 1 for one in known):
            assert published.answer(row, known).seconds == pytest.approx(row.seconds, rel=0.1)


def test_an_unknown_model_counts_as_a_typical_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [*series('a_network_of_2031', 100, 0.97), *series('inception_v3', 70, 0.98)]
    for row, known in published.other_models(published.read_rows(table(tmp_path, *lines))):
        assert published.answer(row, known).seconds == pytest.approx(row.seconds, rel=0.1)
    assert capsys.readouterr().err.count('a_network_of_2031') == 1


def test_the_90th_percentile_is_the_first_error_that_more_than_nine_tenths_do_not_exceed() -> None:
    for number, place in ((1, 1), (10, 10), (11, 10), (50, 46), (56, 51)):
        found = published.summary_of([{'x': float(error)} for error in range(number, 0, -1)], 'x')
        assert found
        assert found['p90'] == place


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the script on a table with these lines and flags."""

    def run(lines: list[str], *flags: str) -> str:
        monkeypatch.setattr(sys, 'argv', ['published.py', str(table(tmp_path, *lines)), *flags])
        assert published.main() == 0
        return capsys.readouterr().out

    return run


def test_json_has_all_and_each_machine_and_the_table_the_yardsticks(printed: Callable[..., str]) -> None:
    lines = [*series('resnet50', 100, 0.9), *series('vgg16', 50, 0.9), *series('vgg16', 50, 0.9, hw='x')]
    found = json.loads(printed(lines, '--protocol=larger', '--json'))
    assert found['all'] == {'rows': 3, 'median': 0.0, 'p90': 0.0}
    assert {name: one['rows'] for name, one in found['machines'].items()} == {MACHINE: 2, 'x': 1}
    # 0.95 n is 0.95 / 0.9 ** 3 of the published rate.
    cells = [cell.strip() for cell in printed(lines).splitlines()[-1].split('|')][2:-1]
    assert cells == ['3', '0.0 / 0.0', '30.3 / 30.3', '0.0 / 0.0', '100%']
    assert predict.MORE_DEVICES in printed(lines, '--quantiles')


def test_leaving_a_machine_out_takes_the_intervals_of_the_others(
    printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [*series('resnet50', 100, 0.97), *series('vgg16', 50, 0.97)]
    # On the other machine one series falls on faster, and one slower.
    other = [*series('resnet50', 100, 0.97, hw='other')[:3], line(gpus=8, rate=200, hw='other')]
    other += [*series('vgg16', 50, 0.7, hw='other')[:3], line('vgg16', 8, 390, hw='other')]
    monkeypatch.setattr(predict, 'ERRORS', predict.ERRORS)
    rows = [row.split('|') for row in printed([*lines, *other], '--leave_one_out').splitlines()[4:]]
    assert {row[1].strip(): row[-2].strip() for row in rows} == {MACHINE: '100%', 'other': '0%', 'all': '50%'}


@pytest.mark.parametrize('text', ['', 'a,b\n1,2\n', f'{HEAD}\n', f'{HEAD}\n{line(rate=0)}\n', f'{HEAD}\nx,y\n'])
def test_a_table_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / 'rows.csv'
    path.write_text(text)
    with pytest.raises(UsageError, match='rows'):
        published.read_rows(path)
    with pytest.raises(UsageError):
        published.read_rows(tmp_path / 'none.csv')
