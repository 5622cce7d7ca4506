"""Applies the settings that a run makes for its whole process.

TensorFlow and its libraries read many settings once in a process: environment variables, threads,
memory options. The first run of a process chooses them, a later run with another value of one is
refused, and nothing is reset. What a later run leaves open stays as it is. Imports TensorFlow only
in start_tensorflow.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.config import TARGETS
from tf_cnn.machine.gpus import VISIBLE_VARIABLE, has_nvidia_gpu
from tf_cnn.system.errors import UsageError
from tf_cnn.system.kernel_files import ROOT

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


INTRA, NUMA = '--num_intra_threads', '--use_numa_affinity'
DETERMINISTIC, TF32 = '--deterministic', '--tf32'
# Keys are the numbers of M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD in glibc's
# malloc.h.
_KEEP_MEMORY = {-8: 1, -4: 0, -1: 2**31 - 1, -2: 64 << 20}


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of a run for its whole process."""

    gpus: str | None = None  # CUDA_VISIBLE_DEVICES; None: the host has no GPU
    # See process_settings.memory_flags; None: the process does not compute on GPUs.
    memory: Mapping[str, int] | None = None
    keeps_memory: bool = False
    # By flag, such as '--xla', or environment variable; None: an unchanged variable.
    values: Mapping[str, Any] = field(default_factory=dict)
    numa: str = ''  # the NUMA binding in the banner
    cores: tuple[int, ...] = ()  # the cores of the NUMA node to bind the process to


class ThisProcess:
    """The settings of this process.

    Methods raise UsageError if an earlier run had other settings, or if other code of this process
    has opened the GPUs.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._environ = environ
        # By the flag ('--xla') or the variable.
        self._settings: dict[str, Any] = {}
        # The user's values of the variables that runs have set.
        self._of_user: dict[str, str | None] = {}

    def setting(self, name: str) -> Any:
        """Returns the value of a flag or variable that a run has set for the process, or None."""
        return self._settings.get(name)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables as the user set them, before runs changed them."""
        variables = {**self._environ, **self._of_user}
        return {name: value for name, value in variables.items() if value is not None}

    def start_tensorflow(self, settings: ProcessSettings) -> 'list[tf.config.PhysicalDevice]':
        """Applies the settings that TensorFlow reads when it starts, imports it, and returns the
        GPUs that it sees.
        """
        self.show_gpus(settings.gpus)
        self.record(settings.values)
        if settings.keeps_memory:
            keep_memory()
        import_tensorflow()
        import tensorflow.compat.v1 as tf

        if settings.memory:
            self._take_memory(settings.memory)
        gpus: list[Any] = tf.config.list_physical_devices('GPU')
        return gpus

    def apply(self, settings: ProcessSettings) -> None:
        """Applies the settings that sessions read. Call it before building graphs, because the
        choice of ops may depend on them.
        """
        import tensorflow.compat.v1 as tf

        self.record(settings.values)
        if settings.values.get(DETERMINISTIC):
            tf.compat.v2.config.experimental.enable_op_determinism()
        if (tf32 := settings.values.get(TF32)) is not None:
            tf.config.experimental.enable_tensor_float_32_execution(tf32)
        if settings.cores:
            # Binds this thread, and all threads that it and they start later.
            os.sched_setaffinity(0, settings.cores)

    def show_gpus(self, gpus: str | None) -> None:
        """Makes these GPUs visible to TensorFlow, or to a CUDA-aware MPI, before it lists GPUs."""
        visible_gpus = self._settings.get(VISIBLE_VARIABLE)
        # A later run may use fewer GPUs than the first one.
        if visible_gpus is None or (gpus and not f'{visible_gpus},'.startswith(f'{gpus},')):
            self.record({} if gpus is None else {VISIBLE_VARIABLE: gpus})

    def record(self, values: Mapping[str, Any]) -> None:
        """Records settings of the whole process, by flag or variable, and sets the variables."""
        for name, value in values.items():
            if (earlier := self._settings.get(name, value)) != value:
                raise UsageError(
                    f'{name}={value}: an earlier run in this process had {name}={earlier}, and '
                    'TensorFlow keeps that until the process ends; start a new process'
                )
        self._settings.update(values)
        for name, value in values.items():
            if value is not None and name.isupper():
                self._of_user.setdefault(name, self._environ.get(name))
                self._environ[name] = value

    def _take_memory(self, memory: Mapping[str, Any]) -> None:
        """Sets the memory options of the run for all of TensorFlow in this process."""
        options = {f'--{name}': value for name, value in memory.items()}
        if self._settings.keys().isdisjoint(options) and not share_memory_options(memory):
            raise UsageError(
                f'{" ".join(f"{name}={value}" for name, value in options.items() if value)}: '
                'TensorFlow was used in this process before, and keeps its memory options for '
                'GPUs; start a new process'
            )
        self.record(options)


def keep_memory() -> None:
    """Makes glibc keep freed memory, in one arena. Otherwise each large buffer is mapped anew, and
    the kernel clears its pages.

    Existing threads keep their arenas, so call this before TensorFlow starts threads.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in _KEEP_MEMORY.items():
            libc.mallopt(parameter, value)


THIS_PROCESS = ThisProcess()


# Device files of a GPU with the AMD driver, or in Windows Subsystem for Linux.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')


class ProcessEnvironment:
    """The process of a run, and its host. `root` is the folder with dev/, proc/ and sys/. Nothing
    else that prepares a run reads os.environ, so that tests can pass an environment.

    variables: by default the environment variables as the user set them.
    """

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        process: ThisProcess = THIS_PROCESS,
        root: Path = ROOT,
    ) -> None:
        self.variables = process.environment if variables is None else variables
        self.process = process
        self.root = root

    @property
    def has_tensorflow(self) -> bool:
        """Whether an earlier run or other code of this process has imported TensorFlow."""
        return 'tensorflow' in sys.modules

    @property
    def has_no_gpus(self) -> bool:
        """Whether this machine certainly has no GPU, without importing TensorFlow, which takes
        seconds.

        False once TensorFlow is imported: listing its GPUs then costs nothing.
        """
        if self.has_tensorflow or sys.platform != 'linux':
            return False
        return not (
            has_nvidia_gpu(root=self.root)
            or any((self.root / name).exists() for name in _OTHER_GPUS)
        )
