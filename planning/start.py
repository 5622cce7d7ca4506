"""Plans what TensorFlow reads when it starts. Does not import TensorFlow."""

from errors import spelled
from hardware.gpu_memory import GpuMemory
from params import Params
from params.tensorflow_flags import OPENMP
from planning.environment import Environment
from planning.found import Found
from planning.plan import Processes
from planning.this_process import XLA_ON_CPU, StartSettings, VisibleGpus

_XLA_FLAGS = 'TF_XLA_FLAGS'
_NO_OPENMP = "this TensorFlow has no OpenMP: oneDNN's kernels run on its own threads, see --num_intra_threads"


def find_visible_gpus(params: Params, environment: Environment, processes: Processes) -> Found[VisibleGpus | None]:
    """The GPUs that this process is to see; None if its host has none.

    Raises:
      UsageError: the host has fewer GPUs than its processes need.
    """
    # A controller's towers are in other processes; a parameter server keeps its variables on the CPU.
    computes = not processes.elsewhere and not processes.holds_variables_only
    return Found(environment.visible_gpus(params, processes.place_on_host, computes=computes))


def choose_start(
    params: Params, environment: Environment, processes: Processes, gpus: VisibleGpus | None
) -> Found[StartSettings]:
    """What TensorFlow reads when it starts, with a warning for each flag about OpenMP that has no effect."""
    asked = {flag: getattr(params, flag) for flag in OPENMP if getattr(params, flag) is not None}
    variables: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    if environment.has_openmp():
        variables = {OPENMP[flag]: str(value) for flag, value in asked.items()}
    else:
        warnings = tuple(f'{spelled(flag, value)} has no effect: {_NO_OPENMP}' for flag, value in asked.items())
    if params.xla and not processes.holds_variables_only:
        flags = environment.variables.get(_XLA_FLAGS, '')
        variables[_XLA_FLAGS] = flags if XLA_ON_CPU in flags else f'{flags} {XLA_ON_CPU}'.strip()
    computes_on_gpus = gpus is not None and not processes.elsewhere and not processes.holds_variables_only
    memory = GpuMemory.of(params) if computes_on_gpus and params.device != 'cpu' else None
    return Found(StartSettings(gpus, variables, memory, is_verbose=params.verbose), warnings)
