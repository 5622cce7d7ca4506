"""Programs that import the Python modules of the original run unchanged."""

import json

import pytest

from benchmark_cnn import BenchmarkCNN, make_params
from tests.support.outputs import read_output, refused
from tests.support.programs import ROOT, run_in_fork

pytestmark = [pytest.mark.graph, pytest.mark.long]

# The calls of a service that measures the models of a catalogue.
CALLER = """
import os, sys

os.chdir(sys.argv[1])
flags = {'model': 'lenet', 'batch_size': 4, 'num_batches': 6, 'num_gpus': 2, 'device': 'cpu'}
logs = {'benchmark_log_dir': 'logs', 'benchmark_test_id': 'lenet-2'}
evaluation = {'eval_during_training_every_n_steps': 6, 'num_eval_batches': 1}
params = benchmark_cnn.make_params(**flags, **logs, **evaluation, num_warmup_batches=1)
params = benchmark_cnn.setup(params)
bench = benchmark_cnn.BenchmarkCNN(params)
version = cnn_util.tensorflow_version_tuple()
log_fn('TensorFlow:  %i.%i' % (version[0], version[1]))
bench.print_info()
statistics = bench.run()
with open('statistics.txt', 'w') as file:
    for key in statistics.keys():
        assert statistics[key] == statistics.get(key)
        file.write('%s %r\\n' % (key, statistics[key]))
assert 'images_per_sec' in statistics and 'no_such_key' not in statistics
"""
KEYS = (
    'num_workers num_steps average_wall_time images_per_sec last_average_loss top_1_accuracy '
    'top_5_accuracy'
)


@pytest.mark.parametrize(
    'imports',
    [
        'import benchmark_cnn, cnn_util\nfrom cnn_util import log_fn\n',
        'from tf_cnn_benchmarks import benchmark_cnn, cnn_util\nlog_fn = cnn_util.log_fn\n',
    ],
)
def test_a_caller_of_the_originals_modules_gets_its_lines_numbers_and_logs(imports, tmp_path):
    output = read_output(
        run_in_fork(imports + CALLER, tmp_path, str(tmp_path), PYTHONPATH=str(ROOT))
    )
    assert output.banner['Batch size'] == ['8 global', '4 per device']
    assert [number for number, *_ in output.steps] == [1, 6]
    lines = (tmp_path / 'statistics.txt').read_text().splitlines()
    values = {key: float(value) for key, value in map(str.split, lines)}
    assert [*values] == KEYS.split()
    assert (values['num_workers'], values['num_steps']) == (1, 6)
    assert f'{values["images_per_sec"]:.2f}' == output.total
    assert values['images_per_sec'] == pytest.approx(8 / values['average_wall_time'])
    assert values['last_average_loss'] == pytest.approx(output.steps[-1][2], abs=1e-3)
    logs = tmp_path / 'logs'
    assert json.loads((logs / 'benchmark_run.log').read_text())['test_id'] == 'lenet-2'
    metrics = map(json.loads, (logs / 'metric.log').read_text().splitlines())
    assert {'current_examples_per_sec', 'average_examples_per_sec', 'eval_top_1_accuracy'} <= {
        metric['name'] for metric in metrics
    }


def test_print_info_needs_setup():
    with refused('print_info', 'setup(params)'):
        BenchmarkCNN(make_params(model='lenet', device='cpu')).print_info()
