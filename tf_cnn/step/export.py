"""Exports the model of a run as a SavedModel, which TensorFlow serves without this program."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import preprocessing
from models.layers import Tensor
from models.model_spec import Network
from models.networks import build_network
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.event_files import report_write_errors
from tf_cnn.step.evaluation import InferenceVariables, read_whole
from tf_cnn.system.atomic import move_atomically
from tf_cnn.training.checkpoints import Slice

Array = np.ndarray[Any, Any]

# In the folder assets of a SavedModel: line i, counted from 0, names output i.
_CLASS_NAMES_FILE = 'class_names.txt'


def read_model(slices: Mapping[str, Sequence[Slice]]) -> dict[str, Tensor]:
    """Adds ops that read the variables of the model at the end of a run, by name."""
    with tf.name_scope('model_values'):
        return {name: read_whole(variable_slices) for name, variable_slices in slices.items()}


def run_each(session: tf.Session, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Returns the values of tensors as float32, by name.

    In one session call for each: all variables of a large model may exceed the size of a message
    between processes.
    """
    return {name: session.run(tensor).astype(np.float32) for name, tensor in tensors.items()}


def export_saved_model(
    folder: str,
    values: Mapping[str, Array],
    network: Network,
    num_classes: int,
    image_shape: tuple[int, int, int],
    scale: preprocessing.Scale | None = None,
    class_names: Sequence[str] | None = None,
) -> None:
    """Writes a SavedModel that classifies images by its signature serving_default.

    Input: `images` [N, H, W, C] uint8, for any N. The model normalises them by scale, as training
    does; None: to [-1, 1].
    Outputs: `logits` and `probabilities` [N, num_classes] float32; `classes` [N] int64, the most
    probable class of each image.

    class_names, one for each output, become the lines of the asset class_names.txt; None: there is
    no asset.

    The ops are NHWC and float32, and are not placed on a device. The variables have the names of
    the model.

    The folder must be missing or empty. It is renamed into place when it is complete, so a killed
    process leaves only a hidden .tf_cnn_benchmarks-* beside it.
    """
    variables: dict[str, tf.Variable] = {}

    def read_variable(name: str, _shape: object, _initializer: object, trainable: bool) -> Tensor:
        if name not in variables:
            # Created on the host, since GPU memory may be full, and outside the traced function
            # (init_scope).
            with tf.init_scope(), tf.device(HOST_DEVICE):
                variables[name] = tf.compat.v2.Variable(values[name], trainable, name=name)
        return variables[name].read_value()

    def serve(images: Tensor) -> dict[str, Tensor]:
        pixels = preprocessing.normalize(images, scale)
        source = InferenceVariables(read_variable)
        logits = build_network(
            network, pixels, num_classes, source, 'NHWC', is_training=False
        ).logits
        return {
            'logits': tf.identity(logits),
            'probabilities': tf.nn.softmax(logits),
            'classes': tf.argmax(logits, axis=1, output_type=tf.int64),
        }

    v2 = tf.compat.v2
    module = v2.Module()
    images = v2.TensorSpec([None, *image_shape], tf.uint8, name='images')
    # autograph=False: no Python control flow in `serve` depends on tensors.
    signature = v2.function(
        serve, input_signature=[images], autograph=False
    ).get_concrete_function()
    # Tracing has created the variables. A module tracks the variables in a dict attribute.
    module.variables_by_name = variables
    path = Path(folder).absolute()
    with (
        report_write_errors('export_saved_model', folder),
        tempfile.TemporaryDirectory(prefix='.tf_cnn_benchmarks-', dir=path.parent) as temporary,
    ):
        unfinished = Path(temporary, 'model')
        if class_names is not None:
            names_file = Path(temporary, _CLASS_NAMES_FILE)
            names_file.write_bytes(''.join(f'{name}\n' for name in class_names).encode())
            module.class_names_file = v2.saved_model.Asset(str(names_file))
        # TensorFlow removes its temporary source files when Python exits. Processes of a cluster
        # exit without that, so the files go where `temporary` is removed.
        original_tempdir, tempfile.tempdir = tempfile.tempdir, temporary
        try:
            v2.saved_model.save(module, str(unfinished), signatures={'serving_default': signature})
        finally:
            tempfile.tempdir = original_tempdir
        move_atomically(unfinished, path)
