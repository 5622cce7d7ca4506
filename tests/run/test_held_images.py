"""Runs whose images stay on the device, or that Python feeds step by step."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from benchmark_cnn import BenchmarkCNN
from params import RunFacts, find_idle, make_params
from planning.data import check_gpu_memory
from planning.environment import Environment
from planning.make_plan import make_plan
from planning.plan import Plan
from results.console import Console
from results.result import Result
from tests.support.gpu_graphs import (
    build_on_gpus,
    ops_without_device,
    ops_without_kernel,
    signals,
    strangers_of_resources,
)
from tests.support.images import write_mnist, write_noise
from tests.support.outputs import check_line, check_warning, refused

pytestmark = [pytest.mark.graph, pytest.mark.long]

HELD = ('device', 'feed_dict')
by_pipeline = pytest.mark.parametrize('pipeline', HELD)


@pytest.fixture(scope='module')
def mnist(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, rng = tmp_path_factory.mktemp('mnist'), np.random.default_rng(5)
    for subset, count in (('train', 20), ('validation', 9)):
        write_mnist(folder, rng.integers(256, size=(count, 28, 28)), rng.integers(10, size=count), subset)
    return str(folder)


@pytest.fixture(scope='module')
def noise(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp('noise')
    write_noise(folder, 10)
    return str(folder)


def trained(
    pipeline: str | None, out: io.StringIO | None = None, warned: io.StringIO | None = None, **flags: Any
) -> Result:
    settings: dict[str, Any] = {
        'model': 'lenet', 'device': 'cpu', 'batch_size': 4, 'num_batches': 6, 'num_warmup_batches': 1,
        'init_learning_rate': 0.01, 'input_pipeline': pipeline,
    }  # fmt: skip
    console = Console(out or io.StringIO(), warned or io.StringIO())
    return BenchmarkCNN(make_params(**{**settings, **flags}), console).run()


def losses(result: Result) -> list[float]:
    return [step.values.loss for step in result.steps]


@pytest.mark.parametrize(
    'mode',
    [
        {'variable_update': 'replicated', 'variable_consistency': 'relaxed'},
        {'forward_only': True, 'init_learning_rate': None},
    ],
    ids=str,
)
def test_the_losses_are_those_of_arrays_bit_for_bit(mnist: str, mode: dict[str, Any]) -> None:
    flags = {'model': 'mnist', 'data_dir': mnist, 'num_gpus': 2, **mode}
    expected = losses(trained(None, **flags))
    assert len(set(expected)) > 4
    for pipeline in HELD:
        assert losses(trained(pipeline, **flags)) == expected


def test_a_loop_in_the_graph_gathers_the_batches_of_single_steps(mnist: str) -> None:
    single, looped = (
        losses(trained('device', model='mnist', data_dir=mnist, augmentation='padded_crop', steps_per_run=number))
        for number in (1, 4)
    )
    assert looped == single


@by_pipeline
def test_records_are_held_in_one_size_shifted_and_evaluated(noise: str, tmp_path: Path, pipeline: str) -> None:
    out, warned, file = io.StringIO(), io.StringIO(), tmp_path / 'result.json'
    flags: dict[str, Any] = {'data_dir': noise, 'train_dir': str(tmp_path / 'train'), 'num_batches': 5}
    result = trained(pipeline, out, warned, **flags, result_file=str(file))
    check_warning(warned.getvalue(), f'--input_pipeline={pipeline}', '--augmentation=padded_crop')
    assert f'Input:       {pipeline}\n' in out.getvalue()
    assert f'"input_pipeline": "{pipeline}"' in file.read_text().replace('\n', ' ')
    has_waits = [step.values.input_wait is not None for step in result.steps]
    assert has_waits == [pipeline == 'feed_dict'] * 6
    # A continued training goes on in the middle of the order of the images.
    whole = trained(pipeline, **{**flags, 'train_dir': None, 'num_batches': 11})
    halves = [trained(pipeline, **{**flags, 'train_dir': str(tmp_path / 't')}) for _ in range(2)]
    assert [loss for half in halves for loss in losses(half)] == losses(whole)


@by_pipeline
def test_training_is_evaluated_and_traced_with_summaries(mnist: str, tmp_path: Path, pipeline: str) -> None:
    result = trained(
        pipeline,
        model='mnist',
        data_dir=mnist,
        train_dir=str(tmp_path),
        eval_during_training_every_n_steps=3,
        save_summaries_steps=2,
        summary_verbosity=3,
        trace_file=str(tmp_path / 'trace.json'),
    )
    assert [found.num_images for found in result.evaluations] == [9, 9]
    assert (tmp_path / 'trace.json').stat().st_size


def test_synthetic_images_can_be_fed_and_stay_on_the_device_anyway() -> None:
    fed = trained('feed_dict', num_gpus=2)
    assert fed.is_synthetic
    assert losses(fed)[0] == pytest.approx(losses(trained(None))[0], rel=0.1)
    facts = RunFacts(alone=True, residual=False)
    assert find_idle(make_params(input_pipeline='feed_dict'), facts) == []
    [line] = find_idle(make_params(input_pipeline='device'), facts)
    check_line(line, '--input_pipeline=device', '--data_dir')


@by_pipeline
def test_held_images_are_no_idle_wish_for_arrays(pipeline: str) -> None:
    arrays = RunFacts(alone=True, residual=False, has_records=False)
    assert find_idle(make_params(input_pipeline=pipeline, data_dir='d'), arrays) == []
    evaluating = make_params(input_pipeline=pipeline, data_dir='d', eval=True, train_dir='t')
    assert len(find_idle(evaluating, arrays)) == 1


@by_pipeline
@pytest.mark.parametrize('other', ['--distortions', '--augmentation=resized_crop'])
def test_changes_that_need_the_photograph_are_refused(pipeline: str, other: str) -> None:
    name, _, value = other.lstrip('-').partition('=')
    flags = {'input_pipeline': pipeline, 'data_dir': 'd', name: value or True}
    with refused(f'--input_pipeline={pipeline}', other):
        make_params(**flags)
    make_params(**flags, forward_only=True)


@by_pipeline
def test_evaluations_cut_the_part_that_they_cut_with_every_pipeline(noise: str, pipeline: str) -> None:
    flags: dict[str, Any] = {'model': 'lenet', 'device': 'cpu', 'data_dir': noise, 'data_name': 'imagenet'}
    found = []
    for chosen in (None, pipeline):
        plan = make_plan(make_params(**flags, input_pipeline=chosen), Environment({}))
        assert isinstance(plan, Plan)
        found.append((plan.data.augmentation, plan.data.validation_augmentation))
    assert found == [('resized_crop', 'resized_crop'), ('padded_crop', 'resized_crop')]


def test_a_loop_in_the_graph_cannot_be_fed() -> None:
    with refused('--input_pipeline=feed_dict', '--steps_per_run=3', '--input_pipeline=device'):
        make_params(input_pipeline='feed_dict', steps_per_run=3)


@by_pipeline
def test_images_that_do_not_fit_into_memory_are_refused_with_both_numbers(
    noise: str, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: SimpleNamespace(total=10**9, available=30 * 1024))
    needed = 16 * 28 * 28 * 3
    with refused(f'--input_pipeline={pipeline}', str(needed), str(30 * 1024)):
        trained(pipeline, data_dir=noise, augmentation='none', data_name='imagenet', model='lenet')


@pytest.mark.parametrize('way', ['replicated', 'parameter_server'])
@by_pipeline
def test_gpus_have_kernels_for_all_that_is_placed_on_them(noise: str, pipeline: str, way: str) -> None:
    built = build_on_gpus(2, data_dir=noise, input_pipeline=pipeline, variable_update=way, model='lenet')
    assert ops_without_kernel(built) == {}
    assert ops_without_device(built) == []
    assert strangers_of_resources(built) == []
    assert len(signals(built)) <= 8 * built.num_devices
    copied = [op for op in built.step if op.type == 'VarHandleOp' and op.get_attr('dtype').name == 'uint8']
    assert sorted(op.device[-5:] for op in copied) == (['GPU:0', 'GPU:1'] if pipeline == 'device' else [])


def test_a_gpu_that_is_too_small_for_the_images_is_named_with_both_numbers(noise: str) -> None:
    data = build_on_gpus(1, data_dir=noise, input_pipeline='device').plan.data
    params = make_params(input_pipeline='device', data_dir=noise)
    needed = 16 * 28 * 28 * 3
    check_gpu_memory(params, data, [{'memory_bytes': needed}, {'memory_bytes': None}])
    with refused('--input_pipeline=device', str(needed), str(needed - 1)):
        check_gpu_memory(params, data, [{'memory_bytes': needed}, {'memory_bytes': needed - 1}])
