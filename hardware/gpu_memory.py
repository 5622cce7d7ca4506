"""How this process takes the memory of its GPUs: one set of options for all parts of TensorFlow."""

import tensorflow.compat.v1 as tf


def memory_options(allow_growth: bool | None, fraction: float) -> tf.GPUOptions:
    """The options of sessions and servers.

    Args:
      allow_growth: whether memory is taken as it is needed; None: TensorFlow decides.
      fraction: of the memory of each GPU; 0 sets no limit.
    """
    options = tf.GPUOptions()
    if allow_growth is not None:
        options.allow_growth = allow_growth
    if fraction:
        options.per_process_gpu_memory_fraction = fraction
    return options


def share_memory_options(allow_growth: bool | None, fraction: float) -> bool:
    """Gives the eager context of this process the options of its sessions; to be called before TensorFlow is used.

    A GPU has one allocator in a process, made by what opens the GPU first. That can be the eager context, although
    graphs alone are run: to define a function, as Dataset.map does, is enough to open it, and so is to list logical
    devices. tf.config could set the growth of its memory, but not the fraction. Only enable_eager_execution takes a
    ConfigProto, and only while eager execution is off.

    Returns:
      False if it is too late: the context exists.
    """
    options = memory_options(allow_growth, fraction)
    if options == tf.GPUOptions():
        return True
    tf.disable_eager_execution()
    try:
        tf.enable_eager_execution(config=tf.ConfigProto(gpu_options=options))
    except (AttributeError, ValueError):
        # TensorFlow 2.21 raises the first, by a mistake in the message of the second.
        tf.disable_eager_execution()
        tf.enable_eager_execution()
        return False
    return True
