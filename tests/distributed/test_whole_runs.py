"""What a cluster makes of a whole run: one evaluation by all workers, steps that all skip, and an
exported model.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from tests.distributed.milestones import EVALUATING, SKIPPED, STOPPING
from tests.distributed.processes import Processes, environment, make_cluster
from tests.distributed.whole_batch import TOTAL_LINE
from tests.support.images import write_cifar, write_noise
from tests.support.machines import tf_config
from tests.support.runs import values_in
from tf_cnn.inputs.layout import LABELS_FILE
from tf_cnn.launch.hosts import Command, reserve_addresses
from tf_cnn.results.sections import EvaluationRow
from tf_cnn.run.parsing import make_params, parse_argv
from tf_cnn.training.checkpoint_files import checkpoint_step, latest_checkpoint

pytestmark = pytest.mark.distributed

# Divided by no number of workers, towers or images of a batch.
NUM_VALIDATION, NUM_LABELS, NUM_STEPS = 23, 8, 4
FLAGS = ('--device=cpu', '--batch_size=4', '--num_warmup_batches=0', '--init_learning_rate=0.05')
PS, REPLICATED, COLLECTIVE = (
    f'--variable_update={mode}'
    for mode in ('parameter_server', 'distributed_replicated', 'collective_all_reduce')
)
EVERY_2, EVERY_3 = (f'--eval_during_training_every_n_steps={steps}' for steps in (2, 3))
# Any accuracy is as good, so that training ends long before its last step.
STOP = ('--stop_at_top_1_accuracy=0', '--num_batches=200')
ACCURACY = re.compile(
    r'^Accuracy @ 1 = (\d\.\d{4}) Accuracy @ 5 = (\d\.\d{4}) \[(\d+) examples\]$', re.MULTILINE
)


# How a cluster trains, its parameter servers, and after which steps all workers evaluate. The last
# of these ends the training. Moving averages, which one worker keeps, are what an evaluation of
# resnet20 computes with.
ROWS = {
    'ps': ((PS, EVERY_2, '--model=resnet20'), 2, (2, 4)),
    'collective-stops': ((COLLECTIVE, EVERY_3, '--model=lenet', *STOP), 0, (3,)),
    'ps-stops': ((PS, EVERY_3, '--model=lenet', *STOP), 1, (3,)),
    'ps-staged': ((PS, EVERY_2, '--model=lenet', '--staged_vars', '--num_gpus=2'), 1, (2, 4)),
    'replicated': ((REPLICATED, EVERY_2, '--model=resnet20', '--num_gpus=2'), 1, (2, 4)),
    'collective': ((COLLECTIVE, EVERY_2, '--model=resnet20', '--num_gpus=2'), 0, (2, 4)),
}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('data')
    write_noise(folder, NUM_VALIDATION, NUM_LABELS)
    # A folder with classes of its own, on which every model trains.
    (folder / LABELS_FILE).write_text(''.join(f'class{number}\n' for number in range(NUM_LABELS)))
    return folder


def run(
    flags: Sequence[str], data_dir: Path, folder: Path, num_ps: int
) -> tuple[Processes, list[list[str]]]:
    """A cluster of two workers that has ended well, and the accuracies that each worker printed."""
    all_flags = [
        *FLAGS,
        f'--num_batches={NUM_STEPS}',
        f'--data_dir={data_dir}',
        f'--train_dir={folder}/train',
        *flags,
    ]
    with make_cluster(all_flags, folder, num_ps=num_ps) as processes:
        processes.run()
    return processes, [
        [found[0] for found in ACCURACY.finditer(task.out)] for task in processes.of('worker')
    ]


def evaluate(model: str, data_dir: Path, folder: Path) -> EvaluationRow:
    """What one process finds in the last checkpoint."""
    flags = [
        '--eval',
        model,
        '--device=cpu',
        f'--data_dir={data_dir}',
        f'--train_dir={folder}/train',
    ]
    [found] = BenchmarkCNN(parse_argv(flags).params).run().evaluations
    return found


def line_of(found: EvaluationRow) -> str:
    assert found.num_images == NUM_VALIDATION
    return (
        f'Accuracy @ 1 = {found.top_1:.4f} Accuracy @ 5 = {found.top_5:.4f} [{NUM_VALIDATION} '
        f'examples]'
    )


@pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=[] if name == 'ps' else pytest.mark.all_modes) for name in ROWS],
)
def test_all_workers_print_what_one_process_finds_in_the_checkpoint(
    name: str, data_dir: Path, tmp_path: Path
) -> None:
    flags, num_ps, expected = ROWS[name]
    processes, printed = run(flags, data_dir, tmp_path, num_ps)
    found = evaluate(flags[2], data_dir, tmp_path)
    assert found.step == expected[-1]
    assert printed[0][-1] == line_of(found)
    assert printed[1] == printed[0]
    for worker in processes.of('worker'):
        steps = re.findall(EVALUATING, worker.err, re.MULTILINE)
        assert tuple(map(int, steps)) == expected
        stops = [str(expected[-1])] if STOP[0] in flags else []
        assert re.findall(STOPPING, worker.err, re.MULTILINE) == stops


@pytest.mark.all_modes
def test_the_chief_evaluates_alone_where_workers_do_not_wait(
    data_dir: Path, tmp_path: Path
) -> None:
    _, (of_chief, of_other) = run(
        [PS, '--nocross_replica_sync', EVERY_3, '--model=lenet'], data_dir, tmp_path, num_ps=1
    )
    assert of_chief
    assert not of_other
    assert all(line.endswith(f'[{NUM_VALIDATION} examples]') for line in of_chief)


@pytest.mark.parametrize(
    ('mode', 'num_ps'),
    [(PS, 1), pytest.param(COLLECTIVE, 0, marks=pytest.mark.all_modes)],
    ids=['ps', 'collective'],
)
def test_a_cluster_evaluates_as_one_process_does(
    mode: str, num_ps: int, data_dir: Path, tmp_path: Path
) -> None:
    own = ['--model=lenet', f'--data_dir={data_dir}', f'--train_dir={tmp_path}/train']
    BenchmarkCNN(parse_argv([*FLAGS, *own, f'--num_batches={NUM_STEPS}']).params).run()
    before = latest_checkpoint(f'{tmp_path}/train')
    assert before
    assert checkpoint_step(before) == NUM_STEPS
    _, printed = run(
        [mode, '--model=lenet', '--eval', '--num_eval_epochs=1'], data_dir, tmp_path, num_ps
    )
    assert printed == [[line_of(evaluate('--model=lenet', data_dir, tmp_path))]] * 2
    assert latest_checkpoint(f'{tmp_path}/train') == before


def test_all_workers_skip_the_same_steps_and_the_scale_is_saved(tmp_path: Path) -> None:
    start, num_steps = 2**30, 8
    flags = [
        *FLAGS[:1],
        '--model=lenet',
        '--batch_size=8',
        '--num_warmup_batches=0',
        f'--num_batches={num_steps}',
    ]
    flags += ['--precision=fp16', '--fp16_enable_auto_loss_scale', f'--fp16_loss_scale={start}']
    flags += ['--fp16_inc_loss_scale_every_n=1', f'--train_dir={tmp_path / "train"}', COLLECTIVE]
    with make_cluster(flags, tmp_path, num_ps=0) as processes:
        processes.run()
    reported = [re.findall(SKIPPED, worker.err, re.MULTILINE) for worker in processes.of('worker')]
    reader = tf.train.load_checkpoint(str(tmp_path / 'train'))
    num_skipped = int(reader.get_tensor('loss_scale/skipped_steps'))
    assert reported == [[str(num_skipped)]] * 2
    assert reader.get_tensor('global_step') == num_steps
    assert reader.get_tensor('loss_scale/scale') == start * 2.0 ** (num_steps - 2 * num_skipped)
    assert num_skipped > 0


@pytest.mark.all_modes
def test_every_process_ends_when_the_loss_of_one_is_not_finite(tmp_path: Path) -> None:
    flags = [
        *FLAGS[:3],
        '--model=lenet',
        '--init_learning_rate=1e30',
        '--precision=bf16',
        '--num_batches=8',
    ]
    write_noise(tmp_path, NUM_VALIDATION, NUM_LABELS)
    with make_cluster([*flags, f'--data_dir={tmp_path}'], tmp_path, num_ps=1) as processes:
        processes.run(exit_code=1)
    for task in processes.tasks.values():
        assert re.search(r'^tf_cnn_benchmarks: error: .*\b(nan|inf)\b', task.err, re.MULTILINE), (
            task.name
        )


OWN_MODEL = """
from models.registry import register_model
def network(cnn, x, num_classes):
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')
register_model('own', network, data_set='cifar10', image_size=32, learning_rate=0.05)
"""


@pytest.mark.all_modes
def test_modes_train_a_users_own_model_alike_each_worker_on_a_part_of_arrays(
    tmp_path: Path,
) -> None:
    """A controller also evaluates with the workers."""
    images, labels = np.zeros([40, 32, 32, 3], np.uint8), np.arange(40) % 4
    for image, label in zip(images, labels, strict=True):
        image[8 * label : 8 * label + 8] = 255
    write_cifar(tmp_path, images, labels)
    # As many as fill no batch of several towers.
    write_cifar(tmp_path, images[:13], labels[:13], 'validation')
    (tmp_path / 'own.py').write_text(OWN_MODEL)
    flags = [
        '--model=own',
        f'--model_file={tmp_path}/own.py',
        f'--data_dir={tmp_path}',
        '--device=cpu',
    ]
    flags += [
        '--batch_size=10',
        '--num_batches=20',
        '--num_warmup_batches=1',
        '--augmentation=none',
    ]
    controlled = [
        '--variable_update=distributed_all_reduce',
        '--eval_during_training_at_specified_steps=21',
    ]
    weights = []
    for number, more in enumerate(([PS], controlled)):
        (folder := tmp_path / str(number)).mkdir()
        run_flags = [*flags, *more, f'--train_dir={folder}/train']
        with make_cluster(
            run_flags, folder, num_ps=1 - number, num_controllers=number
        ) as processes:
            processes.run()
        assert ACCURACY.findall(processes.trainers[0].out) == [('1.0000', '1.0000', '13')] * number
        weights.append(values_in(folder / 'train'))
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, 1e-3, 1e-6, err_msg=name)


@pytest.mark.parametrize('pipeline', ['', 'device', 'feed_dict'])
def test_two_workers_take_the_steps_of_one_with_the_whole_batch_of_arrays(
    pipeline: str, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, [40, 32, 32, 3], np.uint8)
    write_cifar(tmp_path, images, np.arange(40) % 10)
    flags = [
        '--model=trivial',
        f'--data_dir={tmp_path}',
        '--data_name=cifar10',
        '--augmentation=none',
        '--device=cpu',
    ]
    flags += [
        '--num_warmup_batches=1',
        '--num_batches=6',
        '--init_learning_rate=0.01',
        f'--input_pipeline={pipeline}',
    ]
    assert tf_cnn_benchmarks.main([*flags, '--batch_size=8', f'--train_dir={tmp_path}/alone']) == 0
    with make_cluster(
        [*flags, COLLECTIVE, '--batch_size=4', f'--train_dir={tmp_path}/two'], tmp_path, num_ps=0
    ) as processes:
        processes.run()
    expected = values_in(tmp_path / 'alone')
    for name, value in values_in(tmp_path / 'two').items():
        np.testing.assert_allclose(value, expected[name], 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize(
    ('mode', 'num_ps'),
    [(PS, 1), pytest.param(COLLECTIVE, 0, marks=pytest.mark.all_modes)],
    ids=['ps', 'collective'],
)
def test_processes_with_tf_config_train_and_end(mode: str, num_ps: int, tmp_path: Path) -> None:
    """As Kubeflow's operator starts them: with the same flags, and TF_CONFIG."""
    with reserve_addresses(2 + num_ps) as addresses:
        cluster = {
            job: [host] for job, host in zip(('chief', 'worker', 'ps'), addresses, strict=False)
        }
        argv = (
            sys.executable,
            tf_cnn_benchmarks.__file__,
            *FLAGS,
            '--model=trivial',
            '--num_batches=5',
            mode,
        )
        commands = [
            Command(job, argv, env={**environment(), **tf_config(job, 0, **cluster)})
            for job in cluster
        ]
        processes = Processes(commands, addresses, tmp_path)
        with processes.ending():
            processes.run()
    chief, worker = (
        re.findall(TOTAL_LINE, processes.tasks[job].out, re.MULTILINE)
        for job in ('chief', 'worker')
    )
    assert len(chief) == 1
    assert worker == chief


SETTINGS = {'model': 'lenet', 'device': 'cpu', 'batch_size': 4, 'init_learning_rate': 0.01}


def test_the_chief_starts_from_a_backbone_profiles_and_exports(tmp_path: Path) -> None:
    """Two parameter servers, so that the largest variable is in parts, and 16 bits."""
    backbone, trained, model, profile = (
        tmp_path / name for name in ('backbone', 'trained', 'model', 'profile')
    )
    run = {'num_batches': 1, 'num_warmup_batches': 0, 'tf_random_seed': 5}
    BenchmarkCNN(make_params(**SETTINGS, **run, train_dir=str(backbone))).run()
    flags = [
        *(f'--{name}={value}' for name, value in SETTINGS.items()),
        *('--num_batches=3', '--num_warmup_batches=1', '--precision=bf16', '--profile_steps=1,2'),
        *(f'--train_dir={trained}', f'--export_saved_model={model}'),
        *(f'--backbone_model_path={backbone}', f'--profile_dir={profile}'),
    ]
    with make_cluster(flags, tmp_path, num_ps=2, num_workers=2) as processes:
        processes.run()
    # The chief alone reports it, with the numbers of variables that it took and that the model has.
    report = rf'^(?=.*{re.escape(str(backbone))})(?=.*\b8\b.*\b8\b).*$'
    assert [len(re.findall(report, task.err, re.MULTILINE)) for task in processes.of('worker')] == [
        1,
        0,
    ]
    start, expected = values_in(trained / 'model.ckpt-0'), values_in(backbone / 'model.ckpt-1')
    del expected['global_step']
    for name, value in expected.items():
        np.testing.assert_array_equal(start[name], value)
    assert len(list(profile.glob('plugins/profile/*/*.xplane.pb'))) == 1
    loaded = tf.compat.v2.saved_model.load(str(model))
    exported = {name: variable.numpy() for name, variable in loaded.variables_by_name.items()}
    last = values_in(trained / 'model.ckpt-4')
    del last['global_step']
    assert exported.keys() == last.keys()
    for name, value in last.items():
        np.testing.assert_array_equal(exported[name], value)
        assert np.any(value != start[name])
    images = np.random.default_rng(0).integers(0, 256, [2, 28, 28, 3], np.uint8)
    served = loaded.signatures['serving_default'](images=tf.constant(images))
    assert served['logits'].shape == [2, 1001]
    assert np.ptp(served['logits'].numpy(), axis=0).max() > 0
