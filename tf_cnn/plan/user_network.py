"""Builds the network of a user's model before the run, to find its faults early."""

import functools

import tensorflow.compat.v1 as tf

from models.model_spec import ModelSpec
from models.network_check import check_network
from tf_cnn.plan.params import Params
from tf_cnn.plan.workload import Data
from tf_cnn.training.precision import make_precision


def check_user_network(params: Params, model: ModelSpec, data: Data) -> None:
    """Builds a user's network for each use in the run: steps, evaluations, export.

    Raises UsageError, with the line of the file, if it fails. params: resolved.
    """
    if model.network.is_builtin:
        return
    check = functools.partial(
        check_network, model.network, model.name, data.image_shape, data.data_set.num_classes
    )
    data_format, dtype = (
        params.devices.layout,
        make_precision(params.precision, has_loss=False).compute_dtype,
    )
    if not params.evaluation.eval:
        check(data_format, dtype, batch_size=params.run.batch_size, trains=params.trains)
    if params.evaluates:
        check(data_format, dtype, batch_size=params.evaluation.eval_batch_size, trains=False)
    if params.checkpoints.export_saved_model:
        check('NHWC', tf.float32, batch_size=None, trains=False)
