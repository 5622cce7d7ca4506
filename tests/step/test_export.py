"""An exported SavedModel computes the same as the trained network, in plain TensorFlow: NHWC, on
any device.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from models.networks import build_network
from models.registry import MODELS, register_model
from preprocessing import normalize
from tests.models.keras_networks import CONFORMANCE, give_weights
from tests.support.graphs import cpus, open_session, random_images, relative_error
from tests.support.images import write_cifar
from tests.support.outputs import check_warning, failed
from tests.support.programs import run_python
from tests.support.runs import BenchmarkRun, make_benchmark, run_benchmark
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.step.evaluation import RestoredVariables
from tf_cnn.step.export import export_saved_model
from tf_cnn.training.checkpoint_files import latest_checkpoint
from tf_cnn.training.checkpoints import Checkpointer

pytestmark = [pytest.mark.graph, pytest.mark.long]

MODEL = 'small_network_to_export'
FLAGS = f'--model={MODEL} --data_name=cifar10'
IMAGES = np.random.default_rng(0).integers(0, 256, [3, 32, 32, 3], np.uint8)


def small_network(cnn: Any, images: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(images, 8, 3, 'conv', strides=2), 'conv/bn'))
    return cnn.dense(cnn.flatten(cnn.max_pool(x, 2, 2)), num_classes, 'logits')


def train(flags: str = '', **values: Any) -> BenchmarkRun:
    return run_benchmark(f'{FLAGS} --init_learning_rate=0.01 {flags}', **values)


@pytest.fixture(scope='module', autouse=True)
def model() -> Iterator[None]:
    register_model(MODEL, small_network, data_set='cifar10', image_size=32)
    yield
    MODELS.unregister(MODEL)


def serve(folder: Path, images: np.ndarray = IMAGES) -> dict[str, np.ndarray]:
    """Returns the outputs of an exported model for images, computed by plain TensorFlow."""
    signature = tf.compat.v2.saved_model.load(str(folder)).signatures['serving_default']
    return {name: value.numpy() for name, value in signature(images=tf.constant(images)).items()}


def logits_of(train_dir: Path, data_format: str) -> np.ndarray:
    """Returns the logits of the model for IMAGES with the weights of the last checkpoint."""
    network = MODELS.find_model(MODEL).network
    prefix = latest_checkpoint(str(train_dir))
    assert prefix
    with tf.Graph().as_default(), open_session(has_nchw=data_format == 'NCHW') as session:
        variables = RestoredVariables(cpus(1)[0], 'tower')
        outputs = build_network(
            network, normalize(tf.constant(IMAGES)), 10, variables, data_format, is_training=False
        )
        saver = Checkpointer(str(train_dir), variables.slices, cpus(1)[0], 1)
        saver.restore(session, prefix, for_training=False)
        logits: np.ndarray = session.run(outputs.logits)
        return logits


@pytest.fixture(scope='module')
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the checkpoints of a run in train and its model in model."""
    folder = tmp_path_factory.mktemp('exported')
    flags = '--num_gpus=2 --variable_update=replicated --data_format=NCHW --optimizer=momentum'
    train(flags, train_dir=folder / 'train', export_saved_model=folder / 'model')
    return folder


def test_an_exported_model_gives_the_logits_of_the_trained_network(exported):
    served = serve(exported / 'model')
    logits = served['logits']
    for data_format in ('NHWC', 'NCHW'):
        np.testing.assert_allclose(
            logits, logits_of(exported / 'train', data_format), rtol=1e-4, atol=1e-5
        )
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(served['probabilities'], probabilities, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(served['classes'], logits.argmax(1))
    assert served['classes'].dtype == np.int64
    assert np.ptp(logits, axis=0).max() > 1e-3, 'the images must matter, or this says little'
    np.testing.assert_allclose(
        serve(exported / 'model', IMAGES[1:2])['logits'], logits[1:2], rtol=1e-4, atol=1e-5
    )


def test_an_evaluation_exports_the_checkpoint_that_it_evaluates(exported, tmp_path):
    flags, model = f'{FLAGS} --eval --num_eval_batches=1', tmp_path / 'model'
    run_benchmark(flags, train_dir=exported / 'train', export_saved_model=model)
    logits = serve(exported / 'model')['logits']
    np.testing.assert_allclose(serve(model)['logits'], logits, rtol=1e-6)


@pytest.mark.parametrize(
    'flags',
    [
        '--precision=bf16 --fp16_vars --optimizer=momentum',
        '--precision=fp16 --fp16_enable_auto_loss_scale --variable_update=replicated --num_gpus=2',
        '--staged_vars --num_gpus=2',
        '--variable_update=independent --num_gpus=2',
    ],
)
def test_every_mode_and_precision_exports_the_trained_weights(flags, tmp_path):
    trained, model = tmp_path / 'train', tmp_path / 'model'
    train(flags, train_dir=trained, export_saved_model=model)
    expected = logits_of(trained, 'NHWC')
    np.testing.assert_allclose(serve(model)['logits'], expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-4


def test_a_run_without_checkpoints_exports_a_model_and_leaves_nothing_else(tmp_path):
    train(train_dir=tmp_path / 'train', export_saved_model=tmp_path / 'kept')
    # The export replaces its empty folder, and leaves other folders alone.
    folder = tmp_path / 'made'
    for name in ('model', '.model-unfinished'):
        (folder / name).mkdir(parents=True)
    train(export_saved_model=folder / 'model')
    expected = serve(tmp_path / 'kept')['logits']
    np.testing.assert_allclose(serve(folder / 'model')['logits'], expected, rtol=1e-4, atol=1e-5)
    assert {path.name for path in folder.iterdir()} == {'.model-unfinished', 'model'}


NAMES_FILE = 'assets/class_names.txt'
PRINT_CLASSES = """
import sys, tensorflow as tf
for folder in sys.argv[1:]:
    model = tf.saved_model.load(folder)
    names = tf.io.read_file(model.class_names_file.asset_path).numpy().decode().splitlines()
    served = model.signatures['serving_default'](images=tf.zeros([3, 32, 32, 3], tf.uint8))
    assert served['logits'].shape[1] == len(names)
    print(*(names[label] for label in served['classes'].numpy()))
"""


def test_another_program_reads_the_class_names_of_a_moved_model(tmp_path):
    folder = tmp_path / 'data'
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, [20, 32, 32, 3], np.uint8)
    write_cifar(folder, images, np.arange(20) % 10)
    train(data_dir=folder, train_dir=tmp_path / 'train', export_saved_model=tmp_path / 'model')
    # Synthetic images have no names, but the evaluated checkpoint has.
    flags, evaluated = f'{FLAGS} --eval --num_eval_batches=1', tmp_path / 'evaluated'
    run_benchmark(flags, train_dir=tmp_path / 'train', export_saved_model=evaluated)
    names = DATA_SETS['cifar10'].class_names
    assert names
    models = [model.rename(f'{model}-moved') for model in (tmp_path / 'model', evaluated)]
    lines = run_python(PRINT_CLASSES, *map(str, models)).out.splitlines()
    for model, line in zip(models, lines, strict=True):
        assert (model / NAMES_FILE).read_text().splitlines() == list(names)
        classes = serve(model, np.zeros([3, 32, 32, 3], np.uint8))['classes']
        assert line.split() == [names[label] for label in classes]


def test_a_model_without_class_names_has_no_file_of_names(exported):
    assert not (exported / 'model' / NAMES_FILE).exists()


def test_a_forward_only_run_exports_nothing(tmp_path):
    untrained = run_benchmark(f'{FLAGS} --forward_only', export_saved_model=tmp_path / 'model')
    check_warning(untrained.err, '--export_saved_model=', '--forward_only')
    assert not (tmp_path / 'model').exists()


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(
            case,
            marks=() if case.model == 'resnet20' else pytest.mark.all_modes,
            id=case.model,
        )
        for case in CONFORMANCE
        if case.model in ('resnet20', 'official_resnet18', 'resnet50', 'inception3', 'vgg16')
    ],
)
def test_an_exported_model_has_the_logits_of_keras_with_the_same_weights(case, tmp_path):
    num_classes, network = 1001, case.network()
    size = case.smaller_size or 32
    shape = (size, size, 3)
    images = np.clip(127.5 + 60 * random_images(shape), 0, 255).astype(np.uint8)
    with tf.Graph().as_default():
        variables = RestoredVariables(cpus(1)[0], 'tower')
        build_network(
            network, tf.zeros([1, *shape]), num_classes, variables, 'NHWC', is_training=False
        )
    theirs = case.counterpart(shape, num_classes)
    weights, _ = give_weights(
        theirs, {name: parts[0].variable for name, parts in variables.slices.items()}
    )
    expected = np.asarray(theirs(images / np.float32(127.5) - 1, training=False))
    tf.keras.backend.clear_session()
    export_saved_model(str(tmp_path / 'model'), weights, network, num_classes, shape)
    assert relative_error(serve(tmp_path / 'model', images)['logits'], expected) < 2e-5
    assert relative_error(expected[0], expected[1]) > 0.01, (
        'the images must matter, or this says little'
    )


def test_an_exported_model_has_no_devices_and_no_nchw(exported):
    model: Any = SavedModel.FromString((exported / 'model' / 'saved_model.pb').read_bytes())
    functions = model.meta_graphs[0].graph_def.library.function
    serving = [
        function
        for function in functions
        if not function.signature.name.startswith('__inference__traced_')
    ]
    nodes = [node for function in serving for node in function.node_def]
    assert any(node.op == 'Conv2D' for node in nodes)
    assert {node.device for node in nodes} == {''}
    # An attribute with its default value (NHWC, training) is not written.
    assert not any(node.attr['data_format'].s == b'NCHW' for node in nodes)
    norms = [node.attr for node in nodes if node.op == 'FusedBatchNormV3']
    assert norms
    assert all(
        'is_training' in attributes and not attributes['is_training'].b for attributes in norms
    )
    variables = tf.compat.v2.saved_model.load(str(exported / 'model')).variables_by_name
    assert {variable.dtype for variable in variables.values()} == {tf.float32}
    assert variables['conv/kernel'].shape == [3, 3, 3, 8]


def test_an_export_that_fails_names_its_folder_and_leaves_nothing(tmp_path, exported):
    (tmp_path / 'models').mkdir()
    new = tmp_path / 'models' / 'new'
    steps = make_benchmark(FLAGS, export_saved_model=new).steps()
    next(steps)
    # Another program made the folder meanwhile.
    shutil.copytree(exported / 'model', new)
    before = serve(new)['logits']
    with failed(f'--export_saved_model={new}', 'Directory not empty'):
        list(steps)
    assert [path.name for path in new.parent.iterdir()] == ['new']
    np.testing.assert_array_equal(serve(new)['logits'], before)
