"""Plans --use_numa_affinity: which part of a run is bound to a NUMA node, and by whom. Does not import TensorFlow."""

from dataclasses import dataclass

from errors import UsageError
from hardware.numa import choose_node
from params import Params
from planning.environment import Environment
from planning.found import Found
from planning.plan import Machine, Processes
from planning.this_process import NUMA, VisibleGpus


@dataclass(frozen=True)
class NumaBinding:
    """What is bound.

    Attributes:
      shown: for the banner; empty if nothing is bound.
      cores: those to which this process is to be bound; empty if it is not, or already is.
      by_tensorflow: whether TensorFlow binds the threads of each device of the CPU itself.
    """

    shown: str = ''
    cores: tuple[int, ...] = ()
    by_tensorflow: bool = False


def choose_binding(
    params: Params, environment: Environment, processes: Processes, machine: Machine, gpus: VisibleGpus | None
) -> Found[NumaBinding]:
    """The NUMA node that fits this process, to which it is bound before TensorFlow starts its threads.

    The workers of a controller are servers, and only TensorFlow binds their devices.

    Args:
      gpus: those that this process sees.

    Raises:
      UsageError: an earlier run bound this process, and this one asks for none.
    """
    bound = environment.process.kept(NUMA)
    if not params.use_numa_affinity:
        if bound:
            raise UsageError(
                f'--{NUMA}=False: an earlier run in this process had {bound}, and it stays bound until it ends; '
                f'start a new process, or write --{NUMA}=True for this run'
            )
        return Found(NumaBinding())
    if bound:
        return Found(NumaBinding(bound))
    if not machine.is_here:
        return Found(NumaBinding())
    if not environment.can_bind:
        return _idle('only Linux binds processes to cores')
    nodes = environment.numa_nodes()
    of_gpus = environment.gpu_nodes(gpus.value if gpus else None)[: len(machine.towers)]
    choice = choose_node(nodes, processes.place_on_host, of_gpus if machine.kind == 'gpu' else None)
    if choice.node is not None:
        shown = f'True (node {choice.node}, {len(choice.cores)} cores)'
        return Found(NumaBinding(shown, choice.cores))
    if choice.reason:
        return _idle(choice.reason)
    # tensorflow/core/common_runtime/threadpool_device_factory.cc: device i is on node i modulo their number.
    numbers = [list(nodes)[index % len(nodes)] for index in range(len(machine.towers))]
    devices = ', '.join(f'cpu:{index} on node {node}' for index, node in enumerate(numbers))
    return Found(NumaBinding(f'True ({devices})', by_tensorflow=True))


def _idle(reason: str) -> Found[NumaBinding]:
    return Found(NumaBinding(), (f'--{NUMA}=True has no effect: {reason}',))
