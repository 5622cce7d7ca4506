"""Whole runs of clusters: evaluations by all workers, skipped steps, users' models."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from tests.distributed.clusters import (
    SKIPPED,
    TOTAL_LINE,
    assert_each_names,
    training,
)
from tests.support.files import quoted
from tests.support.images import NUM_LABELS, write_cifar, write_noise
from tests.support.machines import tf_config
from tests.support.programs import (
    PROGRAM,
    ROOT,
    Task,
    cluster,
    environment,
    processes,
    run,
)
from tests.support.runs import run_benchmark, values_in
from tf_cnn.inputs.layout import LABELS_FILE
from tf_cnn.launch.hosts import Command, reserve_addresses
from tf_cnn.results.document import Result, read_result
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint

pytestmark = pytest.mark.distributed

# Not divisible by the number of workers, the number of towers, or a batch size.
NUM_VALIDATION = 23
CPU = '--device=cpu --num_warmup_batches=0'
FLAGS = f'{CPU} --batch_size=4 --init_learning_rate=0.05'
PS = '--variable_update=parameter_server'
COLLECTIVE = '--variable_update=collective_all_reduce'
EVERY = '--eval_during_training_every_n_steps'
# Any accuracy is enough, so training stops long before its last step.
STOP = '--stop_at_top_1_accuracy=0 --num_batches=200'
# A network with few layers, one of them with moving averages, which one worker keeps.
MODEL = """
from tf_cnn_benchmarks import register_model

def network(cnn, x, num_classes):
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 8, 5, 'conv', strides=4), 'norm'))
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')

register_model('normed', network, image_size=32, learning_rate=0.1)
"""
ACCURACY = r'^Accuracy @ 1 = (\d\.\d{4}) Accuracy @ 5 = (\d\.\d{4}) \[(\d+) examples\]$'


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('data')
    write_noise(folder, NUM_VALIDATION)
    # The folder names its classes, so every model can train on it.
    (folder / 'model.py').write_text(MODEL)
    (folder / LABELS_FILE).write_text(''.join(f'class{number}\n' for number in range(NUM_LABELS)))
    return folder


def folders(data_dir: Path, folder: Path) -> str:
    return f'--data_dir={quoted(data_dir)} --train_dir={quoted(folder)}/train'


def train(flags: str, data_dir: Path, folder: Path, num_ps: int) -> tuple[list[Task], list[list]]:
    """Runs two workers; returns them, and the accuracies that each of them printed."""
    trained = run(
        f'{FLAGS} --num_batches=4 {folders(data_dir, folder)} {flags}', jobs={'ps': num_ps}
    )
    assert trained.code == 0
    workers = trained.tasks.trainers
    return workers, [worker.lines(ACCURACY) for worker in workers]


def evaluate(model: str, data_dir: Path, folder: Path) -> tuple[int | None, tuple[str, str, str]]:
    """Evaluates the last checkpoint; returns its step, and the accuracy as workers print it."""
    flags = f'--eval {model} --device=cpu {folders(data_dir, folder)}'
    [row] = run_benchmark(flags).result.evaluations
    assert row.num_images == NUM_VALIDATION
    return row.step, (f'{row.top_1:.4f}', f'{row.top_5:.4f}', str(NUM_VALIDATION))


# steps: all workers evaluate after these steps, and training ends with the last one.
@pytest.mark.usefixtures('forget_models')
@pytest.mark.parametrize(
    ('name', 'flags', 'num_ps', 'steps'),
    [
        ('normed', f'{PS} {EVERY}=2', 2, [2, 4]),
        ('lenet', f'{COLLECTIVE} {EVERY}=3 {STOP}', 0, [3]),
    ],
)
def test_all_workers_print_the_accuracy_that_one_process_measures(
    name, flags, num_ps, steps, data_dir, tmp_path
):
    model = f'--model={name} --model_file={quoted(data_dir)}/model.py'
    workers, printed = train(f'{model} {flags}', data_dir, tmp_path, num_ps)
    assert evaluate(model, data_dir, tmp_path) == (steps[-1], printed[0][-1])
    assert printed[1] == printed[0]
    for worker in workers:
        assert [*map(int, worker.lines(r'^Evaluating after .*\(global step (\d+)\)$'))] == steps
        stops = worker.lines(r'^Stopping after .*\(global step (\d+)\)')
        assert [*map(int, stops)] == (steps if STOP in flags else [])


def test_a_cluster_evaluates_as_one_process_does(data_dir, tmp_path):
    run_benchmark(f'{FLAGS} --model=lenet --num_batches=4 {folders(data_dir, tmp_path)}')
    before = latest_checkpoint(f'{tmp_path}/train')
    assert before
    assert checkpoint_step(before) == 4
    flags = f'{PS} --model=lenet --eval --num_eval_epochs=1'
    _, printed = train(flags, data_dir, tmp_path, num_ps=1)
    _, line = evaluate('--model=lenet', data_dir, tmp_path)
    assert printed == [[line], [line]]
    assert latest_checkpoint(f'{tmp_path}/train') == before


def test_all_workers_skip_the_same_steps_and_the_scale_is_saved(tmp_path):
    flags = (
        f'{CPU} --model=trivial --data_name=cifar10 --batch_size=1 --num_batches=8 '
        f'--train_dir={quoted(tmp_path)}/train --precision=fp16 --fp16_enable_auto_loss_scale '
        f'--fp16_loss_scale={2**30} --fp16_inc_loss_scale_every_n=1 {COLLECTIVE}'
    )
    trained = run(flags, jobs={'workers': 2})
    reader = tf.train.load_checkpoint(str(tmp_path / 'train'))
    num_skipped = int(reader.get_tensor('loss_scale/skipped_steps'))
    for worker in trained.tasks.trainers:
        assert worker.lines(SKIPPED) == [str(num_skipped)]
    assert reader.get_tensor('global_step') == 8
    assert reader.get_tensor('loss_scale/scale') == 2.0 ** (30 + 8 - 2 * num_skipped)
    assert num_skipped > 0


USER_MODEL = """
from models.registry import register_model
def network(cnn, x, num_classes):
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')
register_model('own', network, data_set='cifar10', image_size=32, learning_rate=0.05)
"""


def test_a_forward_only_cluster_computes_with_a_checkpoint_and_its_chief_prints_the_accuracy(
    tmp_path,
):
    # Images of four classes that a model learns. Of the validation images three have wrong labels.
    images, labels = np.zeros([40, 32, 32, 3], np.uint8), np.arange(40) % 4
    for image, label in zip(images, labels, strict=True):
        image[8 * label : 8 * label + 8] = 255
    write_cifar(tmp_path, images, labels)
    labels[:3] = (labels[:3] + 1) % 4
    write_cifar(tmp_path, images[:13], labels[:13], 'validation')
    (tmp_path / 'own.py').write_text(USER_MODEL)
    folder = quoted(tmp_path)
    flags = f'--model=own --model_file={folder}/own.py --data_dir={folder} --device=cpu'
    flags += f' --num_warmup_batches=1 --augmentation=none --train_dir={folder}/train'
    run(f'{flags} --batch_size=10 --num_batches=40')
    # Each batch has each image once. Workers share the steps: one may take all of a few.
    steps = '--forward_only --batch_size=13 --num_batches=200'
    chief, other = run(f'{flags} {steps} {PS}', jobs={'ps': 1}).tasks.trainers
    [(top_1, _, num_images)] = chief.lines(ACCURACY)
    assert top_1 == f'{10 / 13:.4f}'
    assert int(num_images) % 13 == 0
    checkpoint = re.escape(f'{tmp_path}/train/model.ckpt-41')
    assert len(chief.lines(f'weights of step 41: {checkpoint}$')) == 1
    assert not other.lines(ACCURACY)


def test_two_workers_on_arrays_take_the_steps_of_one_process_with_the_whole_batch(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, [40, 32, 32, 3], np.uint8)
    write_cifar(tmp_path, images, np.arange(40) % 10)
    flags = (
        f'--model=trivial --data_dir={quoted(tmp_path)} --data_name=cifar10 '
        '--augmentation=none --device=cpu --num_warmup_batches=1 --num_batches=6 '
        '--init_learning_rate=0.01'
    )
    alone = f'{flags} --batch_size=8 --train_dir={quoted(tmp_path)}/alone'
    assert tf_cnn_benchmarks.main(shlex.split(alone)) == 0
    two = f'{flags} {COLLECTIVE} --batch_size=4 --train_dir={quoted(tmp_path)}/two'
    run(two, jobs={'workers': 2})
    expected = values_in(tmp_path / 'alone')
    for name, value in values_in(tmp_path / 'two').items():
        np.testing.assert_allclose(value, expected[name], 1e-5, 1e-6, err_msg=name)


# Worker 0 takes its steps slowly. Worker 1 ends at its step WORKER_1_ENDS_AT.
UNEQUAL_MODEL = """
import itertools, os, sys, time
import tensorflow.compat.v1 as tf
from tf_cnn_benchmarks import register_model
steps = itertools.count(1)
def wait(images):
    if '--task_index=0' in sys.argv:
        time.sleep(0.7)
    elif next(steps) == WORKER_1_ENDS_AT:
        os._exit(9)
    return images
def network(cnn, images, num_classes):
    waited = tf.ensure_shape(tf.numpy_function(wait, [images], tf.float32), images.shape)
    return cnn.dense(cnn.global_avg_pool(waited), num_classes, 'logits')
register_model('unequal', network, data_set='cifar10')
"""


@pytest.mark.parametrize(('end', 'exit_codes'), [(None, (0, 0)), (6, (1, 9))])
def test_an_asynchronous_total_is_of_a_worker_that_timed_steps_else_a_fault(
    end, exit_codes, tmp_path
):
    path = tmp_path / 'unequal.py'
    path.write_text(UNEQUAL_MODEL.replace('WORKER_1_ENDS_AT', str(end)))
    flags = f'--model=unequal --model_file={quoted(path)}'
    flags += f' --result_file={quoted(tmp_path)}/result.json'
    lengths = '--num_warmup_batches=3 --num_batches=1'
    with training('asynchronous', f'{flags} {lengths}', tmp_path) as tasks:
        tasks.start()
        assert not tasks.still_running()
        workers = tasks.of('worker')
        assert tuple(worker.exit_code for worker in workers) == exit_codes
    totals = [worker.lines(TOTAL_LINE) for worker in workers]
    result = read_result(tmp_path / 'result.json')
    assert isinstance(result, Result)
    assert result.statistics.num_steps == 0
    assert all(worker.machine and 'seconds' in worker.noise for worker in result.workers)
    if end is None:
        assert totals == 2 * [[f'{result.images_per_second:.2f}']]
    else:
        assert totals == [[], []]
        assert_each_names(workers[:1], 'no worker timed a step', '--num_batches')


# A task of a cluster: the flags are given as a command line.
CALLER_IN_CLUSTER = f"""
import json, sys

sys.path.insert(0, {str(ROOT)!r})
import benchmark_cnn

flags = dict(word.removeprefix('--').split('=') for word in sys.argv[1:])
hosts = {{name: flags.pop(name).split(',') for name in ('ps_hosts', 'worker_hosts')}}
params = benchmark_cnn.setup(benchmark_cnn.make_params(**flags, **hosts))
bench = benchmark_cnn.BenchmarkCNN(params)
bench.print_info()
print(json.dumps(bench.run()))
"""


def test_parameter_servers_and_workers_run_from_python(tmp_path):
    script = tmp_path / 'caller.py'
    script.write_text(CALLER_IN_CLUSTER)
    flags = '--variable_update=parameter_server --num_batches=4 --num_warmup_batches=1'
    with cluster(f'--model=lenet --device=cpu --batch_size=2 {flags}', tmp_path, ps=1) as tasks:
        for task in tasks.values():
            task.argv[1] = str(script)
        tasks.start()
        tasks.assert_end(0)
    assert tasks['ps 0'].out == '{}\n'
    for worker in tasks.of('worker'):
        assert json.loads(worker.out.splitlines()[-1])['num_steps'] == 8
        assert worker.lines(TOTAL_LINE)


def test_processes_with_tf_config_train_and_end(tmp_path):
    """Kubeflow's operator starts all processes with the same flags, and TF_CONFIG."""
    argv = [
        *PROGRAM,
        *f'{FLAGS} --model=trivial --data_name=cifar10 --num_batches=5 {PS}'.split(),
    ]
    with reserve_addresses(3) as addresses:
        hosts = dict(zip(('chief', 'worker', 'ps'), ([host] for host in addresses), strict=True))
        commands = [Command(job, argv, environment(**tf_config(job, 0, **hosts))) for job in hosts]
        with processes(*(Task(command, tmp_path) for command in commands)) as tasks:
            tasks.start()
            tasks.assert_end(0)
    [total] = tasks['chief'].lines(TOTAL_LINE)
    assert tasks['worker'].lines(TOTAL_LINE) == [total]


def test_the_chief_starts_from_a_backbone_and_profiles(tmp_path):
    """Two parameter servers hold slices of the largest variable; the precision is 16 bits."""
    flags = '--model=lenet --device=cpu --batch_size=4 --init_learning_rate=0.01'
    earlier = '--num_batches=1 --num_warmup_batches=0 --tf_random_seed=5'
    backbone = tmp_path / 'backbone'
    run_benchmark(f'{flags} {earlier} --train_dir={quoted(backbone)}')
    trained = run(
        f'{flags} --num_batches=3 --num_warmup_batches=1 --precision=bf16 --profile_steps=1,2 '
        f'--train_dir={quoted(tmp_path)}/trained '
        f'--backbone_model_path={quoted(backbone)} --profile_dir={quoted(tmp_path)}/profile',
        jobs={'ps': 2},
    )
    # The chief alone reports how many variables it read, and how many the model has.
    report = rf'^(?=.*{re.escape(str(backbone))})(?=.*\b8\b.*\b8\b).*$'
    assert [len(task.lines(report)) for task in trained.tasks.trainers] == [1, 0]
    start, last = (values_in(tmp_path / f'trained/model.ckpt-{step}') for step in (0, 4))
    for name, value in values_in(backbone / 'model.ckpt-1').items():
        if name != 'global_step':
            np.testing.assert_array_equal(start[name], value)
    assert len([*tmp_path.glob('profile/plugins/profile/*/*.xplane.pb')]) == 1
    assert all(np.any(value != start[name]) for name, value in last.items())
