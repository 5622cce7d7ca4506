"""What a run sets for its whole process, and the one place that sets it.

TensorFlow and the libraries below it read many settings once in a process: environment variables,
threads, how memory is taken. So the first run of a process chooses them, later runs that need
others are refused, and nothing is taken back. Does not import TensorFlow until it starts it.
"""

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.gpu_memory import GpuMemory, share_memory_options
from tf_cnn.machine.gpus import VISIBLE_VARIABLE
from tf_cnn.machine.numa import bind
from tf_cnn.system.errors import UsageError
from tf_cnn.system.signals import SIGNALS

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

INTRA, NUMA = '--num_intra_threads', '--use_numa_affinity'
DETERMINISTIC, TF32 = '--deterministic', '--tf32'
# Keys are the numbers of M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD in glibc's
# malloc.h.
_KEEP_MEMORY = {-8: 1, -4: 0, -1: 2**31 - 1, -2: 64 << 20}


@dataclass(frozen=True)
class ProcessSettings:
    """What a run sets for its whole process."""

    gpus: str | None = None  # its CUDA_VISIBLE_DEVICES; None if its host has none
    memory: GpuMemory | None = None  # how it is taken; None if the process computes on no GPU
    keeps_memory: bool = False
    variables: Mapping[str, str | None] = field(
        default_factory=dict
    )  # of the environment; None leaves one as it is
    flags: Mapping[str, Any] = field(
        default_factory=dict
    )  # what else runs share, by the flag, such as '--xla'
    numa: str = ''  # what the banner shows as bound to NUMA nodes
    cores: tuple[int, ...] = ()  # those of the NUMA node to which the process is to be bound


class ThisProcess:
    """The settings of this process; methods raise UsageError if an earlier run or other program
    used other settings.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._environ = environ
        # By the flag ('--xla') or the variable.
        self._settings: dict[str, Any] = {}
        # What the user had set, of the variables that runs have set.
        self._of_user: dict[str, str | None] = {}

    def setting(self, name: str) -> Any:
        """Returns the value of a flag or variable that a run has set for the whole process; None if
        none did.
        """
        return self._settings.get(name)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment as the user set it, without what runs of this process have set."""
        variables = {**self._environ, **self._of_user}
        return {name: value for name, value in variables.items() if value is not None}

    def start_tensorflow(self, settings: ProcessSettings) -> 'list[tf.config.PhysicalDevice]':
        """Sets what TensorFlow reads when it starts, imports it, and returns the GPUs that it
        sees.
        """
        self.show_gpus(settings.gpus)
        self._keep_variables(settings.variables)
        if settings.keeps_memory:
            keep_memory()
        SIGNALS.call_uninterrupted(import_tensorflow)
        import tensorflow.compat.v1 as tf

        if settings.memory:
            self._take_memory(settings.memory)
        gpus: list[Any] = tf.config.list_physical_devices('GPU')
        return gpus

    def apply(self, settings: ProcessSettings) -> None:
        """Sets what sessions read. Call it before graphs are built: ops may be chosen by these
        settings.
        """
        import tensorflow.compat.v1 as tf

        self.record(settings.flags)
        self._keep_variables(settings.variables)
        if settings.flags.get(DETERMINISTIC):
            tf.compat.v2.config.experimental.enable_op_determinism()
        if (tf32 := settings.flags.get(TF32)) is not None:
            tf.config.experimental.enable_tensor_float_32_execution(tf32)
        if settings.cores:
            bind(settings.cores)

    def show_gpus(self, gpus: str | None) -> None:
        """Shows these GPUs to TensorFlow, or to an MPI that knows CUDA, before it looks for
        them.
        """
        if gpus is None:
            return
        # An earlier run in this process may have been shown more, but no others.
        visible_gpus = self._settings.get(VISIBLE_VARIABLE, gpus)
        self._keep_variables(
            {
                VISIBLE_VARIABLE: visible_gpus
                if not gpus or f'{visible_gpus},'.startswith(f'{gpus},')
                else gpus
            }
        )

    def record(self, settings: Mapping[str, Any]) -> None:
        """Notes settings of the whole process, by the flag or variable."""
        for name, value in settings.items():
            first = self._settings.get(name, value)
            if first != value:
                raise UsageError(
                    f'{name}={value}: an earlier run in this process had {name}={first}, and '
                    'TensorFlow keeps that until the process ends; start a new process'
                )
        self._settings.update(settings)

    def _keep_variables(self, variables: Mapping[str, str | None]) -> None:
        self.record(variables)
        for name, value in variables.items():
            if value is not None:
                self._of_user.setdefault(name, self._environ.get(name))
                self._environ[name] = value

    def _take_memory(self, memory: GpuMemory) -> None:
        """Gives all parts of TensorFlow in this process the memory options of the run."""
        options = {f'--{name}': value for name, value in dataclasses.asdict(memory).items()}
        if self._settings.keys().isdisjoint(options) and not share_memory_options(memory):
            raise UsageError(
                f'{" ".join(f"{name}={value}" for name, value in options.items() if value)}: '
                'TensorFlow was used in this process before, and keeps how it takes the memory of '
                'GPUs; start a new process'
            )
        self.record(options)


def keep_memory() -> None:
    """Makes glibc keep freed memory, in one arena: the kernel clears each page of a large buffer
    that is mapped anew.

    Threads that exist already keep their arenas, so this comes before TensorFlow starts its own.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in _KEEP_MEMORY.items():
            libc.mallopt(parameter, value)


THIS_PROCESS = ThisProcess()
