"""Plans what a result says about the machine; and whether its GPUs can hold the images. Does not import TensorFlow."""

from typing import TYPE_CHECKING

from hardware.gpus import VISIBLE
from hardware.surroundings import environment_facts
from params import Params
from planning.data import check_gpu_memory
from planning.environment import Environment
from planning.found import Found
from planning.plan import Data, Machine, Surroundings

if TYPE_CHECKING:
    from planning.session import SessionFacts


def find_surroundings(
    params: Params, environment: Environment, data: Data, machine: Machine, session: 'SessionFacts'
) -> Found[Surroundings]:
    """What the run runs on, as it is when the settings of the process are applied.

    Raises:
      UsageError: a GPU cannot hold the images that are to be held.
    """
    process, threads = session.process, session.threads
    variables = {**environment.variables, **process.start.variables, **process.variables}
    if process.start.gpus:
        variables[VISIBLE] = process.start.gpus.value
    facts = environment.machine_facts(
        num_intra_threads=threads.intra_op,
        num_inter_threads=threads.inter_op,
        threads_reason=threads.reason,
        cores=process.cores or None,
    )
    if machine.kind == 'gpu' and machine.is_here:
        check_gpu_memory(params, data, facts['gpus'])
    return Found(Surroundings(facts, environment_facts(variables), environment.git_commit()))
