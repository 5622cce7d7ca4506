"""How this process allocates the memory of its GPUs. Imports TensorFlow only when the options are
made.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class GpuMemory:
    """The settings of sessions, servers and the eager context. Each field is explained at the flag
    of its name.

    GPUOptions.Experimental in tensorflow/core/protobuf/config.proto has more about the last four.
    """

    allow_growth: bool | None = None
    gpu_memory_frac_for_testing: float = 0.0
    use_unified_memory: bool = False
    force_gpu_compatible: bool = False
    timestamped_allocator: bool = False
    gpu_kt_max_interval: int = 0
    gpu_kt_max_bytes: int = 0
    gpu_kt_max_pending: int = 0

    @classmethod
    def of(cls, params: Any) -> 'GpuMemory':
        return cls(**{field.name: getattr(params, field.name) for field in dataclasses.fields(cls)})

    def options(self) -> 'tf.GPUOptions':
        """Returns the options of sessions and servers. Fields with their default are not set."""
        import tensorflow.compat.v1 as tf

        more = tf.GPUOptions.Experimental(
            use_unified_memory=self.use_unified_memory,
            timestamped_allocator=self.timestamped_allocator,
            kernel_tracker_max_interval=self.gpu_kt_max_interval,
            kernel_tracker_max_bytes=self.gpu_kt_max_bytes,
            kernel_tracker_max_pending=self.gpu_kt_max_pending,
        )
        return tf.GPUOptions(
            allow_growth=self.allow_growth,
            per_process_gpu_memory_fraction=self.gpu_memory_frac_for_testing,
            force_gpu_compatible=self.force_gpu_compatible,
            experimental=more if more.ByteSize() else None,
        )


def share_memory_options(memory: GpuMemory) -> bool:
    """Gives the eager context of this process the options of its sessions; False if that context
    exists already.

    A process has one allocator for each GPU, with the options of whatever opens the GPU first. That
    can be the eager context, although only graphs run: it opens GPUs when a function is defined, as
    by Dataset.map, or when logical devices are listed. tf.config could set the growth of its
    memory, but not the fraction. Only enable_eager_execution takes a ConfigProto, and only while
    eager execution is off.
    """
    import tensorflow.compat.v1 as tf

    options = memory.options()
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
