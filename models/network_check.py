"""Checks a user's network before the run."""

import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from models.layers import Tensor
from models.model_spec import Network
from models.networks import Logits, NotLogitsError, PlaceholderVariables, build_network
from tf_cnn.system.errors import UsageError, format_flag


# These arguments determine the network of a run.
def check_network(
    network: Network,
    name: str,
    image_shape: tuple[int, int, int],
    num_classes: int,
    data_format: str,
    dtype: tf.DType,
    *,
    batch_size: int | None,
    trains: bool,
) -> None:
    """Checks a user's network by building it in a separate graph that never runs.

    A run that trains and evaluates calls this once for each, since the network may differ.
    Raises UsageError if the network fails or does not return logits; or, for training, if it has no
    trainable variable or its loss does not depend on one of them.

    Args:
      image_shape: [H, W, C] of the images.
      dtype: the type that layers compute in.
      batch_size: None if it is not known when the graph is built, as in an export.
      trains: whether to check the network as training builds it; otherwise as evaluation and
        --forward_only do.
    """
    flag = format_flag('model', name)
    with tf.Graph().as_default(), explain_network_errors(network, name):
        variables = PlaceholderVariables()
        images = tf.placeholder(tf.float32, [batch_size, *image_shape])
        heads = build_network(
            network, images, num_classes, variables, data_format, is_training=trains, dtype=dtype
        )
        gradients = _gradients(heads, variables) if trains else {}
    if trains and not gradients:
        raise UsageError(f'{flag}: it has no trainable variable; use --forward_only')
    unused = [variable for variable, gradient in gradients.items() if gradient is None]
    if unused:
        raise UsageError(
            f'{flag}: its loss does not depend on {", ".join(unused)}; use or remove these '
            'variables'
        )


@contextlib.contextmanager
def explain_network_errors(network: Network, name: str) -> Iterator[None]:
    """Converts any exception of a user's network builder to UsageError, which names the line of the
    --model_file.
    """
    try:
        yield
    except NotLogitsError as error:
        raise UsageError(f'{format_flag("model", name)}: {error}') from error
    except (Exception, SystemExit) as error:
        if network.is_builtin or isinstance(error, UsageError):
            raise
        if network.file:
            raise network.file.explain(error) from error
        reason = ' '.join(str(error).split())
        raise UsageError(
            f'{format_flag("model", name)}: its network fails: {type(error).__name__}: {reason}'
        ) from error


def _gradients(heads: Logits, variables: PlaceholderVariables) -> dict[str, Tensor | None]:
    """Returns the gradient of the logits for each trainable variable, by name; None for a variable
    that the logits do not depend on.
    """
    if not variables.trainable:
        return {}
    logits = [head for head in heads if head is not None]
    return dict(
        zip(
            variables.trainable,
            tf.gradients(logits, list(variables.trainable.values())),
            strict=True,
        )
    )
