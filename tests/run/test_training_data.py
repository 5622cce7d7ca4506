"""Runs that train and evaluate on data sets on disk: in one process, and in a cluster with a user's own model."""

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from commands import records
from models.registry import register_model
from params import make_params
from planning.environment import Environment
from planning.make_plan import make_plan
from planning.plan import Plan
from results.console import Console
from results.result import Result
from run.build import build_step
from tests.support.images import write_cifar, write_mnist
from tests.support.outputs import check_warning, refused

pytestmark = [pytest.mark.graph, pytest.mark.long]

ROOT = Path(tf_cnn_benchmarks.__file__).parent
LABELS = np.arange(40) % 4
# Two bars, whose places are the class.
DIGITS = np.zeros([40, 28, 28], np.uint8)
for _digit, _label in zip(DIGITS, LABELS, strict=True):
    _digit[4 + 6 * _label : 8 + 6 * _label] = 255
    _digit[:, 20 - 5 * _label : 23 - 5 * _label] = 255


def run(data_dir: Path, console: Console | None = None, **overrides: Any) -> Result:
    settings = {
        'model': 'lenet', 'device': 'cpu', 'batch_size': 20, 'num_batches': 25, 'num_warmup_batches': 1,
        'init_learning_rate': 0.02, 'data_dir': str(data_dir),
    }  # fmt: skip
    return BenchmarkCNN(make_params(**{**settings, **overrides}), console).run()


def losses(result: Result) -> list[float]:
    return [step.values.loss for step in result.steps]


@pytest.fixture(scope='module')
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('mnist')
    write_mnist(folder, DIGITS, LABELS, suffix='.gz')
    write_mnist(folder, DIGITS[:20], LABELS[:20], 'validation')
    return folder


@pytest.fixture(scope='module')
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as a folder made by records, of 14 x 14 pixels."""
    tmp = tmp_path_factory.mktemp('shards')
    for number, (digit, label) in enumerate(zip(DIGITS, LABELS, strict=True)):
        (tmp / 'photos' / f'class{label}').mkdir(parents=True, exist_ok=True)
        Image.fromarray(digit[::2, ::2]).save(tmp / 'photos' / f'class{label}' / f'{number}.png')
    with redirect_stdout(io.StringIO()):
        records.main([f'--input={tmp}/photos', f'--output={tmp}/out', '--num_processes=1', '--shards=2'])
    return tmp / 'out'


@pytest.mark.parametrize('mode', [{'num_gpus': 1}, {'num_gpus': 2, 'variable_update': 'replicated', 'batch_size': 10}])
def test_mnist_trains(mnist: Path, mode: dict[str, Any]) -> None:
    warned = io.StringIO()
    result = run(mnist, Console(io.StringIO(), warned), **mode)
    assert (result.data_set, result.is_synthetic, result.num_missing_shards) == ('mnist', False, 0)
    found = losses(result)
    assert found[-1] < 0.1 * found[0]
    check_warning(warned.getvalue(), mnist, '40', '60000')


def test_resumed_training_reads_the_images_that_come_next(mnist: Path, tmp_path: Path) -> None:
    """Batches of 16 of 40 images: the third one ends an epoch."""
    few: dict[str, Any] = {'batch_size': 16, 'num_warmup_batches': 0, 'init_learning_rate': 1e-4}
    whole = losses(run(mnist, **few, num_batches=6))
    begun = losses(run(mnist, **few, num_batches=2, train_dir=str(tmp_path)))
    rest = losses(run(mnist, **few, num_batches=4, train_dir=str(tmp_path)))
    assert begun + rest == pytest.approx(whole, rel=1e-5)
    assert rest[:2] != pytest.approx(begun, rel=1e-3), 'the same images again'


def test_resumed_training_reads_records_in_another_order(shards: Path, tmp_path: Path) -> None:
    """Of one shard: of several, whichever reader is faster also has its part in the order."""
    one_shard = tmp_path / 'shard'
    one_shard.mkdir()
    content = b''.join(path.read_bytes() for path in sorted(shards.glob('train-*')))
    (one_shard / 'train-00000-of-00001').write_bytes(content)
    (one_shard / 'labels.txt').write_bytes((shards / 'labels.txt').read_bytes())

    def first_losses(**more: Any) -> list[float]:
        few: dict[str, Any] = {
            'batch_size': 8,
            'num_warmup_batches': 0,
            'init_learning_rate': 0.0,
            'augmentation': 'none',
        }
        return losses(run(one_shard, **few, model='trivial', weight_decay=0.0, num_batches=3, **more))

    fresh = first_losses()
    begun, went_on = (first_losses(train_dir=str(tmp_path / 'trained')) for _ in range(2))
    assert begun == pytest.approx(fresh, rel=1e-5), 'the seed decides the order'
    assert went_on != pytest.approx(begun, rel=1e-3)


def test_forward_only_reads_the_validation_images(mnist: Path) -> None:
    told = io.StringIO()
    result = run(mnist, Console(told, told), forward_only=True, num_batches=2, init_learning_rate=None)
    check_warning(told.getvalue(), mnist, '20', '10000')
    # Each step has all of them, in another order.
    assert np.ptp(losses(result)) < 1e-3


@pytest.mark.parametrize('augmentation', ['none', 'padded_crop', 'resized_crop'])
def test_a_folder_of_records_trains_with_its_own_classes(shards: Path, augmentation: str) -> None:
    told = io.StringIO()
    result = run(shards, Console(told, told), augmentation=augmentation)
    assert re.search(r'^Dataset: +records \(real\)\n(?:.*\n)*Num epochs: +12\.50$', told.getvalue(), re.MULTILINE)
    found = losses(result)
    # Chance is the logarithm of 5 classes, of which 1001 would have 6.9; weights before training add to it.
    assert found[0] < 4
    assert found[-1] < (0.1 if augmentation == 'none' else 1.0) * found[0]


@pytest.mark.parametrize(('model', 'image_size'), [('lenet', 28), ('resnet20', 14)])
def test_images_are_resized_unless_the_model_takes_any_size(shards: Path, model: str, image_size: int) -> None:
    plan = make_plan(make_params(model=model, device='cpu', batch_size=2, data_dir=str(shards)), Environment({}))
    assert isinstance(plan, Plan)
    with tf.Graph().as_default():
        built = build_step(plan)
    assert built.pipeline.tower_batch(0).images.shape.as_list() == [2, image_size, image_size, 3]


def test_a_folder_of_validation_images_alone_can_be_looked_at(shards: Path, tmp_path: Path) -> None:
    for path in shards.iterdir():
        (tmp_path / path.name.replace('train-', 'validation-')).write_bytes(path.read_bytes())
    told = io.StringIO()
    run(tmp_path, Console(told, told), forward_only=True, num_batches=1, init_learning_rate=None)
    assert 'Num epochs:  0.50' in told.getvalue()


@pytest.mark.usefixtures('forget_models')
@pytest.mark.parametrize('image_size', [28, 20])
def test_arrays_are_evaluated_exactly(mnist: Path, tmp_path: Path, image_size: int) -> None:
    """During training and by a separate run, also where the model wants another size."""
    model = f'evaluated{image_size}'
    register_model(model, lambda cnn, x, n: cnn.dense(cnn.flatten(x), n, 'fc'), data_set='mnist', image_size=image_size)
    settings: dict[str, Any] = {'model': model, 'train_dir': str(tmp_path), 'eval_batch_size': 7}
    trained = run(mnist, **settings, init_learning_rate=0.005, eval_during_training_at_specified_steps='26')
    (found,) = trained.evaluations
    assert (found.num_images, found.step) == (20, 26)
    assert found.top_1 > 0.9
    params = make_params(eval=True, device='cpu', data_dir=str(mnist), distortions=True, **settings)
    with pytest.warns(UserWarning, match='--distortions=True'):
        evaluation = BenchmarkCNN(params)
    (again,) = evaluation.run().evaluations
    assert (again.num_images, again.top_1, again.top_5) == (20, found.top_1, found.top_5)


def test_augmentation_that_does_not_fit_arrays_is_refused(mnist: Path) -> None:
    with refused('--augmentation=resized_crop', 'mnist', '--augmentation=padded_crop'):
        run(mnist, augmentation='resized_crop')
    with refused('--distortions', '1', '3', '--nodistortions'):
        run(mnist, distortions=True)


MODEL = """\
import tensorflow.compat.v1 as tf
from models.layers import he_normal
from commands import records
from models.registry import register_model

def probe(cnn, x, num_classes):
    x = cnn.relu(cnn.conv(x, 8, 3, 'conv', strides=4, initializer=he_normal))
    return cnn.dense(cnn.flatten(tf.tanh(x)), num_classes, 'logits')

register_model('probe', probe, data_set='cifar10', image_size=32, learning_rate=0.05)
"""


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    images = np.zeros([40, 32, 32, 3], np.uint8)
    images[:, 2:30, 2:30] = DIGITS[..., np.newaxis]
    write_cifar(tmp_path / 'cifar', images, LABELS)
    # As many as fill no batch of several towers.
    write_cifar(tmp_path / 'cifar', images[:13], LABELS[:13], 'validation')
    (tmp_path / 'probe.py').write_text(MODEL)
    return tmp_path


def test_a_model_is_evaluated_with_its_network_for_the_data_set(cifar: Path) -> None:
    """AlexNet for CIFAR-10 is another one than for ImageNet."""
    write_cifar(cifar / 'cifar', np.zeros([7, 32, 32, 3], np.uint8), LABELS[:7], 'validation')
    flags: dict[str, Any] = {'num_batches': 1, 'batch_size': 4, 'eval_during_training_every_n_steps': 2}
    (found,) = run(cifar / 'cifar', model='alexnet', **flags).evaluations
    # What it makes of seven equal images is the same: at best it is right for those of one class.
    assert (found.num_images, found.num_top_1) in {(7, 0), (7, 1), (7, 2)}


@pytest.mark.all_modes
def test_a_cluster_trains_a_users_own_model_on_arrays(cifar: Path) -> None:
    """Each worker on a part of them, which is the same in each mode; a controller also evaluates with the workers."""
    run_flags = ['--model=probe', '--model_file=probe.py', '--data_dir=cifar', '--device=cpu', '--batch_size=10']
    run_flags += ['--num_batches=20', '--num_warmup_batches=1', '--display_every=19', '--augmentation=none']
    controlled = ['--variable_update=distributed_all_reduce', '--eval_during_training_at_specified_steps=21']
    weights = {}
    for mode, flags in {'parameter_server': [], 'distributed_all_reduce': controlled}.items():
        command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), 'cluster', '--workers=2', '--', *run_flags]
        done = subprocess.run(
            [*command, f'--train_dir={mode}', *flags], capture_output=True, text=True, cwd=cifar, timeout=240
        )
        assert done.returncode == 0, done.stderr
        assert 'Dataset:     cifar10 (real)' in done.stdout
        shown = re.findall(r'^\d+\timages/sec.*$', done.stdout, re.MULTILINE)
        first, last = (float(line.split('\t')[-1]) for line in shown[:2])
        assert last < 0.7 * first
        reader = tf.train.load_checkpoint(str(cifar / mode))
        weights[mode] = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert re.findall(r'^Accuracy @ 1 = (1\.0+) .* \[(\d+) examples\]$', done.stdout, re.MULTILINE) == [
        ('1.0000', '13')
    ]
    for name, value in weights['parameter_server'].items():
        np.testing.assert_allclose(weights['distributed_all_reduce'][name], value, 1e-3, 1e-6, err_msg=name)
