"""BenchmarkCNN, called from Python in one process."""

import io
import re
import signal
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN, setup
from models.layers import LayerBuilder
from models.registry import register_model
from tests.support.outputs import check_warning, failed, refused
from tests.support.runs import losses, make_benchmark, run_benchmark
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import make_plan
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, read_result
from tf_cnn.system.signals import Stopped
from tf_cnn.training.checkpoint_files import has_training_ended, latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long]


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
