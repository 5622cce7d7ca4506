"""What a run exports is what it trained, for TensorFlow alone: a signature of images, on no device, in NHWC."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sessions import cpus, open_session
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from benchmark_cnn import BenchmarkCNN
from errors import UsageError
from evaluation import OwnVariables
from evaluator import Evaluator
from models.networks import build_network
from params import make_params
from preprocessing import normalize
from training.checkpoints import Checkpointer

pytestmark = pytest.mark.graph

SETTINGS: dict[str, Any] = {
    'model': 'resnet20',
    'data_name': 'cifar10',
    'device': 'cpu',
    'batch_size': 4,
    'num_batches': 2,
    'num_warmup_batches': 1,
    'init_learning_rate': 0.01,
}
IMAGES = np.random.default_rng(0).integers(0, 256, [3, 32, 32, 3], np.uint8)


def train(**flags: Any) -> None:
    BenchmarkCNN(make_params(**{**SETTINGS, **flags})).run()


def serve(folder: Path, images: np.ndarray = IMAGES) -> dict[str, np.ndarray]:
    """What plain TensorFlow makes of images with an exported model."""
    signature = tf.compat.v2.saved_model.load(str(folder)).signatures['serving_default']
    return {name: value.numpy() for name, value in signature(images=tf.constant(images)).items()}


def logits_of(train_dir: Path, data_format: str) -> np.ndarray:
    """What the network that trains makes of the images with the last checkpoint."""
    prefix = Checkpointer.latest(str(train_dir))
    assert prefix
    with tf.Graph().as_default(), open_session(has_nchw=data_format == 'NCHW') as session:
        variables = OwnVariables(cpus(1)[0], 'tower')
        built = build_network('resnet20', normalize(tf.constant(IMAGES)), 10, variables, data_format, is_training=False)
        saver = Checkpointer(str(train_dir), variables.slices, cpus(1)[0], 1)
        saver.restore(session, prefix, for_training=False)
        logits: np.ndarray = session.run(built.logits)
        return logits


@pytest.fixture(scope='module')
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of a run in train and its model in model."""
    folder = tmp_path_factory.mktemp('exported')
    flags = {'num_gpus': 2, 'variable_update': 'replicated', 'data_format': 'NCHW', 'optimizer': 'momentum'}
    train(train_dir=str(folder / 'train'), export_saved_model=str(folder / 'model'), **flags)
    return folder


def test_an_exported_model_gives_the_logits_of_the_network_that_was_trained(exported: Path) -> None:
    served = serve(exported / 'model')
    logits = served['logits']
    for data_format in ('NHWC', 'NCHW'):
        np.testing.assert_allclose(logits, logits_of(exported / 'train', data_format), rtol=1e-4, atol=1e-5)
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(
        served['probabilities'], exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5, atol=1e-30
    )
    np.testing.assert_array_equal(served['classes'], logits.argmax(1))
    assert served['classes'].dtype == np.int64
    assert np.ptp(logits, axis=0).max() > 1e-3, 'the images must matter, or this says little'
    np.testing.assert_allclose(serve(exported / 'model', IMAGES[1:2])['logits'], logits[1:2], rtol=1e-4, atol=1e-5)


def test_an_evaluation_exports_the_checkpoint_that_it_evaluates(exported: Path, tmp_path: Path) -> None:
    settings = {name: SETTINGS[name] for name in ('model', 'data_name', 'device', 'batch_size')}
    flags = {'eval': True, 'train_dir': str(exported / 'train'), 'num_eval_batches': 1}
    Evaluator(make_params(**settings, **flags, export_saved_model=str(tmp_path / 'model'))).run()
    np.testing.assert_allclose(serve(tmp_path / 'model')['logits'], serve(exported / 'model')['logits'], rtol=1e-6)


def test_a_run_without_checkpoints_exports_what_it_trained_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / 'scratch'
    scratch.mkdir()
    monkeypatch.setattr('tempfile.tempdir', str(scratch))
    flags = {'model': 'lenet', 'data_name': None, 'num_gpus': 2}
    train(**flags, train_dir=str(tmp_path / 'train'), export_saved_model=str(tmp_path / 'kept'))
    train(**flags, export_saved_model=str(tmp_path / 'model'))
    images = IMAGES[:, :28, :28]
    expected = serve(tmp_path / 'kept', images)['logits']
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(serve(tmp_path / 'model', images)['logits'], expected, rtol=1e-4, atol=1e-5)
    assert list(scratch.iterdir()) == []


def test_an_exported_model_knows_neither_devices_nor_the_other_layout(exported: Path) -> None:
    model: Any = SavedModel()
    model.ParseFromString((exported / 'model' / 'saved_model.pb').read_bytes())
    functions = model.meta_graphs[0].graph_def.library.function
    serving = [f for f in functions if not f.signature.name.startswith('__inference__traced_')]
    nodes = [node for function in serving for node in function.node_def]
    assert any(node.op == 'Conv2D' for node in nodes)
    assert {node.device for node in nodes} == {''}
    # What has its default (NHWC, training) is not written.
    assert not any(node.attr['data_format'].s == b'NCHW' for node in nodes)
    norms = [node.attr for node in nodes if node.op == 'FusedBatchNormV3']
    assert norms
    assert all('is_training' in attributes and not attributes['is_training'].b for attributes in norms)
    loaded = tf.compat.v2.saved_model.load(str(exported / 'model'))
    assert {variable.dtype for variable in loaded.variables_by_name.values()} == {tf.float32}
    assert loaded.variables_by_name['stage1/block1/conv1/kernel'].shape == [3, 3, 16, 16]


def test_a_folder_that_is_not_empty_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / 'thesis.tex').touch()
    with pytest.raises(UsageError, match=rf'^--export_saved_model={tmp_path}: the folder is not empty'):
        train(export_saved_model=str(tmp_path))
    with pytest.raises(UsageError, match='a file is where a folder must be'):
        train(export_saved_model=str(tmp_path / 'thesis.tex'))


def test_a_run_that_trains_nothing_exports_nothing(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r'export_saved_model=.* has no effect: --forward_only trains nothing'):
        train(forward_only=True, init_learning_rate=None, export_saved_model=str(tmp_path / 'model'))
    assert list((tmp_path / 'model').iterdir()) == []
