"""Builds the network of a user's model before the run, to find its faults early."""

import tensorflow.compat.v1 as tf

from models.model_spec import ModelSpec
from models.networks import PlaceholderVariables, build_network
from tf_cnn.plan.params import Params
from tf_cnn.plan.workload import Data
from tf_cnn.system.user_file import user_code
from tf_cnn.training.precision import make_precision


def check_user_network(params: Params, model: ModelSpec, data: Data) -> None:
    """Builds a user's network for each use in the run: steps and evaluations.

    Raises UsageError, with the line of the file, if it fails. params: resolved.
    """
    if model.network.registration is None:
        return
    data_format = params.devices.layout
    dtype = make_precision(params.precision, has_loss=False).compute_dtype
    uses = list[tuple[int | None, str, tf.DType, bool]]()
    if not params.evaluation.eval:
        uses.append((params.run.batch_size, data_format, dtype, params.trains))
    if params.evaluates:
        uses.append((params.evaluation.eval_batch_size, data_format, dtype, False))
    for batch_size, layout, compute_dtype, is_training in uses:
        with tf.Graph().as_default(), user_code(model.network.registration):
            variables = PlaceholderVariables()
            heads = build_network(
                model.network,
                tf.placeholder(tf.float32, [batch_size, *data.image_shape]),
                data.data_set.num_classes,
                variables,
                layout,
                is_training=is_training,
                dtype=compute_dtype,
            )
            if is_training:
                logits = [head for head in heads if head is not None]
                gradients = tf.gradients(logits, [*variables.trainable.values()])
                pairs = zip(variables.trainable, gradients, strict=True)
                if not gradients:
                    raise ValueError('it has no trainable variable; use --forward_only')
                if unused := [name for name, gradient in pairs if gradient is None]:
                    raise ValueError(
                        f'its loss does not depend on {", ".join(unused)}; use or remove these '
                        'variables'
                    )
