"""Planners need no TensorFlow, and change nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tf_cnn_benchmarks
from params import make_params
from planning.environment import Environment
from planning.process_settings import choose_start
from planning.processes import find_processes
from planning.this_process import INTRA, ProcessSettings, ThisProcess, VisibleGpus
from tests.support.outputs import check_line, refused

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent


# A machine with two GPUs that nobody opens, planned without TensorFlow.
_PLANNERS = """
import os, sys
import planning.machine
from params import make_params
from planning.environment import Environment
from planning.this_process import ThisProcess, VisibleGpus
from planning.counts import count_steps
from planning.data import find_data
from planning.machine import find_machine
from planning.processes import find_processes
from planning.subject import find_subject
from planning.machine import place_variables

planning.machine.capabilities_of = lambda gpus: [(8, 0)] * len(gpus)
before = dict(os.environ)
environment, warnings = Environment({}, ThisProcess({})), []
params = make_params(model='resnet50', num_gpus=2, precision='bf16', batch_size=8, variable_update='replicated')
processes = find_processes(params, environment, warnings)
subject = find_subject(params, reads=True)
data = find_data(params, subject, warnings)
counts = count_steps(params, processes, subject, data)
shown = VisibleGpus('0,1', is_share=False)
machine = find_machine(params, environment, processes, shown, ['one', 'another'])
places = place_variables(params, processes, machine, 'bfloat16')
print(machine.towers, machine.data_format, machine.data_format_reason, counts.global_batch_size, places.transfer)
assert 'tensorflow' not in sys.modules
assert before == dict(os.environ)
assert not warnings
"""


def test_planners_need_no_tensorflow_and_change_nothing() -> None:
    ran = subprocess.run([sys.executable, '-c', _PLANNERS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "('/gpu:0', '/gpu:1') NHWC bf16 on GPUs of compute capability 8.0 16 bfloat16\n"


def test_a_process_that_may_be_one_of_several_says_that_it_runs_alone() -> None:
    environment = Environment({'RANK': '1', 'WORLD_SIZE': '3'})
    warnings: list[str] = []
    find_processes(make_params(), environment, warnings)
    (warning,) = warnings
    check_line(warning, 'RANK=1', 'WORLD_SIZE=3', 'alone', '--worker_hosts', '--task_index')
    named = make_params(worker_hosts='a:1', variable_update='replicated')
    find_processes(named, environment, warnings)
    assert len(warnings) == 1


def test_processes_that_horovod_did_not_connect_are_refused() -> None:
    class Alone:
        size = local_size = lambda self: 1
        rank = local_rank = lambda self: 0

    params = make_params(variable_update='horovod')
    with mock.patch('cluster.horovod_worker.load_horovod', return_value=Alone()):
        warnings: list[str] = []
        find_processes(params, Environment({}), warnings)
        assert not warnings
        with refused('PMI_RANK=1', '3 processes', 'Horovod'):
            find_processes(params, Environment({'PMI_RANK': '1', 'PMI_SIZE': '3'}), [])


def test_a_process_knows_what_its_user_has_set() -> None:
    environ = {'OF_THE_USER': '1', 'CUDA_VISIBLE_DEVICES': '3,4'}
    process = ThisProcess(environ)
    process.show(VisibleGpus('3', is_share=False))
    process.apply(ProcessSettings(variables={'TF_SYNC_ON_FINISH': '1', 'TF_AUTOTUNE_THRESHOLD': None}))
    assert environ == {'OF_THE_USER': '1', 'CUDA_VISIBLE_DEVICES': '3', 'TF_SYNC_ON_FINISH': '1'}
    assert process.environment == {'OF_THE_USER': '1', 'CUDA_VISIBLE_DEVICES': '3,4'}
    # A later run may leave a variable as it is.
    process.apply(ProcessSettings())
    assert environ['TF_SYNC_ON_FINISH'] == '1'


_WORKER = {'job_name': 'worker', 'ps_hosts': 'a:1', 'worker_hosts': 'b:1,c:1'}

# A thread writes and frees memory, as those of TensorFlow do: blocks that fit into a heap of an arena, and larger ones.
_FREES_MEMORY = """
import resource, sys, threading
from planning.this_process import keep_memory

if sys.argv[1:] == ['keep']:
    keep_memory()
import numpy as np

def take_steps():
    for step in range(6):
        if step == 1:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for mib in (1, 8, 100):
            np.full(mib << 20, step, np.uint8)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=take_steps)
thread.start()
thread.join()
"""


def test_memory_that_is_kept_is_not_mapped_anew() -> None:
    def page_faults(*words: str) -> int:
        command = [sys.executable, '-c', _FREES_MEMORY, *words]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout)

    assert 10 * page_faults('keep') < page_faults()


@pytest.mark.parametrize(
    ('flags', 'variables', 'keeps', 'num_warnings'),
    [
        ({}, {}, False, 0),
        ({'keep_memory': True}, {}, True, 0),
        ({'keep_memory': True}, {'LD_PRELOAD': 'libjemalloc.so.2'}, False, 1),
        (_WORKER, {}, True, 0),
        ({**_WORKER, 'keep_memory': False}, {}, False, 0),
        (_WORKER, {'MALLOC_ARENA_MAX': '4'}, False, 0),
    ],
)
def test_processes_with_a_server_keep_memory_unless_the_user_chose_otherwise(
    flags: dict[str, Any], variables: dict[str, str], keeps: bool, num_warnings: int
) -> None:
    params, environment = make_params(device='cpu', **flags), Environment(variables)
    warnings: list[str] = []
    processes = find_processes(params, environment, warnings)
    found = choose_start(params, environment, processes, None, warnings)
    assert (found.keeps_memory, len(warnings)) == (keeps, num_warnings)
    for warning in warnings:
        check_line(warning, '--keep_memory=True', *variables)


def test_a_later_run_with_other_settings_is_refused_and_changes_nothing() -> None:
    environ: dict[str, str] = {}
    process = ThisProcess(environ)
    variables = {'TF_SYNC_ON_FINISH': '1', 'TF_AUTOTUNE_THRESHOLD': None}
    process.apply(ProcessSettings(variables=variables, flags={INTRA: 3, '--xla': False}))
    assert process.setting(INTRA) == 3
    for settings, facts in (
        (ProcessSettings(flags={INTRA: 4}), ['--num_intra_threads=4', '--num_intra_threads=3']),
        (ProcessSettings(flags={'--xla': True}), ['--xla=True', '--xla=False']),
        (ProcessSettings(flags={'--use_numa_affinity': 'x', '--xla': True}), ['--xla=True']),
        (ProcessSettings(variables={'TF_SYNC_ON_FINISH': '0'}), ['TF_SYNC_ON_FINISH=0', 'TF_SYNC_ON_FINISH=1']),
        (ProcessSettings(variables={'TF_SYNC_ON_FINISH': None}), ['TF_SYNC_ON_FINISH is not set']),
        (ProcessSettings(variables={'TF_AUTOTUNE_THRESHOLD': '3'}), ['TF_AUTOTUNE_THRESHOLD=3', 'did not set it']),
    ):
        with refused(*facts, 'earlier run', 'start a new process'):
            process.apply(settings)
    assert environ == {'TF_SYNC_ON_FINISH': '1'}
    assert process.setting('--use_numa_affinity') is None
    process.apply(ProcessSettings(variables=variables, flags={INTRA: 3}))
