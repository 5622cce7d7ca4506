"""Makes the plan of a run from its flags, the environment and this machine.

Checks that need no TensorFlow run first, so most errors appear together and within a second.
"""

from tf_cnn.cluster.discovery import as_evaluator
from tf_cnn.cluster.environments import is_evaluator
from tf_cnn.managers.modes import MODES
from tf_cnn.params import SPECS, Params, find_idle
from tf_cnn.params.user_modes import load_manager, read_modes
from tf_cnn.planning.counts import count_steps, find_evaluations
from tf_cnn.planning.data import find_data
from tf_cnn.planning.environment import Environment
from tf_cnn.planning.machine import (
    find_machine,
    find_surroundings,
    place_variables,
    warn_of_devices,
    with_a_device,
)
from tf_cnn.planning.outputs import check_outputs, find_checkpoints, find_instruments, find_reports
from tf_cnn.planning.plan import Machine, Plan, Processes, ServerPlan, Subject
from tf_cnn.planning.process_settings import choose_start, find_visible_gpus
from tf_cnn.planning.processes import (
    agree_on_files,
    find_processes,
    own_outputs,
    warn_of_open_ports,
)
from tf_cnn.planning.subject import check_folder, check_rules, find_subject
from tf_cnn.system.errors import Refusals


# Long, because it is the story of a plan, on one screen. A block that refuses leaves out what
# depends on it.
def make_plan(params: Params, environment: Environment) -> Plan | ServerPlan:
    """Returns the plan of this process: of a run, or of a server.

    Raises:
      UsageError: the settings contradict each other, or do not fit the cluster, the data, the files
        or this machine.
      RunError: a checkpoint or the data cannot be read.
    """
    problems, warnings = Refusals(), list[str]()
    collecting = problems.collecting
    if params.variable_mgr_file:
        # The file may have changed since, or another run may have read one with the same modes.
        read_modes(params.variable_mgr_file)
        SPECS['variable_update'].read(params.variable_update)
    params = with_a_device(as_evaluator(params, environment.variables))
    processes: Processes | None = None
    subject: Subject | None = None
    machine: Machine | None = None
    with collecting():
        processes = find_processes(params, environment, warnings)
    computes = not (processes and processes.holds_variables_only)
    with collecting():
        subject = find_subject(params, reads=computes)
    if processes:
        if subject:
            processes = agree_on_files(processes, subject)
            with collecting():
                facts = check_rules(
                    params, subject, is_alone=processes.is_alone, num_ps=processes.shape.num_ps
                )
                # An evaluator is started with the flags of the training tasks, where they do have
                # an effect.
                warnings += [] if is_evaluator(environment.variables) else find_idle(params, facts)
        params = own_outputs(params, processes)
        with collecting():
            gpus = find_visible_gpus(
                params, environment, processes.place_on_host, computes=processes.computes_here
            )
            with collecting():
                if not processes.serves and environment.has_no_gpus(params.device):
                    machine = find_machine(params, environment, processes, gpus, ())
        with collecting():
            if not processes.serves:
                check_outputs(params, is_chief=processes.is_chief)
        with collecting():
            if subject and processes.serves:
                check_folder(params, subject)
            elif subject:
                data = find_data(params, subject, warnings)
                counts = count_steps(params, processes, subject, data)
                with collecting():
                    reports = find_reports(params, processes, subject, counts)
                with collecting():
                    instruments = find_instruments(params, processes, counts, warnings)
                evaluated = find_evaluations(params, processes, data, counts)
    problems.raise_all()
    assert processes
    assert subject
    start = choose_start(params, environment, processes, gpus, warnings)
    # ---- from here on TensorFlow is needed ----
    seen = environment.process.start_tensorflow(start)
    from tf_cnn.planning.session import describe_session
    from tf_cnn.planning.step import describe_step

    if machine is None and computes:
        machine = find_machine(params, environment, processes, gpus, seen)
    if processes.serves:
        session = describe_session(params, environment, processes, machine, start, warnings)
        return ServerPlan(processes, session, params.ps_linger_secs, tuple(warnings))
    assert machine
    with collecting():
        if subject.role.has_manager:
            load_manager(MODES[params.variable_update])
    with collecting():
        step = describe_step(params, processes, subject, data, machine, counts)
    with collecting():
        session = describe_session(params, environment, processes, machine, start, warnings)
    problems.raise_all()
    warn_of_devices(params, environment, machine, facts, warnings)
    warn_of_open_ports(processes, warnings)
    checkpoints = find_checkpoints(params, processes, data, warnings)
    variables = place_variables(params, processes, machine, step.precision.compute.name)
    surroundings = find_surroundings(environment, session)
    # The parts in the order of the class, so that all of this stays on one screen.
    # fmt: off
    return Plan(
        params, tuple(warnings), processes, subject, data, machine, counts, step, variables,
        session, evaluated, checkpoints, reports, instruments, surroundings,
    )
    # fmt: on


def check_launch(params: Params, *, alone: bool = False, here: bool = True) -> None:
    """Checks the flags of a whole cluster, or of one process, before any process is started,
    without TensorFlow.

    `here`: whether the processes are to run on this machine, with its folders and files. Leaves
    errors that depend on the role of a process or on its devices to make_plan.
    """
    problems = Refusals()
    with problems.collecting():
        subject = find_subject(params, reads=here)
        with problems.collecting():
            check_rules(params, subject, is_alone=alone)
        if here:
            check_folder(params, subject)
    with problems.collecting():
        if here:
            check_outputs(params, is_chief=True)
    problems.raise_all()
