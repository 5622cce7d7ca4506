"""BenchmarkCNN as Python users call it, in one process."""

import html
import io
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from cluster.signals import Terminated
from params import make_params
from records.layout import shard_name
from results.console import Console
from results.document import Record, read_result_file
from results.result import Result
from results.sections import Phase
from tests.support.images import encoded, example, write_shard
from tests.support.outputs import check_warning, failed, refused
from training.checkpoint_files import has_ended, latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long]

_STEP_LINE = re.compile(
    r'^\d+\timages/sec: \d+\.\d \+/- \d+\.\d \(jitter = \d+\.\d\)\t\d+\.\d{3}(\t\d\.\d{3}\t\d\.\d{3})?$'
)


def run(console: Console | None = None, **overrides: Any) -> Result:
    settings = {'model': 'lenet', 'device': 'cpu', 'batch_size': 8, 'num_batches': 3, 'num_warmup_batches': 1}
    return BenchmarkCNN(make_params(**{**settings, **overrides}), console).run()


def losses(result: Result) -> list[float]:
    return [step.values.loss for step in result.steps]


def test_a_result_keeps_every_step_with_its_phase_and_seconds() -> None:
    result = run(num_gpus=2)
    assert [(step.phase, step.index) for step in result.steps] == [
        (Phase.WARMUP, 1),
        (Phase.TIMED, 1),
        (Phase.TIMED, 2),
        (Phase.TIMED, 3),
    ]
    assert all(step.seconds > 0 for step in result.steps)
    assert result.global_batch_size == 16
    first, *_, last = result.timed_steps
    # The clock goes on between the steps.
    assert result.images_per_second == 3 * 16 / (last.end - first.start) < 3 * 16 / result.step_seconds
    assert len(result.between) == len(result.steps)
    assert result.complete


def test_runs_in_one_process_do_not_disturb_each_other() -> None:
    first = run(tf_random_seed=5)
    other = run(tf_random_seed=6, num_gpus=3, variable_update='replicated', optimizer='adam')
    again = run(tf_random_seed=5)
    assert losses(first) == pytest.approx(losses(again), rel=1e-6)
    assert losses(first)[0] != pytest.approx(losses(other)[0], rel=1e-3)


@pytest.mark.parametrize(
    'optimizer', ['momentum', *(pytest.param(name, marks=pytest.mark.all_modes) for name in ('sgd', 'rmsprop', 'adam'))]
)
def test_every_mode_trains_alike(optimizer: str) -> None:
    modes: list[dict[str, Any]] = [
        {'variable_update': 'parameter_server'},
        {'variable_update': 'parameter_server', 'local_parameter_device': 'gpu'},
        {'variable_update': 'replicated'},
        {'variable_update': 'replicated', 'all_reduce_spec': 'xring'},
        {'variable_update': 'replicated', 'all_reduce_spec': 'pscpu:2k:psgpu'},
        {'variable_update': 'replicated', 'hierarchical_copy': True},
        {'variable_update': 'replicated', 'gradient_repacking': 3},
        {'variable_update': 'replicated', 'agg_small_grads_max_bytes': 4096, 'agg_small_grads_max_group': 3},
    ]
    found = [losses(run(num_gpus=4, optimizer=optimizer, init_learning_rate=0.001, **mode)) for mode in modes]
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-5)
    assert found[0][-1] < found[0][0]


def test_forward_only_changes_no_weight_and_reports_the_accuracy() -> None:
    result = run(forward_only=True)
    assert len(set(losses(result))) == 1
    for values in (step.values for step in result.steps):
        assert values.top_1 is not None
        assert values.top_5 is not None
        assert 0 <= values.top_1 <= values.top_5 <= 1


def test_the_auxiliary_head_adds_to_the_loss() -> None:
    settings: dict[str, Any] = {
        'batch_size': 1,
        'num_batches': 1,
        'num_warmup_batches': 0,
        'loss_type_to_report': 'base_loss',
    }
    without, with_head = (losses(run(model=model, **settings))[0] for model in ('inception3', 'inception3_aux'))
    # An untrained head is right about as often as chance: 0.4 * ln(1001).
    assert with_head - without == pytest.approx(0.4 * np.log(1001), rel=0.2)


def test_a_setting_of_the_whole_process_cannot_change() -> None:
    run(num_batches=1)
    with refused('--num_intra_threads=1'):
        run(num_intra_threads=1)


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 96 images in two classes, black ones labelled 1 and white ones labelled 2."""
    folder = tmp_path_factory.mktemp('shards')
    images = {label: example(encoded(np.full([40, 50, 3], 255 * (label - 1), np.uint8)), label) for label in (1, 2)}
    for shard in range(2):
        write_shard(folder / shard_name('train', shard, 2), [images[1 + index % 2] for index in range(48)])
    return folder


@pytest.mark.parametrize('settings', [{}, {'num_gpus': 2, 'variable_update': 'replicated'}])
def test_a_network_learns_from_real_images(data_dir: Path, settings: dict[str, Any]) -> None:
    result = run(data_dir=str(data_dir), num_batches=30, print_training_accuracy=True, **settings)
    assert not result.is_synthetic
    assert np.mean([step.values.top_1 for step in result.steps[-10:]]) > 0.9


def test_what_was_measured_before_a_fault_is_kept(data_dir: Path, tmp_path: Path) -> None:
    good = data_dir / 'train-00000-of-00002'
    bad = tmp_path / 'train-00000-of-00001'
    records = list(tf.python_io.tf_record_iterator(str(good)))
    # More good records than the pool holds, so that steps succeed before the bad one is drawn.
    write_shard(bad, [*records * 30, example(encoded(np.zeros([9, 9, 3], np.uint8)), 4242)])
    out, err = io.StringIO(), io.StringIO()
    with failed('train-00000-of-00001, record 1440', '4242') as caught:
        run(Console(out, err), data_dir=str(tmp_path), num_batches=1000, display_every=1000)
    result = caught.value.result
    assert isinstance(result, Result)
    assert not result.complete
    assert 0 < len(result.timed_steps) < 1000
    # It would look like that of a whole run.
    assert 'total images/sec' not in out.getvalue()
    check_warning(err.getvalue(), f'{len(result.timed_steps)} step', 1000, f'{result.images_per_second:.2f} images/sec')


def test_a_forward_only_run_reads_the_validation_shards_if_there_are_any(data_dir: Path, tmp_path: Path) -> None:
    for shard in data_dir.iterdir():
        (tmp_path / shard.name.replace('train', 'validation')).write_bytes(shard.read_bytes())
    assert run(data_dir=str(tmp_path), forward_only=True, num_batches=2).complete
    assert run(data_dir=str(data_dir), forward_only=True, num_batches=2).complete
    with refused(f'--data_dir={tmp_path}', 'validation-*-of-*'):
        run(data_dir=str(tmp_path))


def test_the_banner_names_the_all_reduce_that_is_used() -> None:
    def printed(mode: str) -> tuple[str, str]:
        out, err = io.StringIO(), io.StringIO()
        run(Console(out, err), num_batches=1, variable_update=mode, num_gpus=2, all_reduce_spec='xring')
        return out.getvalue(), err.getvalue()

    banner, _ = printed('replicated')
    assert 'AllReduce:   xring' in banner
    banner, err = printed('parameter_server')
    assert 'AllReduce' not in banner
    check_warning(err, '--all_reduce_spec=xring')


def test_without_a_console_warnings_become_those_of_python() -> None:
    with pytest.warns(UserWarning, match='--all_reduce_spec=xring'):
        BenchmarkCNN(make_params(device='cpu', all_reduce_spec='xring'))


def test_an_error_of_tensorflow_is_reduced_to_its_cause() -> None:
    with failed() as caught:
        run(batch_size=2**26, num_batches=1, num_warmup_batches=0, model='trivial')
    # Both are TensorFlow's words.
    assert 'Graph execution error' not in str(caught.value)
    assert re.search('memory|allocat|shape|size', str(caught.value))


def test_missing_shards_are_counted_and_warned_of(data_dir: Path, tmp_path: Path) -> None:
    shard = data_dir / 'train-00000-of-00002'
    (tmp_path / shard.name).write_bytes(shard.read_bytes())
    err = io.StringIO()
    assert run(Console(None, err), data_dir=str(tmp_path), num_batches=1).num_missing_shards == 1
    check_warning(err.getvalue(), f'--data_dir={tmp_path}', '1', '2')


class _Stopping(io.StringIO):
    """A stream that raises a signal when the first line of a step is written to it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        if _STEP_LINE.match(text):
            signal.raise_signal(self._number)
        return super().write(text)


@pytest.mark.parametrize(('number', 'raised'), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_a_run_between_two_steps_and_what_was_trained_is_saved(
    number: int, raised: type[BaseException], tmp_path: Path
) -> None:
    out, err = _Stopping(number), io.StringIO()
    with pytest.raises(raised) as stopped:
        run(Console(out, err), num_batches=1000, train_dir=str(tmp_path), result_file=str(tmp_path / 'r.json'))
    assert stopped.type is raised
    # One timed step, and one before it, as in the checkpoint.
    check_warning(err.getvalue(), '1 step', '1000', 'global step 2')
    record = read_result_file(tmp_path / 'r.json')
    assert isinstance(record, Record)
    assert (record.is_complete, len(record.step_seconds())) == (False, 1)
    assert record.ended.exit_code == 128 + number
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-2')
    assert not has_ended(str(tmp_path))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    after = run(train_dir=str(tmp_path), num_batches=1, num_warmup_batches=0)
    assert losses(after)[0] == pytest.approx(losses(run(num_batches=2))[2], rel=1e-5)


def test_the_horovod_mode_is_refused_where_horovod_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, 'horovod', None)
    with refused('--variable_update=horovod', 'horovod', '--variable_update=collective_all_reduce'):
        run(variable_update='horovod')


def test_a_result_shows_itself_and_becomes_rows() -> None:
    result = run(num_batches=3)
    lines = repr(result).splitlines()
    assert len(lines) == 5
    assert f'{result.images_per_second:.2f} images/sec' in lines[3]
    assert all(f'<td>{html.escape(line[11:])}</td>' in result._repr_html_() for line in lines[1:])
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found['images'] / found['wall_seconds'] == pytest.approx(found['images_per_second'])
    assert [row['seconds'] for row in found['steps'] if row['phase'] == 'timed'] == [
        step.seconds for step in result.timed_steps
    ]
    assert {'index', 'loss', 'learning_rate'} <= found['steps'][0].keys()


def test_repeats_are_refused_from_python() -> None:
    with refused('--repeat=3', 'run()'):
        run(repeat=3)
