"""Settings that TensorFlow takes from the first run of a process, and keeps until the process ends."""

import dataclasses
import os

import tensorflow.compat.v1 as tf

from errors import UsageError
from hardware.gpu_memory import GpuMemory, share_memory_options
from planning.fixed import INTRA, fix_for_process, fixed_for_process, is_fixed

XLA_ON_CPU = '--tf_xla_cpu_global_jit'


def check_deterministic_ops(wanted: bool) -> None:
    """Raises UsageError if deterministic ops are not wanted, and an earlier run in this process used them."""
    if not wanted and fixed_for_process('deterministic'):
        fix_for_process('deterministic', False)


def use_deterministic_ops() -> None:
    """Makes all later ops of the process repeat their results bit for bit, where TensorFlow has kernels that do.

    To be called before graphs are built: some functions of TensorFlow then choose other ops.
    """
    fix_for_process('deterministic', True)
    tf.compat.v2.config.experimental.enable_op_determinism()


def keep_threads(config: tf.ConfigProto) -> None:
    """To be called before a session is opened: TensorFlow keeps its threads for all later ones of the process."""
    if fixed_for_process(INTRA) is None:
        fix_for_process(INTRA, config.intra_op_parallelism_threads)


def fix_gpu_memory(memory: GpuMemory) -> None:
    """Gives all parts of TensorFlow in this process the memory options of the run.

    Raises:
      UsageError: an earlier run in this process, or another program in it, used other options.
    """
    asked = dataclasses.asdict(memory)
    if not is_fixed('allow_growth') and not share_memory_options(memory):
        defaults = dataclasses.asdict(GpuMemory())
        name, value = next(item for item in asked.items() if item[1] != defaults[item[0]])
        raise UsageError(
            f'--{name}={value}: TensorFlow was used in this process before, and keeps how it takes the memory of GPUs; '
            'start a new process'
        )
    for name, value in asked.items():
        fix_for_process(name, value)


def let_xla_compile_for_cpus() -> None:
    """XLA compiles for the CPU only with this flag, which TensorFlow reads when it first lists the devices."""
    flags = os.environ.get('TF_XLA_FLAGS', '')
    os.environ['TF_XLA_FLAGS'] = f'{flags} {XLA_ON_CPU}'.strip() if XLA_ON_CPU not in flags else flags
