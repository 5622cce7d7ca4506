"""Standard output is as scripts of users read it in every kind of run, and programs that import the
Python modules of the original run unchanged. distributed/test_modes.py has clusters.
"""

import json
import re
import shlex
from typing import Any

import numpy as np
import pytest

import benchmark_cnn
import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN, make_params
from tests.support.files import quoted
from tests.support.images import write_mnist
from tests.support.outputs import Output, check_line, read_output, refused
from tests.support.programs import ROOT, run_in_fork, run_python

pytestmark = [pytest.mark.graph, pytest.mark.long]


# The calls of a service that measures the models of a catalogue.
CALLER = """
import json, os, sys

os.chdir(sys.argv[1])
flags = {'model': 'lenet', 'batch_size': 4, 'num_batches': 6, 'num_gpus': 2, 'device': 'cpu'}
logs = {'benchmark_log_dir': 'logs', 'benchmark_test_id': 'lenet-2'}
evaluation = {'eval_during_training_every_n_steps': 6, 'num_eval_batches': 1}
params = benchmark_cnn.make_params(**logs, **evaluation, num_warmup_batches=1)
params = params._replace(**{**flags, 'batch_size': 2})
params = benchmark_cnn.setup(params)
params = params._replace(batch_size=2 * params.batch_size)
assert (params.model, params._asdict()['num_gpus']) == ('lenet', 2)
bench = benchmark_cnn.BenchmarkCNN(params, dataset=None, model=None)
version = cnn_util.tensorflow_version_tuple()
log_fn('TensorFlow:  %i.%i' % (version[0], version[1]))
bench.print_info()
statistics = bench.run()
assert len([*statistics]) == len(statistics.items()) == len(statistics)
statistics['git_commit'] = 1
with open('statistics.json', 'w') as file:
    json.dump(statistics, file)
"""
KEYS = (
    'num_workers num_steps average_wall_time images_per_sec last_average_loss top_1_accuracy '
    'top_5_accuracy git_commit'
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
    values = json.loads((tmp_path / 'statistics.json').read_text())
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


def test_a_server_takes_no_steps_and_has_no_result():
    cluster_flags = {'job_name': 'ps', 'ps_hosts': 'localhost:1', 'worker_hosts': 'localhost:2'}
    server = BenchmarkCNN(make_params(model='lenet', device='cpu', **cluster_flags))
    with refused('--job_name=ps', 'run()'):
        next(server.steps())
    with refused('run()', 'server'):
        assert server.result


def test_what_the_original_allows_and_this_program_does_not_is_refused():
    params = make_params(model='lenet', device='cpu')
    with refused('print_info', 'setup(params)'):
        BenchmarkCNN(params).print_info()
    with refused('result', 'run()'):
        assert BenchmarkCNN(params).result
    objects: dict[str, Any]
    for objects in ({'dataset': 'imagenet'}, {'model': object()}):
        with refused('BenchmarkCNN', 'data_dir', 'register_model'):
            BenchmarkCNN(params, **objects)


PAGE = (ROOT / 'docs' / 'from_the_original.md').read_text(encoding='utf-8')
MISSING = dict(re.findall(r'^\| `benchmark_cnn\.(\w+)` \| none: (.*) \|$', PAGE, re.MULTILINE))


def test_the_page_and_the_error_say_what_stands_in_the_place_of_a_missing_name():
    names = 'allreduce convnet_builder create_config_proto datasets define_flags flags log_fn'
    more_names = 'make_params_from_flags model_config test_util variable_mgr_util'
    assert [*MISSING] == [*names.split(), *more_names.split()]
    for name, place in MISSING.items():
        assert not hasattr(benchmark_cnn, name)
        with pytest.raises(AttributeError) as caught:
            getattr(benchmark_cnn, name)
        check_line(caught.value, name, place.replace('`', ''))


@pytest.mark.parametrize(
    'code', ['import benchmark_cnn', 'import cnn_util; cnn_util.tensorflow_version_tuple()']
)
def test_the_modules_import_tensorflow_without_notices(code):
    assert run_python(code, TF_CPP_MIN_LOG_LEVEL=None) == (0, '', '')


# ---- standard output -----------------------------------------------------------------------------


_SMALL = '--device=cpu --batch_size=4 --num_batches=3 --num_warmup_batches=1 --display_every=2'
_LABELS = (
    'TensorFlow, Model, Dataset, Mode, SingleSess, Batch size, Num batches, Num epochs, Devices, '
    'NUMA bind, Data format, Optimizer, Variables, Sync'
)


def read(capfd: pytest.CaptureFixture[str], flags: str, *, with_accuracy: bool = False) -> Output:
    assert tf_cnn_benchmarks.main(shlex.split(f'{flags} {_SMALL}')) == 0
    # capfd also captures native code.
    out, err = capfd.readouterr()
    assert 'Traceback' not in err
    output = read_output(out, with_accuracy=with_accuracy)
    labels = _LABELS.split(', ')
    assert [label for label in output.banner if label in labels] == labels
    return output


def test_training_prints_what_scripts_parse(capfd):
    trained = read(capfd, '--model=lenet')
    assert trained.banner['TensorFlow'][0].startswith('2.')
    assert trained.banner['Batch size'] == ['4 global', '4 per device']
    # The last step is printed although --display_every does not divide it.
    assert [number for number, *_ in trained.steps] == [1, 2, 3]
    assert trained.accuracies == []


@pytest.mark.parametrize(
    ('flag', 'mode'),
    [('--forward_only', 'forward-only'), ('--print_training_accuracy', 'training')],
)
def test_steps_with_accuracies_print_what_scripts_parse(flag, mode, capfd):
    output = read(capfd, f'--model=lenet {flag}', with_accuracy=True)
    assert output.banner['Mode'] == [mode]
    assert [number for number, *_ in output.steps] == [1, 2, 3]
    assert all(0 <= top_1 <= top_5 <= 1 for *_, top_1, top_5 in output.steps)


@pytest.mark.surroundings
def test_an_evaluation_prints_its_accuracy_and_its_own_total(tmp_path, capfd):
    random = np.random.default_rng(1)
    for subset, count in (('train', 40), ('validation', 12)):
        digits = random.integers(0, 256, [count, 28, 28])
        write_mnist(tmp_path, digits, random.integers(0, 10, count), subset)
    flags = f'--data_dir={quoted(tmp_path)} --train_dir={quoted(tmp_path)}/t'
    flags += ' --model=mnist --eval_batch_size=5'
    within = read(capfd, f'{flags} --eval_during_training_every_n_steps=2')
    assert [number for number, *_ in within.steps] == [1, 2, 3]
    assert {count for *_, count in within.accuracies} == {12}
    output = read(capfd, f'{flags} --eval')
    assert (output.banner['Mode'], output.banner['Dataset']) == (['evaluation'], ['mnist (real)'])
    [(top_1, top_5, num_examples)] = output.accuracies
    assert 0 <= top_1 <= top_5 <= 1
    # --num_batches counts batches of --eval_batch_size, beyond an epoch too.
    assert (num_examples, output.steps) == (3 * 5, [])
