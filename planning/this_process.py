"""What a run sets for its whole process, most of it until the process ends; and the owner that sets it.

TensorFlow and the libraries below it read many settings once in a process: environment variables, threads, how memory
is taken. So the plan of a run has them as facts, and THIS_PROCESS applies them: it knows what earlier runs of the
process have set, what can be set anew, and what cannot be changed a second time.

Does not import TensorFlow until it starts it.
"""

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cluster.signals import uninterrupted
from errors import UsageError
from machine.gpu_memory import GpuMemory, share_memory_options
from machine.gpus import VISIBLE
from machine.numa import bind
from machine.quiet import without_gpu_notices
from machine.tensorflow_import import import_tensorflow

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

INTRA, NUMA = 'num_intra_threads', 'use_numa_affinity'
XLA_ON_CPU = '--tf_xla_cpu_global_jit'
_DETERMINISTIC = 'deterministic'
# Keys are the numbers of M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD in glibc's malloc.h.
_KEEP_MEMORY = {-8: 1, -4: 0, -1: 2**31 - 1, -2: 64 << 20}


@dataclass(frozen=True)
class VisibleGpus:
    """Which GPUs of its host a process sees.

    Attributes:
      value: of CUDA_VISIBLE_DEVICES.
      needed: how many GPUs the process computes on.
      is_share: whether other workers of this host have the other GPUs.
    """

    value: str
    needed: int
    is_share: bool

    @property
    def names(self) -> list[str]:
        """The GPUs, as CUDA_VISIBLE_DEVICES names them."""
        return self.value.split(',') if self.value else []


@dataclass(frozen=True)
class StartSettings:
    """What TensorFlow reads when it is imported and first lists the devices.

    Attributes:
      gpus: those that the process sees; None if its host has none.
      variables: environment variables, by name.
      memory: how the memory of GPUs is taken; None if the process computes on none.
      is_verbose: whether TensorFlow's notices about GPUs are shown.
      keeps_memory: whether freed memory of the host stays with the process, see ThisProcess.keep_memory.
    """

    gpus: VisibleGpus | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    memory: GpuMemory | None = None
    is_verbose: bool = False
    keeps_memory: bool = False


@dataclass(frozen=True)
class ProcessSettings:
    """What a run sets for its whole process.

    Attributes:
      start: what TensorFlow reads when it starts.
      variables: environment variables that it reads later, by name.
      kept: the values of the flags that TensorFlow keeps from the first run of a process, by the flag.
      deterministic: whether ops repeat their results bit for bit, where TensorFlow has kernels that do.
      tf32: whether GPUs may compute fp32 in TF32; None leaves that as it is.
      numa: what the banner shows as bound to NUMA nodes; empty if this process is not bound.
      cores: those of the NUMA node to which the process is bound; empty if it is not bound.
    """

    start: StartSettings = StartSettings()
    variables: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    deterministic: bool = False
    tf32: bool | None = None
    numa: str = ''
    cores: tuple[int, ...] = ()


class ThisProcess:
    """The process as earlier runs have left it, and the one that changes it.

    Args:
      environ: its environment.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._kept: dict[str, Any] = {}
        # By the variable: what it was (None: it was not set), and what it was set to.
        self._set_here: dict[str, tuple[str | None, str]] = {}
        self._shown: VisibleGpus | None = None
        # TensorFlow looks for GPUs once. If it had done so before it was told which, it sees all.
        self._has_looked = self._has_looked_early = False

    # ---- what planners ask ----------------------------------------------------------------------------------------

    def kept(self, name: str) -> Any:
        """The value of a flag that an earlier run set for the whole process; None if none did."""
        return self._kept.get(name)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment as the user set it, without what runs of this process have set."""
        found = dict(self._environ)
        for name, (before, value) in self._set_here.items():
            if found.get(name) == value:
                if before is None:
                    del found[name]
                else:
                    found[name] = before
        return found

    @property
    def visible_gpus(self) -> str | None:
        """The CUDA_VISIBLE_DEVICES that runs have set, perhaps for an earlier one; None if it is the user's."""
        return self._environ.get(VISIBLE) if VISIBLE in self._set_here else None

    # ---- what is done to the process ------------------------------------------------------------------------------

    def start_tensorflow(self, settings: StartSettings) -> 'list[tf.config.PhysicalDevice]':
        """Imports TensorFlow with these settings, and returns the GPUs that it sees.

        Raises:
          UsageError: an earlier run in this process, or another program in it, used other settings.
        """
        self.show(settings)
        if settings.keeps_memory:
            self.keep_memory()
        uninterrupted(import_tensorflow)
        import tensorflow.compat.v1 as tf

        if settings.memory:
            self._take_memory(settings.memory)
        with without_gpu_notices(verbose=settings.is_verbose):
            gpus: list[Any] = tf.config.list_physical_devices('GPU')
        self._confirm_shown(len(gpus))
        return gpus

    def show(self, settings: StartSettings) -> None:
        """Sets what TensorFlow, or an MPI that knows CUDA, reads from the environment when it starts."""
        if settings.gpus and self._may_show(settings.gpus):
            self._shown = settings.gpus
            self._set({VISIBLE: settings.gpus.value})
        self._set(settings.variables)

    def keep_memory(self) -> None:
        """Makes glibc keep freed memory, in one arena: it unmaps the heaps of other arenas when they are empty.

        A step puts batches, gradients and what it receives into new buffers of up to hundreds of megabytes, and the
        kernel clears each page that is mapped anew. Threads that exist already keep their arenas, so this comes before
        TensorFlow starts its own.
        """
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            for parameter, value in _KEEP_MEMORY.items():
                libc.mallopt(parameter, value)

    def apply(self, settings: ProcessSettings) -> None:
        """Sets what sessions read. To be called before graphs are built: ops may be chosen by these settings.

        Raises:
          UsageError: an earlier run in this process set what cannot be changed.
        """
        import tensorflow.compat.v1 as tf

        # Those of the start, too: another run may have been planned since, which took them back.
        variables = {**settings.start.variables, **settings.variables}
        for name in self._set_here.keys() - {VISIBLE, *variables}:
            self._restore(name)
        self._set(variables)
        for name, value in settings.kept.items():
            self.keep(name, value)
        if settings.deterministic:
            self.keep(_DETERMINISTIC, True)
            tf.compat.v2.config.experimental.enable_op_determinism()
        elif self.kept(_DETERMINISTIC):
            self.keep(_DETERMINISTIC, False)
        if settings.tf32 is not None:
            tf.config.experimental.enable_tensor_float_32_execution(settings.tf32)
        if settings.cores:
            bind(settings.cores)
            self.keep(NUMA, settings.numa)

    def keep(self, name: str, value: object) -> None:
        """Sets a flag for the whole process.

        Raises:
          UsageError: an earlier run in this process used another value.
        """
        first = self._kept.setdefault(name, value)
        if first != value:
            # 0 is what the flag means that was not given.
            written = f'--{name}={value}' if value or name != INTRA else f'--{name} is not given, or 0'
            raise UsageError(
                f'{written}: an earlier run in this process had {first}, which TensorFlow keeps until the process '
                f'ends; start a new process, or write --{name}={first} for this run'
            )

    def keep_threads(self, config: 'tf.ConfigProto') -> None:
        """To be called before a session is opened: TensorFlow keeps its threads for all later ones of the process."""
        if INTRA not in self._kept:
            self.keep(INTRA, config.intra_op_parallelism_threads)

    # ---- environment variables ------------------------------------------------------------------------------------

    def _set(self, variables: Mapping[str, str]) -> None:
        users = self.environment
        for name, value in variables.items():
            self._environ[name] = value
            self._set_here[name] = (users.get(name), value)

    def _restore(self, name: str) -> None:
        before, value = self._set_here.pop(name)
        if self._environ.get(name) == value:
            if before is None:
                del self._environ[name]
            else:
                self._environ[name] = before

    # ---- GPUs -----------------------------------------------------------------------------------------------------

    def _take_memory(self, memory: GpuMemory) -> None:
        """Gives all parts of TensorFlow in this process the memory options of the run."""
        asked = dataclasses.asdict(memory)
        if 'allow_growth' not in self._kept and not share_memory_options(memory):
            defaults = dataclasses.asdict(GpuMemory())
            name, value = next(item for item in asked.items() if item[1] != defaults[item[0]])
            raise UsageError(
                f'--{name}={value}: TensorFlow was used in this process before, and keeps how it takes the memory of '
                'GPUs; start a new process'
            )
        for name, value in asked.items():
            self.keep(name, value)

    def _may_show(self, gpus: VisibleGpus) -> bool:
        """Whether TensorFlow has not looked for GPUs yet.

        Raises:
          UsageError: it has, and the process does not see those that this run needs.
        """
        if not self._has_looked or self._shown is None:
            return True
        shown = self._shown
        if self._has_looked_early:
            if shown.is_share:
                raise _used_before(shown)
        elif gpus.value and not f'{shown.value},'.startswith(f'{gpus.value},'):
            raise UsageError(
                f'--num_gpus={gpus.needed}: this run would have {VISIBLE}={gpus.value}, and an earlier run in this '
                f'process had {VISIBLE}={shown.value}, which TensorFlow keeps until the process ends; '
                'start a new process'
            )
        return False

    def _confirm_shown(self, num_found: int) -> None:
        """To be called when TensorFlow has listed the GPUs: from now on this process sees these and no others.

        If it sees more than it was shown, somebody had used TensorFlow in this process before. That does no harm to a
        process that is alone on its host; CUDA_VISIBLE_DEVICES is then as it was, and says the truth again.

        Raises:
          UsageError: it would use GPUs of the other workers.
        """
        if self._shown is None or self._has_looked:
            return
        self._has_looked = True
        if num_found > len(self._shown.names):
            self._has_looked_early = True
            self._restore(VISIBLE)
            if self._shown.is_share:
                raise _used_before(self._shown)


def _used_before(gpus: VisibleGpus) -> UsageError:
    return UsageError(
        f'{VISIBLE}={gpus.value}: these are the GPUs of this worker, but TensorFlow was used in this process before '
        f'the run, and keeps all; start a new process, or set {VISIBLE} before TensorFlow is used'
    )


THIS_PROCESS = ThisProcess()
