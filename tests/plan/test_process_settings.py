"""Plans of processes, their settings and threads, and of evaluations."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from tests.support.files import write_files
from tests.support.outputs import check_line, refused
from tests.support.programs import run_python
from tests.support.runs import params_of
from tf_cnn.machine.processors import process_cores
from tf_cnn.machine.this_process import INTRA, ProcessEnvironment, ProcessSettings, ThisProcess
from tf_cnn.plan.cluster_role import find_cluster_role
from tf_cnn.plan.devices import Devices
from tf_cnn.plan.evaluations import Evaluations
from tf_cnn.plan.process_settings import (
    Threads,
    choose_start,
    choose_threads,
)

pytestmark = pytest.mark.unit


def test_a_process_that_seems_one_of_several_warns_that_it_runs_alone():
    environment = ProcessEnvironment({'RANK': '1', 'WORLD_SIZE': '3'})
    warnings: list[str] = []
    find_cluster_role(params_of(), environment, warnings)
    (warning,) = warnings
    check_line(warning, 'RANK=1', 'WORLD_SIZE=3', 'alone', '--worker_hosts', '--task_index')
    params = params_of('--worker_hosts=a:1 --variable_update=replicated')
    find_cluster_role(params, environment, warnings)
    assert len(warnings) == 1


def test_a_process_knows_the_users_variables():
    environ = {'OF_THE_USER': '1', 'CUDA_VISIBLE_DEVICES': '3,4'}
    process = ThisProcess(environ)
    process.show_gpus('3')
    process.apply(ProcessSettings(values={'TF_SYNC_ON_FINISH': '1', 'TF_AUTOTUNE_THRESHOLD': None}))
    assert environ == {'OF_THE_USER': '1', 'CUDA_VISIBLE_DEVICES': '3', 'TF_SYNC_ON_FINISH': '1'}
    assert process.environment == {'OF_THE_USER': '1', 'CUDA_VISIBLE_DEVICES': '3,4'}
    # A later run may leave a variable as it is.
    process.apply(ProcessSettings())
    assert environ['TF_SYNC_ON_FINISH'] == '1'


# A thread writes and frees memory, as TensorFlow's threads do: blocks that fit into a heap of an
# arena, and larger blocks.
_FREES_MEMORY = """
import resource, sys, threading
from tf_cnn.machine.this_process import keep_memory

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


def test_keep_memory_avoids_page_faults():
    def page_faults(*words: str) -> int:
        return int(run_python(_FREES_MEMORY, *words).out)

    assert 10 * page_faults('keep') < page_faults()


_WORKER = '--job_name=worker --ps_hosts=a:1 --worker_hosts=b:1,c:1'


@pytest.mark.parametrize(
    ('flags', 'variables', 'keeps_memory'),
    [
        ('', {}, False),
        (_WORKER, {}, True),
        (_WORKER, {'LD_PRELOAD': 'libjemalloc.so.2'}, False),
        (_WORKER, {'MALLOC_ARENA_MAX': '4'}, False),
    ],
)
def test_processes_with_a_server_keep_memory_unless_the_environment_sets_malloc(
    flags, variables, keeps_memory
):
    params, environment = params_of(f'--device=cpu {flags}'), ProcessEnvironment(variables)
    warnings: list[str] = []
    cluster_role = find_cluster_role(params, environment, warnings)
    settings = choose_start(params, environment, cluster_role, None, warnings)
    assert settings.keeps_memory == keeps_memory
    assert not warnings


@pytest.mark.parametrize(
    ('flags', 'variables', 'size'),
    [
        ('', {}, '4294967296'),
        ('', {'CUDA_CACHE_MAXSIZE': '1'}, None),
        ('--device=cpu', {}, None),
    ],
)
def test_the_driver_keeps_all_kernels_that_it_compiles_unless_the_user_limits_them(
    flags, variables, size, tmp_path
):
    params, warnings = params_of(flags), list[str]()
    environment = ProcessEnvironment({'CUDA_CACHE_PATH': str(tmp_path / 'cache'), **variables})
    cluster_role = find_cluster_role(params, environment, warnings)
    settings = choose_start(params, environment, cluster_role, '0', warnings)
    assert settings.values.get('CUDA_CACHE_MAXSIZE') == size
    assert not warnings
    assert (tmp_path / 'cache').is_dir() == (size is not None)


def test_a_later_run_with_other_settings_is_refused_and_changes_nothing():
    environ: dict[str, str] = {}
    process = ThisProcess(environ)
    variables = {'TF_SYNC_ON_FINISH': '1', 'TF_AUTOTUNE_THRESHOLD': None}
    process.apply(ProcessSettings(values={**variables, INTRA: 3, '--xla': False}))
    assert process.setting(INTRA) == 3
    refusals: tuple[tuple[dict[str, object], list[str]], ...] = (
        ({INTRA: 4}, ['--num_intra_threads=4', '--num_intra_threads=3']),
        ({'--xla': True}, ['--xla=True', '--xla=False']),
        ({'--use_numa_affinity': 'x', '--xla': True}, ['--xla=True']),
        ({'TF_SYNC_ON_FINISH': '0'}, ['TF_SYNC_ON_FINISH=0', 'TF_SYNC_ON_FINISH=1']),
        ({'TF_SYNC_ON_FINISH': None}, ['TF_SYNC_ON_FINISH=None']),
        ({'TF_AUTOTUNE_THRESHOLD': '3'}, ['TF_AUTOTUNE_THRESHOLD=3']),
    )
    for values, facts in refusals:
        with refused(*facts, 'earlier run', 'start a new process'):
            process.apply(ProcessSettings(values=values))
    assert environ == {'TF_SYNC_ON_FINISH': '1'}
    assert process.setting('--use_numa_affinity') is None
    process.apply(ProcessSettings(values={**variables, INTRA: 3}))


# ---- threads -------------------------------------------------------------------------------------


def threads_of(
    flags: str = '',
    num_towers: int = 1,
    earlier: int | None = None,
    root: Path = Path('/'),
    variables: Mapping[str, str] | None = None,
) -> tuple[Threads, list[str]]:
    """Returns the threads of a run on 12 cores, and warnings.

    earlier: the intra-op threads of an earlier run of the process.
    """
    process = ThisProcess({})
    if earlier is not None:
        process.record({INTRA: earlier})
    environment = ProcessEnvironment(variables or {}, process, root)
    devices = Devices(tuple(f'/cpu:{index}' for index in range(num_towers)), ('/cpu:0',))
    warnings: list[str] = []
    params = params_of(f'--device=cpu {flags}')
    return choose_threads(params, environment, devices, 12, warnings), warnings


@pytest.mark.parametrize(
    ('flags', 'num_towers', 'quota', 'threads', 'reason'),
    [
        ('', 1, 'max', (0, 0), 'one tower'),
        # One pool serves all towers.
        ('', 3, 'max', (0, 0), '3 towers share 12 cores'),
        ('', 12, 'max', (1, 0), '12 towers'),
        ('', 64, 'max', (1, 0), '64 towers'),
        ('', 1, 250_000, (2, 3), '2.5 cores'),
        ('', 1, 50_000, (1, 2), '0.5 cores'),
        ('', 4, 800_000, (8, 8), '8 cores'),
        ('', 3, 250_000, (1, 3), '3 towers'),
        ('', 1, 1_200_000, (0, 0), 'one tower'),
        ('--num_intra_threads=0', 3, 'max', (0, 0), '--num_intra_threads=0'),
        (
            '--num_intra_threads=5 --num_inter_threads=2',
            3,
            400_000,
            (5, 2),
            '--num_inter_threads=2',
        ),
        ('--num_inter_threads=2', 3, 600_000, (6, 2), '6 cores'),
    ],
)
def test_towers_share_the_cores_that_the_process_may_use(
    tmp_path, flags, num_towers, quota, threads, reason
):
    """The quota is set for 100 ms in a control group of version 2."""
    files = {
        'proc/self/cgroup': '0::/group\n',
        'proc/self/mountinfo': '31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n',
        'sys/fs/cgroup/group/cpu.max': f'{quota} 100000\n',
    }
    plan, _ = threads_of(flags, num_towers, root=write_files(tmp_path, files))
    assert (plan.intra_op, plan.inter_op) == threads
    assert reason in plan.reason


def test_a_later_run_of_a_process_has_the_threads_of_the_first_unless_a_flag_differs():
    for earlier in (0, 1, 13):
        later, warnings = threads_of(earlier=earlier)
        assert (later.intra_op, warnings) == (earlier, [])
    assert 'earlier run' in later.reason
    assert threads_of('--num_intra_threads=3', 2, 7)[0].intra_op == 3


def test_threads_in_the_environment_have_an_effect_or_a_warning():
    intra, inter = 'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS'
    both = {intra: '3', inter: '4'}
    threads, warnings = threads_of(variables=both)
    assert (threads.intra_op, threads.inter_op, warnings) == (3, 4, [])
    assert f'{intra}=3' in threads.reason
    # The towers of a CPU share its cores, and a given flag counts.
    threads, (line,) = threads_of(num_towers=12, variables=both)
    assert (threads.intra_op, threads.inter_op) == (1, 4)
    check_line(line, f'{intra}=3 has no effect', '12 towers', '--num_intra_threads=3')
    flags = '--num_intra_threads=5 --num_inter_threads=2'
    threads, (of_intra, of_inter) = threads_of(flags, variables=both)
    assert (threads.intra_op, threads.inter_op) == (5, 2)
    check_line(of_intra, f'{intra}=3 has no effect', '--num_intra_threads=5')
    check_line(of_inter, f'{inter}=4 has no effect', '--num_inter_threads=2')
    assert threads_of(flags, variables={intra: '5', inter: '2'})[1] == []
    threads, warnings = threads_of(variables={inter: '1'})
    assert (threads.inter_op, warnings) == (1, [])
    for text in ('all', '-1', '2.5'):
        _, (line,) = threads_of(variables={inter: text})
        check_line(line, f'{inter}={text} has no effect')


def test_openmp_variables_are_named_as_ignored_if_tensorflow_has_no_openmp():
    environment = ProcessEnvironment({'OMP_NUM_THREADS': '4', 'OMP_DISPLAY_ENV': 'true'})
    params, warnings = params_of(), list[str]()
    choose_start(params, environment, find_cluster_role(params, environment, []), None, warnings)
    (line,) = warnings
    check_line(line, 'OMP_NUM_THREADS=4 has no effect', '--num_intra_threads')


def test_a_process_that_may_use_more_cores_than_slurm_gives_it_is_warned():
    num_cores, warnings = len(process_cores()), list[str]()
    for cpus, flags in ((num_cores, ''), (0, '--num_intra_threads=1'), (num_cores - 1, '')):
        assert not warnings
        environment = ProcessEnvironment({'SLURM_CPUS_PER_TASK': str(cpus)})
        params = params_of(flags)
        role = find_cluster_role(params, environment, [])
        choose_start(params, environment, role, None, warnings)
    (line,) = warnings
    check_line(line, f'SLURM_CPUS_PER_TASK={cpus}', f'--num_intra_threads={cpus}', '--cpu-bind')


# ---- evaluations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('every', 'due'),
    [('3', [3, 6, 9]), ('2.5', [3, 5, 8, 10]), ('0.5', list(range(1, 11))), ('100', [])],
)
def test_an_evaluation_follows_the_step_that_reaches_its_time(every, due):
    schedule = Evaluations(every=Fraction(every))
    assert [step for step in range(1, 11) if schedule.is_due(step, step - 1)] == due


def test_a_schedule_names_the_evaluations_that_the_run_does_not_reach():
    every, at = Evaluations(every=Fraction('2.5')), Evaluations(at=frozenset([3, 8, 12]))
    assert every.warning(0, 3) is None
    # From step 3 to step 4; the next evaluation would be after step 5.
    check_line(every.warning(3, 4), '3', '4', '5')
    assert at.warning(5, 12) is None
    # Two of its evaluations are after the last step, 7.
    assert '3' not in check_line(at.warning(0, 7), '7', '8, 12')


def test_an_evaluation_is_due_though_another_worker_took_its_step():
    for schedule in (Evaluations(every=Fraction(4)), Evaluations(at=frozenset([4, 8]))):
        assert [step for step in (3, 6, 7, 9, 11) if schedule.is_due(step, step - 3)] == [6, 9]
