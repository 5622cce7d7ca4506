"""docs/results_elsewhere.md: dashboard.py turns the JSON of `compare` into files of dashboards;
trackers get the runs of a folder.
"""

import io
import json
import re
import sys
from itertools import product
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.support.documents import python_block
from tests.support.programs import ROOT, run_main
from tests.support.sample_results import sample_failure, write_document, write_sample

pytestmark = pytest.mark.unit

# The fields of a metric of bencher.dev ("Bencher Metric Format (BMF) JSON Schema": benchmark ->
# measure -> metric), and of an entry of benchmark-action/github-action-benchmark 1.9
# (BenchmarkResult in src/extract.ts).
METRIC, ENTRY = {'value', 'lower_value', 'upper_value'}, {'name', 'unit', 'value', 'range', 'extra'}


@pytest.mark.parametrize('num_runs', [3, 1])
def test_the_dashboards_get_the_rate_of_each_setting(num_runs, tmp_path, monkeypatch):
    for side, model, run in product(('before', 'after'), ('lenet', 'vgg16'), range(num_runs)):
        rate = {'before': 100, 'after': 80}[side]
        path = tmp_path / side / f'{model}.{run}.json'
        write_sample(path, rate=rate, seed=run, flags={'model': model})
    write_document(tmp_path / 'after' / 'failed.json', sample_failure())
    write_sample(tmp_path / 'before' / 'only.json', flags={'model': 'alexnet'})
    out, _ = run_main('compare', tmp_path / 'before', tmp_path / 'after', '--format=json')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'stdin', io.StringIO(out))
    exec(compile(python_block('results_elsewhere.md', 'dashboard.py'), 'dashboard.py', 'exec'), {})
    bencher = json.loads(Path('bencher.json').read_text())
    action = json.loads(Path('benchmarks.json').read_text())
    rows = {row['label']: row for row in json.loads(out)['rows'] if row['ratio'] and row['files']}
    assert len(rows) == 2
    assert {*bencher} == {entry['name'] for entry in action} == {*rows}
    for entry in action:
        row, metric = rows[entry['name']], bencher[entry['name']]['throughput']
        assert {'value'} <= {*metric} <= METRIC
        assert {'name', 'unit', 'value'} <= {*entry} <= ENTRY
        assert entry['value'] == metric['value'] == pytest.approx(80, rel=0.05)
        interval = [metric.get('lower_value'), metric.get('upper_value')]
        assert interval == (row['interval'] or [None, None])
        assert ('lower_value' in metric) == ('range' in entry) == (num_runs > 1)


@pytest.mark.parametrize(
    ('module', 'start', 'name'), [('mlflow', 'start_run', 'run_name'), ('wandb', 'init', 'name')]
)
def test_a_tracker_gets_the_runs_that_ended_well(module, start, name, tmp_path, monkeypatch):
    write_sample(tmp_path / 'results' / 'good.json')
    write_document(tmp_path / 'results' / 'failed.json', sample_failure())
    page = (ROOT / 'docs' / 'results_elsewhere.md').read_text()
    examples = re.findall(r'^```python\n(.*?)^```$', page, flags=re.M | re.S)
    [example] = [text for text in examples if f'import {module}\n' in text]
    tracker = MagicMock()
    monkeypatch.setitem(sys.modules, module, tracker)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, module, 'exec'), {})
    [call] = getattr(tracker, start).call_args_list
    assert call.kwargs[name] == 'good'
