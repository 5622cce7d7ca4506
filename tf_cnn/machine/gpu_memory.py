"""How this process allocates the memory of its GPUs. Imports TensorFlow only when the options are
made.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_cnn.machine.config import TARGETS

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

_OPTIONS = 'gpu_options.'
# The flags that set a field of GPUOptions. GPUOptions.Experimental in
# tensorflow/core/protobuf/config.proto explains most of them.
MEMORY_FLAGS = tuple(name for name, target in TARGETS.items() if target.startswith(_OPTIONS))


def make_gpu_options(flags: Mapping[str, Any]) -> 'tf.GPUOptions':
    """Returns the options of sessions, servers and the eager context. Fields with their default are
    not set.
    """
    import tensorflow.compat.v1 as tf

    options = tf.GPUOptions()
    for name, value in flags.items():
        *parents, field = TARGETS[name].removeprefix(_OPTIONS).split('.')
        if value:
            message = options
            for parent in parents:
                message = getattr(message, parent)
            setattr(message, field, value)
    return options


def share_memory_options(flags: Mapping[str, Any]) -> bool:
    """Gives the eager context of this process the options of its sessions; False if that context
    exists already.

    A process has one allocator for each GPU, with the options of whatever opens the GPU first. That
    can be the eager context, although only graphs run: it opens GPUs when a function is defined, as
    by Dataset.map, or when logical devices are listed. tf.config could set the growth of its
    memory, but not the fraction. Only enable_eager_execution takes a ConfigProto, and only while
    eager execution is off.
    """
    import tensorflow.compat.v1 as tf

    options = make_gpu_options(flags)
    if options == tf.GPUOptions():
        return True
    tf.disable_eager_execution()
    try:
        tf.enable_eager_execution(config=tf.ConfigProto(gpu_options=options))
    except (AttributeError, ValueError):
        # TensorFlow 2.21 raises AttributeError, because of a mistake in the message of the
        # ValueError.
        tf.disable_eager_execution()
        tf.enable_eager_execution()
        return False
    return True
