"""Whoever iterates over the steps of a run gets what run() gives: lines, checkpoints, and faults with what was kept."""

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from errors import RunError
from machine.gpus import has_nvidia_gpu
from params import make_params
from records.layout import shard_name
from results.console import Console
from results.result import Result
from results.sections import Phase
from tests.support.images import example, write_digits, write_shard
from tests.support.outputs import check_warning, failed, refused, warnings_in
from training.checkpoint_files import has_ended, latest_checkpoint

pytestmark = [pytest.mark.graph, pytest.mark.long]

ROOT = Path(tf_cnn_benchmarks.__file__).parent


def run(benchmark: BenchmarkCNN) -> None:
    benchmark.run()


def iterate(benchmark: BenchmarkCNN) -> None:
    for _ in benchmark.steps():
        pass


WAYS = [run, iterate]
DIVERGING: dict[str, Any] = {'model': 'mnist', 'init_learning_rate': 1e18, 'num_batches': 100}


def lines_of(way: Callable[[BenchmarkCNN], None], **flags: Any) -> tuple[str, str, RunError | None]:
    """What a run prints, to standard output with each number replaced, and to standard error; and its fault."""
    out, err = io.StringIO(), io.StringIO()
    fault = None
    try:
        way(made(Console(out, err), **flags))
    except RunError as error:
        fault = error
    return re.sub(r'\d[\d.]*', 'N', out.getvalue()), err.getvalue(), fault


def made(console: Console, **flags: Any) -> BenchmarkCNN:
    settings: dict[str, Any] = {'model': 'lenet', 'device': 'cpu', 'batch_size': 4}
    steps = {'num_batches': 4, 'num_warmup_batches': 2, 'display_every': 1}
    return BenchmarkCNN(make_params(**{**settings, **steps, **flags}), console)


def test_a_whole_run_prints_the_same_lines() -> None:
    (out, err, fault), (same_out, same_err, none) = (lines_of(way) for way in WAYS)
    assert (fault, none) == (None, None)
    assert same_out == out
    assert 'total images/sec: N' in out
    # What follows tells about the numbers, which differ.
    progress, same_progress = (text.partition('steps: median')[0] for text in (err, same_err))
    assert progress == same_progress != err
    assert warnings_in(err) == []


@pytest.mark.parametrize('way', WAYS)
def test_a_loss_that_is_not_finite_is_a_fault_with_what_was_measured(
    way: Callable[[BenchmarkCNN], None], tmp_path: Path
) -> None:
    out, err = io.StringIO(), io.StringIO()
    flags = {**DIVERGING, 'data_dir': write_digits(tmp_path / 'digits'), 'num_warmup_batches': 0}
    with failed('--init_learning_rate', '1e+18', '--continue_on_nan') as caught:
        way(made(Console(out, err), **flags, train_dir=str(tmp_path)))
    result = caught.value.result
    assert isinstance(result, Result)
    assert not result.complete
    assert 0 < len(result.timed_steps) < 100
    # It would look like that of a whole run.
    assert 'total images/sec' not in out.getvalue()
    check_warning(err.getvalue(), f'{len(result.timed_steps)} step', 100, f'{result.images_per_second:.2f} images/sec')
    # What is no longer a number is not kept: the checkpoint of the start is.
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-0')


def test_faults_are_the_same_lines(tmp_path: Path) -> None:
    write_shard(tmp_path / shard_name('train', 0, 1), [example(b'no image', 1)] * 5)
    for flags in ({'data_dir': str(tmp_path)}, {**DIVERGING, 'data_dir': write_digits(tmp_path / 'digits')}):
        (out, _, fault), (same_out, _, same_fault) = (lines_of(way, **flags) for way in WAYS)
        assert fault
        assert str(same_fault) == str(fault)
        assert same_out == out


@pytest.mark.parametrize('num_timed', [0, 2])
def test_who_stops_asking_ends_the_run_and_what_was_trained_is_saved(num_timed: int, tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.closing(made(Console(out, err), train_dir=str(tmp_path)).steps()) as steps:
        phases = [next(steps).phase for _ in range(2 + num_timed)]
    assert phases == [Phase.WARMUP, Phase.WARMUP, *[Phase.TIMED] * num_timed]
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / f'model.ckpt-{2 + num_timed}')
    assert not has_ended(str(tmp_path))
    assert 'total images/sec' not in out.getvalue()
    # Without a timed step there is no rate.
    assert ('images/sec' in check_warning(err.getvalue(), num_timed, 4)) == (num_timed > 0)


def test_without_a_folder_for_checkpoints_a_warning_has_the_rate_of_the_steps_so_far() -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.closing(made(Console(out, err)).steps()) as steps:
        for step in steps:
            if (step.phase, step.index) == (Phase.TIMED, 3):
                break
    assert 'total images/sec' not in out.getvalue()
    check_warning(err.getvalue(), 3, 4, 'images/sec')


def test_evaluating_takes_no_steps(tmp_path: Path) -> None:
    with refused('--eval'):
        next(made(Console(), eval=True, train_dir=str(tmp_path)).steps())


def test_steps_that_a_program_leaves_behind_end_silently_with_it() -> None:
    """Nor does TensorFlow say that it sees no GPU on a machine that has none."""
    code = (
        'from benchmark_cnn import BenchmarkCNN; from params import make_params\n'
        "steps = BenchmarkCNN(make_params(model='lenet', device='cpu', batch_size=2)).steps()\n"
        'next(steps); next(steps)'
    )
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert 'Traceback' not in done.stderr, done.stderr
    assert has_nvidia_gpu() or 'cuInit' not in done.stderr, done.stderr
