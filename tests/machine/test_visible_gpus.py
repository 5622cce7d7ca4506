"""Which GPUs a process uses: its part of CUDA_VISIBLE_DEVICES, by its rank on the host and its
launcher.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from tests.support.files import read_rows
from tests.support.machines import (
    COLLECTIVE,
    cluster_of,
    open_mpi,
    slurm_step,
    use_pynvml,
    write_pynvml,
)
from tests.support.outputs import refused
from tests.support.programs import run_in_fork
from tf_cnn.cluster.environments import find_local_rank_and_size
from tf_cnn.machine.gpus import count_gpus
from tf_cnn.machine.this_process import THIS_PROCESS, ProcessSettings
from tf_cnn.machine.visible_gpus import choose_visible_gpus, divide_gpus, gpus_of_process

pytestmark = pytest.mark.unit


def listing(text: str, **more: str) -> dict[str, str]:
    return {'CUDA_VISIBLE_DEVICES': text, **more}


@pytest.mark.parametrize('row', read_rows('visible_gpus.csv'), ids=lambda row: row['reason'])
def test_a_worker_gets_its_part_unless_a_launcher_has_shared_out_the_gpus(row):
    rank_and_size = int(row['rank']), int(row['size'])
    environ = dict(word.split('=', 1) for word in row['environment'].split())
    visible = gpus_of_process(int(row['num_gpus']), rank_and_size, environ, None)
    assert visible == row['expected']


@pytest.mark.parametrize(
    ('needed', 'size', 'environ', 'facts'),
    [
        (2, 2, listing('4,5,6'), '--num_gpus=2, 4 GPUs, CUDA_VISIBLE_DEVICES=4,5,6'),
        # All tasks of the step see its only GPU; with --gpu-bind=closest, two of four tasks see the
        # same two.
        (1, 2, listing('0', SLURM_GPUS_ON_NODE='1'), '2 GPUs, CUDA_VISIBLE_DEVICES=0 '),
        (1, 4, listing('0,1', SLURM_GPUS_ON_NODE='4'), '4 GPUs, CUDA_VISIBLE_DEVICES=0,1'),
    ],
)
def test_too_few_gpus_are_refused_with_both_numbers(needed, size, environ, facts):
    with refused(*facts.split(', ')):
        gpus_of_process(needed, (0, size), environ, None)


def test_the_gpus_of_the_host_must_suffice_for_its_workers():
    assert gpus_of_process(1, (1, 2), {}, 2) == '1'
    with refused('--num_gpus=1', '2 workers', '2 GPUs', 'has 1', '--device=cpu'):
        gpus_of_process(1, (0, 2), {}, 1)


def test_workers_of_one_host_are_counted_by_its_name():
    hosts = 'a:1,b:1,A:2,a:3'
    for index, place in enumerate([(0, 3), (0, 1), (1, 3), (2, 3)]):
        cluster = cluster_of(**COLLECTIVE, worker_hosts=hosts, job_name='worker', task_index=index)
        assert cluster.local_rank_and_size == place
    # Ranks 0 to 2 are on the first node, and the first of them keeps the variables.
    for rank, place in enumerate([(0, 2), (1, 2), (0, 1), (0, 1)], start=1):
        assert cluster_of(slurm_step(rank)).local_rank_and_size == place


def test_launchers_set_the_local_rank_of_a_process():
    assert find_local_rank_and_size({}) is None
    assert find_local_rank_and_size(slurm_step(2, SLURM_STEP_TASKS_PER_NODE='3,1(x2)')) == (2, 3)
    assert find_local_rank_and_size(slurm_step(4)) == (0, 1)
    assert find_local_rank_and_size(open_mpi(5, 8, 4)) == (1, 4)
    assert find_local_rank_and_size({'MPI_LOCALRANKID': '1', 'MPI_LOCALNRANKS': '2'}) == (1, 2)
    by_horovodrun = {'HOROVOD_LOCAL_RANK': '3', 'HOROVOD_LOCAL_SIZE': '4', 'HOROVOD_RANK': '7'}
    environ = slurm_step(0) | open_mpi(0, 1, 1) | by_horovodrun
    assert find_local_rank_and_size(environ) == (3, 4)
    with refused('HOROVOD_LOCAL_RANK=x'):
        find_local_rank_and_size({**by_horovodrun, 'HOROVOD_LOCAL_RANK': 'x'})


def test_gpus_are_counted_by_the_driver_or_its_device_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    assert count_gpus(tmp_path) == 0
    for number in range(3):
        (tmp_path / f'dev/nvidia{number}').mkdir(parents=True)
    (tmp_path / 'dev/nvidiactl').touch()
    assert count_gpus(tmp_path) == 3
    (tmp_path / 'proc/driver/nvidia/gpus/0000:01:00.0').mkdir(parents=True)
    assert count_gpus(tmp_path) == 3
    # The job has one GPU of the three.
    use_pynvml(monkeypatch, tmp_path, 1)
    assert count_gpus(tmp_path) == 1
    # In Windows' Linux the files do not show how many GPUs there are.
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    for name in ('windows/dev/dxg', 'windows/usr/lib/wsl/lib/libcuda.so.1'):
        (tmp_path / name).mkdir(parents=True)
    assert count_gpus(tmp_path / 'windows') is None


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_process: None) -> None:
    """A machine with four GPUs, in a process that has not used any."""
    use_pynvml(monkeypatch, tmp_path, 4)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)


def show_gpus(needed: int, place: tuple[int, int] = (0, 1)) -> str | None:
    """Shows this process its GPUs, as a run does; returns None if the host has none."""
    gpus = choose_visible_gpus(needed, place, THIS_PROCESS.environment)
    THIS_PROCESS.show_gpus(gpus)
    return gpus


def test_a_host_without_gpus_or_with_hidden_ones_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    for variable, has_gpu in ((None, False), ('-1', True)):
        monkeypatch.setattr(
            'tf_cnn.machine.visible_gpus.has_nvidia_gpu', lambda environ, answer=has_gpu: answer
        )
        monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
        if variable:
            monkeypatch.setenv('CUDA_VISIBLE_DEVICES', variable)
        else:
            assert not show_gpus(0)
            assert divide_gpus(1, 2, os.environ) is None
        assert not show_gpus(1, (0, 2))
        assert os.environ.get('CUDA_VISIBLE_DEVICES') == variable


@pytest.mark.usefixtures('four_gpus')
def test_the_launcher_shares_out_all_gpus_of_the_machine():
    assert divide_gpus(2, 2, os.environ) == ['0,1', '2,3']
    assert divide_gpus(1, 2, os.environ) == ['0', '1']
    assert divide_gpus(0, 2, os.environ) == ['', '']
    with refused('--num_gpus=2', '3 workers', '6 GPUs', '4'):
        divide_gpus(2, 3, os.environ)
    # A variable with the GPUs of one worker is too short for two.
    with refused('--num_gpus=1', '2 GPUs', 'CUDA_VISIBLE_DEVICES=3'):
        divide_gpus(1, 2, listing('3'))


@pytest.mark.usefixtures('four_gpus')
@pytest.mark.parametrize('first', [2, 0])
def test_a_later_run_in_the_process_uses_the_gpus_of_the_first(first):
    expected = '0,1'[: 2 * first]
    # TensorFlow finds the visible GPUs.
    gpus = [object()] * first
    for needed in (first, *range(first, -1, -1)):
        visible = show_gpus(needed)
        with mock.patch.object(tf.config, 'list_physical_devices', return_value=gpus):
            THIS_PROCESS.start_tensorflow(ProcessSettings(visible))
        assert (
            os.environ['CUDA_VISIBLE_DEVICES']
            == THIS_PROCESS.setting('CUDA_VISIBLE_DEVICES')
            == expected
        )
    with refused(
        'CUDA_VISIBLE_DEVICES=0', f'had CUDA_VISIBLE_DEVICES={expected}', 'earlier', 'new process'
    ):
        show_gpus(first + 1)


# Makes the plan of each case, (flags, environment), in a forked process on a host with four GPUs.
# Prints CUDA_VISIBLE_DEVICES of the process, the devices of the towers, and CUDA_VISIBLE_DEVICES in
# the result.
PLAN_EACH = """
import json, os, sys
from tf_cnn.plan.parsing import make_params
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.plan import make_plan
from tf_cnn.machine.this_process import THIS_PROCESS
from tf_cnn.machine.gpus import VISIBLE_VARIABLE
import tensorflow.compat.v1 as tf
def listed(kind):
    # What TensorFlow would see: the GPUs that are shown.
    shown = os.environ.get(VISIBLE_VARIABLE)
    names = '0,1,2,3' if shown is None else shown
    return [object()] * len([name for name in names.split(',') if name])
tf.config.list_physical_devices = listed
settings, cases = json.loads(sys.argv[1])
for name, (flags, environ, _) in cases.items():
    pid = os.fork()
    if not pid:
        os.environ.update(environ)
        plan = make_plan(make_params(**settings, **flags), ProcessEnvironment())
        THIS_PROCESS.apply(plan.session.process)
        towers = plan.devices.towers if hasattr(plan, 'devices') else None
        stored = getattr(plan, 'environment', {}).get(VISIBLE_VARIABLE)
        found = [os.environ.get(VISIBLE_VARIABLE), towers, stored]
        print(json.dumps([name, found]), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.long
@pytest.mark.distributed
def test_a_process_sees_its_gpus_before_tensorflow_looks(tmp_path):
    # By name: the flags and environment of a process, and what it prints.
    workers: dict[str, Any] = {'worker_hosts': 'localhost:1,localhost:2'}
    peer_1 = COLLECTIVE | workers | {'job_name': 'worker', 'task_index': 1, 'device': 'gpu'}
    controller = workers | {
        'variable_update': 'distributed_all_reduce',
        'controller_host': '10.0.0.9:2222',
        'job_name': 'controller',
        'num_gpus': 2,
    }
    towers = [f'/job:worker/task:{task}/gpu:{gpu}' for task in range(2) for gpu in range(2)]
    four = listing('0,1,2,3')
    one_gpu, two_gpus = ['/gpu:0'], ['/gpu:0', '/gpu:1']
    processes: dict[str, tuple[Mapping[str, Any], Mapping[str, str], list[Any]]] = {
        'alone': ({}, {}, ['0', one_gpu, '0']),
        'alone with two': ({'num_gpus': 2}, listing('3,1,0'), ['3,1', two_gpus, '3,1']),
        'on the CPU': ({'device': 'cpu', 'num_gpus': 2}, {}, ['', ['/cpu:0', '/cpu:1'], '']),
        'worker 1': (peer_1 | {'num_gpus': 2}, {}, ['2,3', two_gpus, '2,3']),
        'worker 1, pinned': (peer_1, listing('1'), ['1', one_gpu, '1']),
        'ps': (workers | {'ps_hosts': 'localhost:3', 'job_name': 'ps'}, {}, ['', None, None]),
        'controller': (controller, {}, ['', towers, '']),
        'controller on the CPU': (
            controller | {'device': 'cpu'},
            {},
            ['', [name.replace('gpu', 'cpu') for name in towers], ''],
        ),
        'its worker': (
            controller | {'job_name': 'worker', 'task_index': 1},
            {},
            ['2,3', None, None],
        ),
        'Slurm': ({}, slurm_step(2, SLURM_GPUS_ON_NODE='4', **four), ['1', one_gpu, '1']),
        'Slurm, pinned': (
            {},
            slurm_step(2, SLURM_GPUS_ON_NODE='2', **listing('1')),
            ['1', one_gpu, '1'],
        ),
        'Slurm, its ps': ({}, slurm_step(0, **four), ['', None, None]),
        'Open MPI': (COLLECTIVE, open_mpi(2, 4, 4), ['2', one_gpu, '2']),
    }
    write_pynvml(tmp_path, 4)
    arguments = json.dumps([{'model': 'lenet'}, processes])
    out = run_in_fork(PLAN_EACH, tmp_path, arguments, CUDA_VISIBLE_DEVICES=None)
    results = dict(json.loads(line) for line in out.splitlines())
    assert results == {name: expected for name, (*_, expected) in processes.items()}
