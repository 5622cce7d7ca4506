"""The output, the checkpoints and the result of whole runs, however they end; BenchmarkCNN, called
from Python.
"""

import contextlib
import io
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN, setup
from models.layers import LayerBuilder
from models.registry import register_model
from tests.support.files import quoted
from tests.support.images import write_digits
from tests.support.outputs import check_warning, failed, refused
from tests.support.programs import PROGRAM, launched, run
from tests.support.runs import document_in, losses, make_benchmark, run_benchmark
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import make_plan
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, read_result
from tf_cnn.results.sections import Phase
from tf_cnn.system.documents import as_json
from tf_cnn.system.signals import Stopped
from tf_cnn.training.checkpoint_files import has_training_ended, latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long]


def read(path: Path) -> Result:
    record = read_result(path)
    assert isinstance(record, Result)
    document_in(path)
    return record


def test_a_result_file_has_the_printed_values_and_all_raw_values(tmp_path):
    path = tmp_path / '{model}-{batch_size}-{shape}.json'
    steps = '--num_batches=5 --num_warmup_batches=2 --display_every=2 --save_model_steps=3'
    mode = '--num_gpus=2 --variable_update=replicated --print_training_accuracy'
    result, out, _ = run_benchmark(
        f'{steps} {mode}', train_dir=tmp_path / 'train', result_file=path
    )
    record = read(tmp_path / 'lenet-4-1*2.json')
    document = as_json(record)
    assert record.is_complete
    assert record.shape == '1*2'
    assert sum(document['phases'][name] or 0 for name in ('import', 'join')) < 1
    assert f'total images/sec: {record.images_per_second:.2f}' in out
    steps = document['workers'][0]['steps']
    assert steps['phase'] == ['warmup'] * 2 + ['timed'] * 5
    assert steps['global_step'] == [1, 2, 3, 4, 5, 6, 7]
    assert result.to_dict() == document
    assert f'{result.images_per_second:.2f} images/sec' in repr(result)
    assert len(steps['top_1']) == len(steps['learning_rate']) == 7
    # Checkpoints follow the global steps 3 and 6; lines follow the timed steps 1, 2, 4 and 5.
    for cause, after in (('checkpoint', [3, 6]), ('printing', [3, 4, 6])):
        spent = enumerate(steps['between'][cause], 1)
        assert [step for step, seconds in spent if seconds] == after
    wall = steps['start'][-1] + steps['seconds'][-1] - steps['start'][2]
    assert document['throughput']['wall_seconds'] == pytest.approx(wall, abs=1e-5)
    assert record.images_per_second == pytest.approx(5 * 8 / wall, rel=1e-4)
    assert document['phases']['build'] > 0
    assert document['model']['parameters'] > 1e6
    flops = 6e9 * document['model']['gmacs_per_image']
    assert document['compute']['flops_per_image'] == pytest.approx(flops)
    assert document['command']['given_flags']['model'] == '--model=lenet'
    assert document['command']['flags']['momentum'] == 0.9


def test_the_document_goes_to_standard_output_alone(capfd):
    flags = '--model=lenet --device=cpu --batch_size=4 --num_batches=3 --num_warmup_batches=1'
    assert tf_cnn_benchmarks.main([*flags.split(), '--result_file=-']) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert f'total images/sec: {document["throughput"]["images_per_second"]:.2f}' in err
    assert document['command']['argv'][-1] == '--result_file=-'


def test_the_first_phase_of_a_command_begins_with_its_process(tmp_path):
    path, start = tmp_path / 'r.json', time.monotonic()
    flags = '--model=trivial --device=cpu --batch_size=2 --num_batches=1 --num_warmup_batches=0'
    assert run(f'{flags} --result_file={quoted(path)}', fresh=True).code == 0
    # The import of TensorFlow takes most of the phase.
    assert 0.5 < document_in(path)['phases']['import'] < time.monotonic() - start


def test_a_run_ends_with_the_step_that_passes_its_target_seconds(tmp_path):
    result, out, _ = run_benchmark(
        '--target_seconds=0.2', num_batches=None, result_file=tmp_path / 'r.json'
    )
    assert result.is_complete
    wall, seconds = result.throughput.wall_seconds, result.step_seconds()
    assert wall - seconds[-1] < 0.2 <= wall + 0.02
    # The last step line belongs to the last step.
    assert out.splitlines()[-4].startswith(f'{seconds.size}\t')
    assert read(tmp_path / 'r.json').run.num_timed is None


def test_a_full_disk_loses_the_file_but_not_the_printed_result(tmp_path, monkeypatch):
    # The result goes into the working directory instead.
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with failed('--result_file=/dev/full') as caught:
        make_benchmark('--result_file=/dev/full', Console(out, io.StringIO())).run()
    assert out.getvalue().count('total images/sec:') == 1
    assert isinstance(caught.value.result, Result)


def test_a_loss_that_is_not_finite_is_a_fault_with_the_result_so_far(tmp_path):
    out, err, path = io.StringIO(), io.StringIO(), tmp_path / 'r.json'
    flags = '--model=mnist --init_learning_rate=1e18 --num_batches=100 --num_warmup_batches=0'
    files = {'data_dir': write_digits(tmp_path / 'digits'), 'result_file': path}
    run = make_benchmark(flags, Console(out, err), train_dir=tmp_path, **files)
    with failed('--init_learning_rate', '1e+18', '--continue_on_nan') as caught:
        [*run.steps()]
    result = caught.value.result
    assert isinstance(result, Result)
    assert not result.is_complete
    num_timed = result.statistics.num_steps
    assert 0 < num_timed < 100
    # Scripts would take a total for the result of a whole run.
    assert 'total images/sec' not in out.getvalue()
    check_warning(
        err.getvalue(), f'{num_timed} step', 100, f'{result.images_per_second:.2f} images/sec'
    )
    # Weights that are not numbers are not saved; the first checkpoint stays.
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-0')
    record = read(path)
    assert '--init_learning_rate' in (record.reason or '')
    assert record.exit_status.exit_code == 1
    assert record.workers[0].steps.loss[-1] is None
    assert 'loss' in ' '.join(warning.text for warning in record.warnings)


@pytest.mark.parametrize('num_timed', [0, 2])
def test_closing_the_generator_of_steps_ends_the_run_and_saves_a_checkpoint(num_timed, tmp_path):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.closing(
        make_benchmark('', Console(out, err), train_dir=tmp_path).steps()
    ) as steps:
        phases = [next(steps).phase for _ in range(1 + num_timed)]
    assert phases == [Phase.WARMUP, *[Phase.TIMED] * num_timed]
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / f'model.ckpt-{1 + num_timed}')
    assert not has_training_ended(str(tmp_path))
    assert 'total images/sec' not in out.getvalue()
    # Without a timed step there is no throughput.
    assert ('images/sec' in check_warning(err.getvalue(), f'timed {num_timed} step', 'of 3')) == (
        num_timed > 0
    )
    with refused('--eval'):
        next(make_benchmark('--eval', train_dir=tmp_path).steps())


def test_an_open_generator_of_steps_ends_silently_with_its_program(tmp_path):
    program = tmp_path / 'program.py'
    program.write_text(
        'from benchmark_cnn import BenchmarkCNN; from tf_cnn.plan.parsing import make_params\n'
        "steps = BenchmarkCNN(make_params(model='lenet', device='cpu', batch_size=2)).steps()\n"
        'next(steps); next(steps)'
    )
    with launched([PROGRAM[0], str(program)], tmp_path) as process:
        assert process.has_ended()
    assert process.exit_code == 0
    assert 'Traceback' not in process.err


# ---- from Python ---------------------------------------------------------------------------------


def test_runs_in_one_process_do_not_disturb_each_other():
    first = losses(tf_random_seed=5)
    other = losses('--tf_random_seed=6 --num_gpus=3 --variable_update=replicated --optimizer=adam')
    assert losses(tf_random_seed=5) == pytest.approx(first, rel=1e-6)
    assert first[0] != pytest.approx(other[0], rel=1e-3)


def test_forward_only_changes_no_weight_and_reports_the_accuracy():
    run = run_benchmark(forward_only=True)
    assert len(set(run.losses)) == 1
    steps = run.result.steps
    assert steps.learning_rate is None
    for top_1, top_5 in zip(steps.top_1 or (), steps.top_5 or (), strict=True):
        assert top_1 is not None
        assert top_5 is not None
        assert 0 <= top_1 <= top_5 <= 1


def uniform_head(cnn: LayerBuilder, images: Any, num_classes: int) -> Any:
    logits = cnn.dense(cnn.flatten(images), num_classes, 'logits')
    return logits, tf.zeros_like(logits)


@pytest.mark.usefixtures('forget_models')
def test_the_auxiliary_head_adds_to_the_loss():
    register_model('with_head', uniform_head, data_set='cifar10', image_size=4)
    register_model(
        'without', lambda *args: uniform_head(*args)[0], data_set='cifar10', image_size=4
    )
    without, with_head = (
        losses(f'--model={model} --loss_type_to_report=base_loss')[0]
        for model in ('without', 'with_head')
    )
    assert with_head - without == pytest.approx(0.4 * np.log(10), rel=1e-5)


def test_settings_that_python_cannot_use_are_refused(monkeypatch):
    with refused('--repeat=3', 'run()'):
        make_benchmark(repeat=3)
    # Hides an installed Horovod.
    monkeypatch.setitem(sys.modules, 'horovod', None)
    with refused('--variable_update=horovod', 'horovod', '--variable_update=collective_all_reduce'):
        make_benchmark(variable_update='horovod')


def test_a_run_takes_over_the_plan_of_setup_once():
    params = make_params(model='trivial', device='cpu', batch_size=2, num_batches=1)
    with mock.patch('benchmark_cnn.make_plan', wraps=make_plan) as planning:
        checked = setup(params)
        BenchmarkCNN(checked, console=Console())
        assert planning.call_count == 1
        for number, other in enumerate((checked, params), start=2):
            BenchmarkCNN(other)
            assert planning.call_count == number


def test_an_ignored_flag_is_a_warning_and_not_in_the_banner():
    _, out, err = run_benchmark('--num_batches=1 --num_gpus=2 --all_reduce_spec=xring')
    assert 'AllReduce' not in out
    check_warning(err, '--all_reduce_spec=xring')
    # Without a console, warnings become Python warnings.
    with pytest.warns(UserWarning, match='--all_reduce_spec=xring'):
        BenchmarkCNN(make_params(device='cpu', all_reduce_spec='xring'))


def test_an_error_of_tensorflow_is_reduced_to_its_cause():
    with failed() as caught:
        run_benchmark('--num_batches=1 --num_warmup_batches=0 --model=trivial', batch_size=2**26)
    # These are TensorFlow's words.
    assert 'Graph execution error' not in str(caught.value)
    assert re.search('memory|allocat|shape|size', str(caught.value))


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_between_two_steps_and_saves_a_checkpoint(number, tmp_path):
    class Stopping(io.StringIO):
        def write(self, text: str) -> int:
            if text.startswith('1\t'):
                signal.raise_signal(number)
            return super().write(text)

    console = Console(Stopping(), err := io.StringIO())
    with pytest.raises(Stopped):
        make_benchmark(
            '--num_batches=1000', console, train_dir=tmp_path, result_file=tmp_path / 'r.json'
        ).run()
    # One warm-up step and one timed step, as in the checkpoint.
    check_warning(err.getvalue(), '1 step', '1000', 'global step 2')
    record = read_result(tmp_path / 'r.json')
    assert isinstance(record, Result)
    assert (record.is_complete, len(record.step_seconds())) == (False, 1)
    assert record.exit_status.exit_code == 128 + number
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-2')
    assert not has_training_ended(str(tmp_path))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    after = losses('--num_batches=1 --num_warmup_batches=0', train_dir=tmp_path)
    assert after[0] == pytest.approx(losses(num_batches=2)[2], rel=1e-5)
