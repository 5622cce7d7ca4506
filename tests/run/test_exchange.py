"""Runs that exchange gradients and compute nothing: every mode gets the right sums, and moves the bytes of training."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from params import make_params, parse_argv
from planning.environment import Environment
from planning.make_plan import make_plan
from planning.plan import Plan
from results import result as results
from results.console import Console
from run.build import build_step
from tests.managers.worker_sessions import serving, starting
from tests.support.graphs import cpus, open_session
from tests.support.networks import (
    COLLECTIVE,
    LEARNING_RATE,
    NUM_STEPS,
    NUM_TOWERS,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    build,
    needed_by,
    servers,
    task,
)
from tests.support.outputs import check_warning, refused, warnings_in

pytestmark = pytest.mark.graph

SCHEMA = json.loads((Path(results.__file__).parent / 'result.schema.json').read_text(encoding='utf-8'))
# The second is cut in two for two parameter servers.
SHAPES = [('small', (3,)), ('large', (1100, 1000)), ('middle', (7, 5))]
# The modes of one process, with flags that change how gradients meet.
IN_ONE_PROCESS = (
    '--variable_update=parameter_server',
    '--variable_update=parameter_server --staged_vars',
    '--variable_update=replicated',
    '--variable_update=replicated --all_reduce_spec=xring',
    '--variable_update=replicated --all_reduce_spec=psgpu',
    '--variable_update=replicated --all_reduce_spec=pscpu:32k:xring',
    '--variable_update=replicated --hierarchical_copy',
    '--variable_update=replicated --gradient_repacking=2',
    '--variable_update=replicated --agg_small_grads_max_bytes=1000',
    '--variable_update=replicated --variable_consistency=relaxed',
    '--variable_update=replicated --precision=fp16 --compact_gradient_transfer',
    '--variable_update=replicated --precision=bf16 --fp16_vars',
)


def plan_of(flags: str) -> Plan:
    plan = make_plan(parse_argv(['--device=cpu', '--exchange_only', *flags.split()]).params, Environment())
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize('flags', IN_ONE_PROCESS)
def test_the_gradients_of_all_towers_meet_in_one_process(flags: str) -> None:
    num_towers = 4
    plan = plan_of(f'--num_gpus={num_towers} --model=lenet --init_learning_rate=0.125 {flags}')
    with tf.Graph().as_default(), open_session(num_towers) as session:
        step = build_step(plan, 0)
        session.run(step.initializers)
        step.start(session)
        for _ in range(NUM_STEPS):
            session.run(step.fetches.present())
        found = session.run({name: part.variable.value for name, (part,) in step.model_slices.items()})
        # The gradient of tower i is (i + 1) / 4.
        expected = -0.125 * NUM_STEPS * (1 + 2 + 3 + 4) / num_towers
    assert {name: value.shape for name, value in found.items()} == {
        variable.name: variable.shape for variable in step.variables
    }
    assert len(found) == 8
    for name, value in found.items():
        np.testing.assert_allclose(np.float32(value), expected, rtol=1e-2 if '16' in flags else 1e-6, err_msg=name)


def test_a_step_contains_nothing_of_the_network() -> None:
    with tf.Graph().as_default() as graph:
        step = build_step(plan_of('--num_gpus=2 --model=lenet --variable_update=replicated'), 0)
        types = {op.type for op in graph.get_operations()}
        run = {op.type for op in needed_by(step.fetches.ops)}
    assert not {'Conv2D', 'MatMul', 'MaxPool', 'BiasAdd'} & types
    assert {'PlaceholderWithDefault', 'AddN'} <= run


@pytest.fixture(scope='module', name='targets')
def running_servers() -> Iterator[list[str]]:
    with serving(1) as targets:
        yield targets


# Servers remember the type of a collective sum, so there is one of them.
@pytest.mark.parametrize(
    ('mode', 'transfer'),
    [(COLLECTIVE, None), *((mode, dtype) for mode in (PS, STAGED, REPLICATED) for dtype in (None, tf.bfloat16))],
)
def test_the_gradients_of_all_workers_meet_in_a_cluster(mode: str, transfer: Any, targets: list[str]) -> None:
    devices = () if mode == COLLECTIVE else servers(1)
    with starting(targets) as start:
        cluster = start(mode, exchanged=SHAPES, server_devices=devices, transfer=transfer)
        cluster.take_steps(NUM_STEPS)
        values = cluster.members[0].read()
    num_towers = NUM_WORKERS * NUM_TOWERS
    expected = -LEARNING_RATE * NUM_STEPS * (num_towers + 1) / 2
    for name, shape in SHAPES:
        assert values[name].shape == shape
        np.testing.assert_allclose(values[name], expected, rtol=1e-2 if transfer else 1e-6, err_msg=name)


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_a_step_moves_the_bytes_that_it_says(mode: str, transfer: Any) -> None:
    moved = 0
    for worker in range(NUM_WORKERS):
        built = build(mode, worker, exchanged=SHAPES, transfer=transfer, devices=cpus(3))
        received: dict[tuple[str, str], int] = {}
        for op in needed_by(built.step.fetches.ops):
            job = tf.DeviceSpec.from_string(op.device).job
            for value in op.inputs:
                if tf.DeviceSpec.from_string(value.op.device).job != job and value.shape.rank:
                    received[value.name, str(job)] = value.shape.num_elements() * value.dtype.size
        moved += sum(received.values())
        stated = built.step.transfer.bytes_per_step
    assert moved == stated == 2 * NUM_WORKERS * (3 + 1_100_000 + 35) * (2 if transfer else 4)


def test_a_controller_sums_over_the_devices_of_all_workers() -> None:
    towers = [f'{task("worker", worker)}{tower}' for worker in range(NUM_WORKERS) for tower in cpus(NUM_TOWERS)]
    built = build(
        'distributed_all_reduce',
        exchanged=SHAPES,
        job='controller',
        server_devices=(),
        devices=towers,
        num_workers=1,
    )
    kept = built.ops('PlaceholderWithDefault')
    assert sorted({op.device for op in kept}) == sorted(
        f'{task("worker", worker)}/device:CPU:{tower}' for worker in range(NUM_WORKERS) for tower in range(NUM_TOWERS)
    )


def run(tmp_path: Path, **overrides: Any) -> tuple[dict[str, Any], str, str]:
    """The document, and what the run printed on standard output and standard error."""
    settings = {'device': 'cpu', 'exchange_only': True, 'num_batches': 20, 'result_file': str(tmp_path / 'r.json')}
    out, err = io.StringIO(), io.StringIO()
    BenchmarkCNN(make_params(**{**settings, **overrides}), Console(out, err)).run()
    document = json.loads((tmp_path / 'r.json').read_text())
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return document, out.getvalue(), err.getvalue()


def test_the_result_has_the_seconds_of_exchanges_and_nothing_about_losses(tmp_path: Path) -> None:
    document, out, err = run(
        tmp_path, num_gpus=2, variable_update='replicated', exchange_bytes=4096, model='lenet', batch_size=8
    )
    assert document['run']['role'] == 'exchange-only'
    assert document['model'] | {'name': '4096 bytes', 'parameters': 1024} == document['model']
    assert document['run']['batch_size'] == 1
    assert document['compute']['flops_per_second'] is None
    seconds = document['throughput']['wall_seconds']
    assert f'total ms/step: {1e3 * seconds / 20:.3f}\n' in out
    assert 'images/sec' not in out + err
    assert out.count('ms/step: ') == 4
    check_warning(err, '--batch_size=8', '--exchange_only')
    check_warning(err, '--model=lenet', '--exchange_bytes')
    assert not [line for line in warnings_in(err) if 'loss' in line]


@pytest.mark.parametrize(
    ('flags', 'named'),
    [
        ('--forward_only', '--forward_only'),
        ('--data_dir=d', '--data_dir=d'),
        ('--train_dir=t', '--train_dir=t'),
        ('--eval --train_dir=t', '--eval'),
        ('--num_epochs=1', '--num_epochs=1'),
        ('--variable_update=independent', '--variable_update=independent'),
        ('--exchange_bytes=4098', '--exchange_bytes=4098'),
    ],
)
def test_what_needs_a_model_or_exchanges_nothing_is_refused(flags: str, named: str) -> None:
    with refused(named):
        parse_argv(['--exchange_only', *flags.split()])
