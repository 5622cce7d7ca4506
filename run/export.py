"""The model of a run as a SavedModel that plain TensorFlow serves."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import preprocessing
from models.facts import Network
from models.layers import Initializer, Tensor
from models.networks import build_network
from run.evaluation import FixedVariables, read_whole
from run.instruments import writing
from training.checkpoint_files import sync
from training.checkpoints import Slice
from training.variables import HOST_DEVICE

Array = np.ndarray[Any, Any]


class ModelValues:
    """The variables of a model in a run, to be read when it ends. Adds its ops to the current graph.

    Args:
      slices: where their parts are, by name, as StepGraph has them.
    """

    def __init__(self, slices: Mapping[str, Sequence[Slice]]) -> None:
        with tf.name_scope('model_values'):
            self._tensors = {name: read_whole(parts) for name, parts in slices.items()}

    def read(self, session: tf.Session) -> dict[str, Array]:
        """Their values, float32 by name."""
        # One by one: all of a large model may be more than a message between processes can hold.
        return {name: session.run(tensor).astype(np.float32) for name, tensor in self._tensors.items()}


class _Constants(FixedVariables):
    """Gives a network variables that are made with their values when it asks for them."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self._values = values

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> Tensor:
        del shape, initializer
        if name not in self.variables:
            # Not on a GPU, whose memory may be full. Outside of the function that asks for it.
            with tf.init_scope(), tf.device(HOST_DEVICE):
                self.variables[name] = tf.compat.v2.Variable(self._values[name], trainable, name=name)
        return self.variables[name].read_value()


@contextlib.contextmanager
def _removed_in_the_end(folder: Path) -> Iterator[None]:
    """Before the block, too: what a kill left of another time."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def export_saved_model(
    folder: str, values: Mapping[str, Array], network: Network, num_classes: int, image_shape: tuple[int, int, int]
) -> None:
    """Writes a SavedModel whose signature serving_default maps images to what a network makes of them.

    It takes `images` [N, H, W, C] uint8, N being any number, normalises them as training does, and returns `logits` and
    `probabilities` [N, num_classes] float32, and `classes` [N] int64, the most probable one of each image. Its
    operations are NHWC, float32, and on no particular device; its variables have their names in the model.

    The folder appears when all is in it: a kill leaves nothing but .NAME-unfinished beside it, which the next one
    throws away.

    Args:
      folder: where to write; it must be missing or empty.
      values: the variables of the model, float32 by name.
      network: how the network is built.
      image_shape: H, W, C.

    Raises:
      RunError: the folder cannot be written.
    """
    variables = _Constants(values)

    def serve(images: Tensor) -> dict[str, Tensor]:
        pixels = preprocessing.normalize(images)
        logits = build_network(network, pixels, num_classes, variables, 'NHWC', is_training=False).logits
        return {
            'logits': tf.identity(logits),
            'probabilities': tf.nn.softmax(logits),
            'classes': tf.argmax(logits, axis=1, output_type=tf.int64),
        }

    v2 = tf.compat.v2
    module = v2.Module()
    images = v2.TensorSpec([None, *image_shape], tf.uint8, name='images')
    # Nothing in there depends on values, so there is nothing to convert.
    signature = v2.function(serve, input_signature=[images], autograph=False).get_concrete_function()
    # Known by now. A module keeps a dict of variables, by their names.
    module.variables_by_name = variables.variables
    path = Path(folder).absolute()
    unfinished = path.with_name(f'.{path.name}-unfinished')
    with writing('export_saved_model', folder), _removed_in_the_end(unfinished):
        v2.saved_model.save(module, str(unfinished), signatures={'serving_default': signature})
        for parent, _, files in os.walk(unfinished):
            for file in files:
                sync(Path(parent, file))
        unfinished.replace(path)
        sync(path.parent)
