"""What a worker that replaces its program hands on to the new one, and what does not come from it."""

import os
from pathlib import Path

import pytest

from cluster.cluster_worker import _hand_on, _read_inherited
from tests.support.outputs import refused

pytestmark = pytest.mark.graph

VARIABLE = 'TF_CNN_BENCHMARKS_INHERITED'


def test_a_worker_reads_what_it_handed_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    _hand_on({'end': 7})
    assert _read_inherited()['end'] == 7
    assert _read_inherited() == {}


@pytest.mark.parametrize('content', [None, '', '[1]', '{"end": 7}', '{"pid": 1}'])
def test_what_somebody_else_set_is_refused_and_stays_open(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'file').write_text(content or '')
    with (tmp_path / 'file').open() as file:
        for value in ['', 'x', '-1', '99999', '9' * 30] if content is None else [str(file.fileno())]:
            monkeypatch.setenv(VARIABLE, value)
            with refused(f'{VARIABLE}={value}'):
                _read_inherited()
        os.fstat(file.fileno())
