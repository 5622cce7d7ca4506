"""How this process takes the memory of its GPUs: one set of options for all parts of TensorFlow.

Imports TensorFlow only when the options are made.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


@dataclass(frozen=True)
class GpuMemory:
    """What sessions, servers and the eager context are told; each field is the flag of its name.

    Attributes:
      allow_growth: whether memory is taken as it is needed; None: TensorFlow decides.
      gpu_memory_frac_for_testing: fraction of the memory of each GPU; 0 sets no limit. Above 1, or with
        use_unified_memory, the memory is unified with that of the host, to which it is swapped.
      force_gpu_compatible: whether tensors of the host are in memory from which a GPU can copy.
      timestamped_allocator, gpu_kt_*: see TensorFlow's GPUOptions.Experimental (tensorflow/core/protobuf/config.proto).
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
        """The flags of a run."""
        return cls(**{field.name: getattr(params, field.name) for field in dataclasses.fields(cls)})

    def options(self) -> 'tf.GPUOptions':
        """The options of sessions and servers. Fields that ask for the default are left out."""
        import tensorflow.compat.v1 as tf

        options = tf.GPUOptions()
        if self.allow_growth is not None:
            options.allow_growth = self.allow_growth
        if self.gpu_memory_frac_for_testing:
            options.per_process_gpu_memory_fraction = self.gpu_memory_frac_for_testing
        if self.force_gpu_compatible:
            options.force_gpu_compatible = True
        for name, value in (
            ('use_unified_memory', self.use_unified_memory),
            ('timestamped_allocator', self.timestamped_allocator),
            ('kernel_tracker_max_interval', self.gpu_kt_max_interval),
            ('kernel_tracker_max_bytes', self.gpu_kt_max_bytes),
            ('kernel_tracker_max_pending', self.gpu_kt_max_pending),
        ):
            if value:
                setattr(options.experimental, name, value)
        return options


def share_memory_options(memory: GpuMemory) -> bool:
    """Gives the eager context of this process the options of its sessions; to be called before TensorFlow is used.

    A GPU has one allocator in a process, made by what opens the GPU first. That can be the eager context, although
    graphs alone are run: to define a function, as Dataset.map does, is enough to open it, and so is to list logical
    devices. tf.config could set the growth of its memory, but not the fraction. Only enable_eager_execution takes a
    ConfigProto, and only while eager execution is off.

    Returns:
      False if it is too late: the context exists.
    """
    import tensorflow.compat.v1 as tf

    options = memory.options()
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
