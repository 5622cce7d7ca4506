"""The line of planners: from the settings of a run, and the world as it is, to the plan.

Each planner is a function of the flags that it is about, of the Environment, and of earlier facts; it changes nothing,
and answers with its facts and warnings, or refuses with a UsageError. What can be told without TensorFlow, which takes
seconds to import, comes first, so that most mistakes are told in a fraction of a second and all at once.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from cluster.discovery import as_evaluator
from errors import Refusals
from params import Params
from planning.counts import count_steps, find_evaluations
from planning.data import find_data
from planning.environment import Environment
from planning.found import Found
from planning.machine import (
    check_num_gpus,
    find_machine,
    find_surroundings,
    place_variables,
    warn_of_devices,
    with_a_device,
)
from planning.outputs import (
    check_files,
    check_files_of_cluster,
    find_checkpoints,
    find_instruments,
    find_reports,
)
from planning.plan import Plan, ServerPlan
from planning.process_settings import choose_start, find_visible_gpus
from planning.processes import find_processes, own_outputs, warn_of_public_hosts
from planning.subject import check_folder, check_rules, check_run_rules, find_subject

P = ParamSpec('P')
T = TypeVar('T')


class Unknown:
    """A fact that is not known because a planner refused; what is asked of it is unknown, too."""

    def __getattr__(self, name: str) -> 'Unknown':
        return self

    def __bool__(self) -> bool:
        return False


_UNKNOWN = Unknown()


class Line:
    """Asks planners, one after the other, and collects what they warn of and refuse."""

    def __init__(self) -> None:
        self._warnings: list[str] = []
        self._refusals = Refusals()

    def ask(self, planner: Callable[P, Found[T]], *args: P.args, **more: P.kwargs) -> T:
        """The facts of a planner. It is not asked if one of its arguments is unknown."""
        if not any(isinstance(fact, Unknown) for fact in (*args, *more.values())):
            with self._refusals.collecting():
                found = planner(*args, **more)
                self._warnings += found.warnings
                return found.facts
        return cast('Any', _UNKNOWN)

    def refuse(self) -> None:
        """Raises UsageError with a line for each mistake that was found so far."""
        self._refusals.raise_all()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all planners, in their order."""
        return tuple(self._warnings)


def make_plan(params: Params, environment: Environment) -> Plan | ServerPlan:
    """The plan of this process: of a run, or of a server.

    Raises:
      UsageError: the settings contradict each other, or do not fit the cluster, the data, the files or this machine.
      RunError: a checkpoint or the data cannot be read.
    """
    line, given = Line(), params
    params = with_a_device(as_evaluator(params, environment.variables))
    processes = line.ask(find_processes, params, environment)
    if not processes.holds_variables_only:
        line.ask(check_num_gpus, given)
    subject = line.ask(find_subject, params, environment, reads=not processes.holds_variables_only)
    facts = line.ask(check_rules, params, environment, processes, subject)
    params = line.ask(own_outputs, params, processes)
    gpus = line.ask(find_visible_gpus, params, environment, processes)
    machine = None
    if processes.serves:
        line.ask(check_folder, params, subject)
    else:
        if environment.has_no_gpus(params.device):
            machine = line.ask(find_machine, params, environment, processes, gpus, ())
        line.ask(check_files, params, environment, processes)
        data = line.ask(find_data, params, environment, subject)
        counts = line.ask(count_steps, params, processes, subject, data)
        reports = line.ask(find_reports, params, environment, processes, subject, counts)
        instruments = line.ask(find_instruments, params, processes, counts)
        evaluated = line.ask(find_evaluations, params, processes, data, counts)
    start = line.ask(choose_start, params, environment, processes, gpus)
    line.refuse()
    # ---- from here on TensorFlow is needed ----
    seen = environment.start_tensorflow(start)
    from planning.session import describe_session
    from planning.step import describe_step

    if machine is None and not processes.holds_variables_only:
        machine = line.ask(find_machine, params, environment, processes, gpus, seen)
        line.refuse()
    if processes.serves:
        session = line.ask(describe_session, params, environment, processes, machine, start)
        line.refuse()
        return ServerPlan(processes, session, params.ps_linger_secs, line.warnings)
    assert machine
    step = line.ask(describe_step, params, processes, subject, data, machine, counts)
    session = line.ask(describe_session, params, environment, processes, machine, start)
    line.ask(warn_of_devices, params, environment, machine, facts)
    line.ask(warn_of_public_hosts, processes, environment)
    line.refuse()
    checkpoints = line.ask(find_checkpoints, params, environment, processes)
    variables = line.ask(place_variables, params, processes, machine, step.precision.compute.name)
    surroundings = line.ask(find_surroundings, params, environment, data, machine, session)
    line.refuse()
    # The parts in the order of the class, so that the whole line stays on one screen.
    # fmt: off
    return Plan(
        params, line.warnings, processes, subject, data, machine, counts, step, variables, session, evaluated,
        checkpoints, reports, instruments, surroundings,
    )
    # fmt: on


def check_launch(params: Params, *, alone: bool = False, here: bool = True) -> None:
    """Checks the flags of a whole cluster, or of one process, before any process is started, without TensorFlow.

    Args:
      params: the flags.
      alone: whether it is one process.
      here: whether the processes are to run on this machine, with its folders and files.

    Raises:
      UsageError: as for make_plan, except for errors that depend on the role of a process or on its devices.
    """
    line, environment = Line(), Environment()
    line.ask(check_num_gpus, params)
    subject = line.ask(find_subject, params, environment, reads=here)
    line.ask(check_run_rules, params, subject, is_alone=alone)
    if here:
        line.ask(check_folder, params, subject)
        line.ask(check_files_of_cluster, params, environment)
    line.refuse()
