"""Makes the plan of a run from its flags, the environment and this machine.

Checks that need no TensorFlow run first, so most errors appear together and within a second.
"""

from tf_cnn.cluster.discovery import evaluator_params
from tf_cnn.cluster.environments import is_evaluator
from tf_cnn.managers.user_modes import load_manager, read_modes
from tf_cnn.planning.cluster_role import (
    add_file_hashes,
    find_cluster_role,
    remove_outputs_of_other_tasks,
    warn_of_open_ports,
)
from tf_cnn.planning.counts import count_steps, find_evaluations
from tf_cnn.planning.data import find_data
from tf_cnn.planning.environment import ProcessEnvironment
from tf_cnn.planning.machine import (
    choose_device,
    describe_run_environment,
    find_machine,
    place_variables,
    warn_of_devices,
)
from tf_cnn.planning.outputs import check_outputs, find_checkpoints, find_instruments, find_reports
from tf_cnn.planning.plan import ClusterRole, Machine, Plan, ServerPlan, Workload
from tf_cnn.planning.process_settings import choose_start, find_visible_gpus
from tf_cnn.planning.workload import check_folder, check_rules, find_workload
from tf_cnn.run.params import SPECS, Params
from tf_cnn.system.errors import ErrorCollector


# Long, because it shows all of planning on one screen. A block that finds an error skips its rest;
# planners that depend on its results are nested in it.
def make_plan(params: Params, environment: ProcessEnvironment) -> Plan | ServerPlan:
    """Returns the plan of this process: of a run, or of a server.

    Raises:
      UsageError: settings conflict with each other, the cluster, the data, the files or this
        machine.
      RunError: a checkpoint or the data cannot be read.
    """
    problems, warnings = ErrorCollector(), list[str]()
    collecting = problems.collecting
    if params.variables.variable_mgr_file:
        # The file may have changed, or another run may have read a file with the same modes.
        read_modes(params.variables.variable_mgr_file)
        SPECS['variable_update'].read(params.variables.variable_update)
    params = choose_device(evaluator_params(params, environment.variables))
    cluster_role: ClusterRole | None = None
    workload: Workload | None = None
    machine: Machine | None = None
    with collecting():
        cluster_role = find_cluster_role(params, environment, warnings)
    computes = not (cluster_role and cluster_role.is_parameter_server)
    with collecting():
        workload = find_workload(params, reads=computes)
    if cluster_role:
        if workload:
            cluster_role = add_file_hashes(cluster_role, workload)
            with collecting():
                facts = check_rules(
                    params,
                    workload,
                    is_alone=cluster_role.is_single_process,
                    num_ps=cluster_role.shape.num_ps,
                )
                # An evaluator gets the flags of the training tasks, which do not ignore them.
                warnings += (
                    []
                    if is_evaluator(environment.variables)
                    else params.ignored_flag_warnings(facts)
                )
        params = remove_outputs_of_other_tasks(params, cluster_role)
        with collecting():
            gpus = find_visible_gpus(
                params,
                environment,
                cluster_role.place_on_host,
                computes=cluster_role.has_local_towers,
            )
            with collecting():
                if not cluster_role.is_server and environment.has_no_gpus(params.devices.device):
                    machine = find_machine(params, environment, cluster_role, gpus, ())
        with collecting():
            if not cluster_role.is_server:
                check_outputs(params, is_chief=cluster_role.is_chief)
        with collecting():
            if workload and cluster_role.is_server:
                check_folder(params, workload)
            elif workload:
                data = find_data(params, workload, warnings)
                counts = count_steps(params, cluster_role, workload, data)
                with collecting():
                    reports = find_reports(params, cluster_role, workload, counts)
                with collecting():
                    instruments = find_instruments(params, cluster_role, counts, warnings)
                evaluated = find_evaluations(params, cluster_role, data, counts)
    problems.raise_all()
    assert cluster_role
    assert workload
    start = choose_start(params, environment, cluster_role, gpus, warnings)
    # ---- from here on TensorFlow is needed ----
    visible_gpus = environment.process.start_tensorflow(start)
    from tf_cnn.planning.session import describe_session
    from tf_cnn.planning.step import describe_step

    if machine is None and computes:
        machine = find_machine(params, environment, cluster_role, gpus, visible_gpus)
    if cluster_role.is_server:
        session = describe_session(params, environment, cluster_role, machine, start, warnings)
        return ServerPlan(cluster_role, session, params.cluster.ps_linger_secs, tuple(warnings))
    assert machine
    with collecting():
        if workload.role.has_manager:
            load_manager(params.variables.mode)
    with collecting():
        step = describe_step(params, cluster_role, workload, data, machine, counts)
    with collecting():
        session = describe_session(params, environment, cluster_role, machine, start, warnings)
    problems.raise_all()
    warn_of_devices(params, environment, machine, facts, warnings)
    warn_of_open_ports(cluster_role, warnings)
    checkpoints = find_checkpoints(params, cluster_role, data, warnings)
    variables = place_variables(params, cluster_role, machine, step.precision.compute_dtype.name)
    run_environment = describe_run_environment(environment, session)
    # Positional arguments in the order of the class, so that this function fits one screen.
    # fmt: off
    return Plan(
        params, tuple(warnings), cluster_role, workload, data, machine, counts, step, variables,
        session, evaluated, checkpoints, reports, instruments, run_environment,
    )
    # fmt: on


def check_launch(params: Params, *, is_single_process: bool = False, is_local: bool = True) -> None:
    """Checks the flags of a cluster or of one process before it is started, without TensorFlow.

    make_plan finds errors that depend on the role of a process or on its devices.

    is_local: whether the processes will run on this machine, with its folders and files.
    """
    problems = ErrorCollector()
    with problems.collecting():
        workload = find_workload(params, reads=is_local)
        with problems.collecting():
            check_rules(params, workload, is_alone=is_single_process)
        if is_local:
            check_folder(params, workload)
    with problems.collecting():
        if is_local:
            check_outputs(params, is_chief=True)
    problems.raise_all()
