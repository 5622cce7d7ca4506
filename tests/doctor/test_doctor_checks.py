"""What single checks find: on machines made of files, in graphs, on virtual devices, and in numbers that are wrong."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from doctor import benchmarks, host, start, sums
from doctor.check_table import CHECKS, Check
from doctor.placement import list_moved
from doctor.verdicts import Context, Outcome, Verdict, ok
from managers.all_reduce import by_copies
from params import parse_argv
from tests.support.machines import CONTAINER_V2, epyc_2_sockets, write_files

pytestmark = pytest.mark.graph

HERE = Context()


@pytest.mark.parametrize(
    'check',
    [check for check in CHECKS if check.name.startswith(('resnet50/', 'real_data/'))],
    ids=lambda check: check.name,
)
def test_every_row_that_runs_the_program_has_flags_that_exist(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def parses(context: Context, flags: Sequence[str]) -> Verdict:
        assert parse_argv(flags).warnings == ()
        return ok('no warning')

    for function in ('throughput', 'real_data'):
        monkeypatch.setattr(benchmarks, function, parses)
    assert check.run(HERE).outcome is Outcome.OK


def test_names_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_a_machine_without_limits_is_fine(tmp_path: Path) -> None:
    root = str(write_files(tmp_path, epyc_2_sockets()))
    found = host.cores(HERE, root, {})
    assert (found.outcome, found.figures['num_cores']) == (Outcome.OK, 96)
    assert 'AMD EPYC 7451' in found.found
    assert host.clock(HERE, root).outcome is Outcome.OK


def test_a_quota_of_less_than_the_cores_is_a_warning_that_says_how_many_threads(tmp_path: Path) -> None:
    quota = {**CONTAINER_V2, 'sys/fs/cgroup/cpu.max': '50000 100000\n'}
    found = host.cores(HERE, str(write_files(tmp_path, {**epyc_2_sockets(), **quota})), {})
    assert found.outcome is Outcome.WARNING
    assert '0.5 cores' in found.found
    assert '--num_intra_threads=1' in (found.advice or '')


def test_threads_of_the_environment_that_do_not_fit_the_cores_are_a_warning(tmp_path: Path) -> None:
    root = str(write_files(tmp_path, epyc_2_sockets()))
    usable = len(os.sched_getaffinity(0))
    found = host.cores(HERE, root, {'OMP_NUM_THREADS': str(usable + 1)})
    assert (found.outcome, found.advice) == (Outcome.WARNING, 'unset OMP_NUM_THREADS')
    assert host.cores(HERE, root, {'OMP_NUM_THREADS': str(usable)}).outcome is Outcome.OK


def test_a_container_with_little_memory_is_a_warning(tmp_path: Path) -> None:
    meminfo = {'proc/meminfo': 'MemTotal: 263846044 kB\nMemAvailable: 163846044 kB\n'}
    root = write_files(tmp_path, {**CONTAINER_V2, **meminfo})
    found = host.memory(HERE, str(root))
    assert (found.outcome, found.figures['cgroup_bytes']) == (Outcome.WARNING, 4 * 2**30)
    (root / 'sys/fs/cgroup/memory.max').write_text(f'{8 * 2**30}\n')
    assert host.memory(HERE, str(root)).outcome is Outcome.OK
    (root / 'sys/fs/cgroup/memory.current').write_text(f'{5 * 2**30}\n')
    found = host.memory(HERE, str(root))
    assert (found.outcome, found.found.startswith('3.0 GiB of')) == (Outcome.WARNING, True)
    (root / 'sys/fs/cgroup/memory.max').write_text('max\n')
    assert host.memory(HERE, str(root)).outcome is Outcome.OK


@pytest.mark.parametrize(('driver', 'outcome'), [('acpi-cpufreq', Outcome.WARNING), ('intel_pstate', Outcome.OK)])
def test_powersave_is_slow_unless_the_processor_chooses_its_clock(
    tmp_path: Path, driver: str, outcome: Outcome
) -> None:
    folder = 'sys/devices/system/cpu/cpufreq/policy0'
    files = {f'{folder}/scaling_governor': 'powersave\n', f'{folder}/scaling_driver': f'{driver}\n'}
    assert host.clock(HERE, str(write_files(tmp_path, files))).outcome is outcome


def test_a_missing_folder_of_shared_memory_is_a_warning(tmp_path: Path) -> None:
    assert host.shared_memory(HERE, str(tmp_path / 'shm')).outcome is Outcome.WARNING


def test_an_op_that_ran_elsewhere_than_asked_for_is_found() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.random.uniform([4], name='anywhere')
        with tf.device('/gpu:0'):
            moved = tf.tanh(x, name='moved')
        with tf.device('/cpu:0'):
            total = tf.reduce_sum(moved, name='kept')
    metadata = tf.RunMetadata()
    # Nothing else makes TensorFlow ignore what a graph asks for. With a GPU, none is visible to this session.
    config = tf.ConfigProto(allow_soft_placement=True, device_count={'GPU': 0})
    with tf.Session(graph=graph, config=config) as session:
        session.run(total, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    ran = [node for part in metadata.partition_graphs for node in part.node]
    (found,) = list_moved(graph.as_graph_def().node, ran)
    assert found == {
        'name': 'moved',
        'op': 'Tanh',
        'dtype': 'float32',
        'asked': 'GPU:0',
        'ran': 'CPU:0',
        'is_floating': True,
    }


def test_tensorflow_computes_here() -> None:
    found = start.devices(HERE)
    assert (found.outcome, found.figures['tensorflow']) == (Outcome.OK, tf.__version__)
    assert '/cpu:0' in found.found


def test_a_gpu_that_tensorflow_ignores_beside_others_is_a_warning_with_the_variables_to_set() -> None:
    assert start.compare_counts('it computes', 2, 2, {}, {}).outcome is Outcome.OK
    found = start.compare_counts('it computes', 1, 3, {'TF_MIN_GPU_MULTIPROCESSOR_COUNT': '20'}, {'num_gpus': 1})
    assert (found.outcome, found.figures) == (Outcome.WARNING, {'num_gpus': 1})
    assert 'ignores 2 of 3' in found.found
    facts = ['fewer than 20', 'TF_MIN_GPU_MULTIPROCESSOR_COUNT=1', 'CUDA_VISIBLE_DEVICES']
    assert [fact for fact in facts if fact not in (found.advice or '')] == []


OPENS_NO_DEVICE = """
import sys
from doctor import benchmarks, benchmarks
from tensorflow.python.eager import context
benchmarks._NUM_SHARDS, benchmarks._IMAGES_PER_SHARD = 1, 1
benchmarks.write_shards(sys.argv[1])
assert not context.context()._initialized, 'devices are open'
"""


def test_photographs_are_as_large_as_those_of_imagenet_and_making_them_opens_no_gpu(tmp_path: Path) -> None:
    # In this process, other tests have opened what there is.
    root = Path(benchmarks.__file__).parent.parent
    subprocess.run([sys.executable, '-c', OPENS_NO_DEVICE, str(tmp_path)], cwd=root, check=True)
    (record,) = tf.io.tf_record_iterator(str(tmp_path / 'train-00000-of-00001'))
    features = tf.train.Example.FromString(record).features.feature
    assert 1 <= features['image/class/label'].int64_list.value[0] <= 1000
    (jpeg,) = features['image/encoded'].bytes_list.value
    assert 90e3 < len(jpeg) < 140e3
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.io.decode_jpeg(jpeg)).shape == (375, 500, 3)


TOWERS = ('/cpu:0', '/cpu:1', '/cpu:2')


@pytest.mark.parametrize('dtype', ['float32', 'float16', 'bfloat16'])
def test_sums_of_every_type_are_exact(dtype: str) -> None:
    assert sums.list_faults(TOWERS, by_copies(TOWERS), tf.as_dtype(dtype)) == []


@pytest.mark.parametrize('algorithm', ['nccl', sums.COLLECTIVE])
def test_what_nccl_cannot_sum_is_not_asked_of_it(algorithm: str) -> None:
    found = sums.exact_sums(Context(num_gpus=2), algorithm, 'bfloat16')
    assert found.outcome is Outcome.SKIPPED
    assert 'bfloat16' in found.found


def test_collective_sums_have_the_order_of_a_run() -> None:
    with tf.Graph().as_default() as graph:
        reduce = sums.algorithm_over(TOWERS, sums.COLLECTIVE)
        for index in range(2):
            reduce([tf.ones([1])] * len(TOWERS), index)
    ops = [op for op in graph.get_operations() if op.type == 'CollectiveReduce']
    (first, second) = (ops[: len(TOWERS)], ops[len(TOWERS) :])
    assert {tuple(op.get_attr('wait_for')) for op in second} == {(first[0].get_attr('instance_key'),)}


def test_sums_that_miss_a_tower_are_found_on_its_device() -> None:
    def forgets_the_last(tensors: Sequence[Any], index: int) -> list[Any]:
        right = by_copies(TOWERS)(tensors, index)
        return right if index else [*right[:-1], tf.add_n(tensors[:-1])]

    faults = sums.list_faults(TOWERS, forgets_the_last, tf.float32)
    assert len(faults) == 1
    assert '1 of 1 sums' in faults[0]
    assert TOWERS[-1] in faults[0]


@pytest.mark.parametrize('algorithm', ['xring', sums.COLLECTIVE])
def test_an_algorithm_is_exact_on_virtual_devices(algorithm: str) -> None:
    told: list[str] = []
    found = sums.exact_sums(Context(doing=told.append), algorithm, 'bfloat16')
    assert (found.outcome, found.figures['numbers']) == (Outcome.OK, [2, 4])
    assert [algorithm in line for line in told] == [True, True]
