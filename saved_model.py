"""A checkpoint as a SavedModel that plain TensorFlow serves."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

import preprocessing
from models.layers import Initializer, Tensor
from models.networks import build_network
from training.contents import open_checkpoint
from training.instruments import writing
from training.variables import HOST_DEVICE


class _Values:
    """The variables of a model outside of any graph, each made with its value in a checkpoint when it is asked for."""

    def __init__(self, prefix: str) -> None:
        self.variables: dict[str, tf.Variable] = {}
        self._reader = open_checkpoint(prefix)

    def read(self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True) -> Tensor:
        del initializer
        if name not in self.variables:
            value = self._reader.get_tensor(name)
            assert value.shape == tuple(shape)
            # Not on a GPU, where there is one: its memory may be the session's.
            with tf.init_scope(), tf.device(HOST_DEVICE):
                self.variables[name] = tf.compat.v2.Variable(value, trainable, name=name, dtype=tf.float32)
        return self.variables[name].read_value()

    def assign(self, name: str, value: Tensor) -> None:
        """Nothing is assigned to: batch norm takes its moving averages as they are."""
        raise NotImplementedError(name)


def export_saved_model(
    folder: str, prefix: str, network: str, num_classes: int, image_shape: tuple[int, int, int]
) -> None:
    """Writes a SavedModel whose signature serving_default maps images to what a network makes of them.

    It takes `images` [N, H, W, C] uint8, N being any number, normalises them as training does, and returns `logits` and
    `probabilities` [N, num_classes] float32, and `classes` [N] int64, the most probable one of each image. Its
    operations are NHWC and on no particular device; its variables are float32, under their names in the model.

    Args:
      folder: where to write; it must be empty, or missing.
      prefix: the checkpoint.
      network: a name of models.networks.NETWORKS.
      image_shape: H, W, C.

    Raises:
      RunError: the checkpoint cannot be read, or the folder not be written.
    """
    values = _Values(prefix)

    def serve(images: Tensor) -> dict[str, Tensor]:
        pixels = preprocessing.normalize(images)
        logits = build_network(network, pixels, num_classes, values, 'NHWC', is_training=False).logits
        return {
            'logits': tf.identity(logits),
            'probabilities': tf.nn.softmax(logits),
            'classes': tf.argmax(logits, axis=1, output_type=tf.int64),
        }

    v2 = tf.compat.v2
    module = v2.Module()
    images = v2.TensorSpec([None, *image_shape], tf.uint8, name='images')
    # Nothing in there depends on values, so there is nothing to convert.
    module.serve = v2.function(serve, input_signature=[images], autograph=False)
    signature = module.serve.get_concrete_function()
    # Known by now. A module keeps a dict of variables, by their names.
    module.variables_by_name = values.variables
    with writing('export_saved_model', folder):
        v2.saved_model.save(module, folder, signatures={'serving_default': signature})
