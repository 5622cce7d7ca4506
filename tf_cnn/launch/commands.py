"""The tasks of a cluster, and the command of each of its processes."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tf_cnn.cluster.topology import HOSTS_FLAGS, LOOPBACK, join_host_port
from tf_cnn.flags.spec import Output
from tf_cnn.launch.config import REMOTE_FLAGS, ClusterOptions
from tf_cnn.launch.host_layout import (
    HostSlots,
    Layout,
    lay_out_tasks,
    read_host_file,
    read_hosts_flag,
)
from tf_cnn.launch.hosts import (
    ClusterTask,
    Command,
    Host,
    make_network,
    make_tasks,
    reserve_addresses,
)
from tf_cnn.launch.ssh import SshTarget, prepare_hosts
from tf_cnn.machine.config import parse_gpu_indices
from tf_cnn.machine.gpus import VISIBLE_VARIABLE
from tf_cnn.managers.modes import MODES, Mode, Topology
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.plan.params import Params, output_flags
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.system.errors import UsageError, format_flag
from tf_cnn.system.place import FOLDER

# The port of the first process that --dry_run prints; the other processes use the next ones.
_FIRST_PORT = 50000
_FIRST_PRIVATE_PORT = 2222
_NUM_LOCAL_WORKERS = 2
# Only one process may write to these paths.
_SINGLE_WRITER_FLAGS = output_flags(Output.FILE, Output.PREFIX)


def choose_layout(options: ClusterOptions, mode: Mode) -> Layout:
    flag, slots = read_slots(options)
    workers = options.workers
    if workers is None and not flag:
        workers = _NUM_LOCAL_WORKERS
    num_ps = int(mode.needs_servers) if options.ps is None else options.ps
    layout = lay_out_tasks(slots, flag, workers, num_ps, int(mode.has_controller))
    if is_single_process(layout) and mode.runs_in(Topology.LOCAL):
        return layout
    mode_flag = format_flag('variable_update', mode.name)
    if not mode.has_cluster:
        startable_modes = ', '.join(other.name for other in MODES.values() if other.has_cluster)
        raise UsageError(f'{mode_flag}: cluster cannot start it; use one of {startable_modes}')
    if options.ps == 0 and mode.needs_servers:
        raise UsageError(
            f'--ps=0: {mode_flag} keeps its variables on parameter servers; use --ps=1 or more'
        )
    if options.ps and not mode.runs_in(Topology.PARAMETER_SERVERS):
        raise UsageError(f'--ps={options.ps}: {mode_flag} has no parameter servers; remove --ps')
    return layout


def is_single_process(layout: Layout) -> bool:
    """Whether the only task is a worker: it runs without a cluster, in any mode that can."""
    return sum(map(len, layout.values())) == 1


def read_slots(options: ClusterOptions) -> tuple[str, HostSlots]:
    """Returns the flag that names the hosts, or '' for this machine, and the slots of each host."""
    if options.hosts and options.hostfile:
        raise UsageError(f'--hostfile={options.hostfile}: conflicts with --hosts; use one of them')
    if options.hosts:
        return '--hosts', read_hosts_flag(options.hosts)
    if options.hostfile:
        return '--hostfile', read_host_file(options.hostfile)
    for name in REMOTE_FLAGS:
        if value := getattr(options, name):
            raise UsageError(f'--{name}={value}: it needs other hosts; add --hosts or --hostfile')
    return '', {Host().name: None}


def prepare_tasks(
    options: ClusterOptions, layout: Layout, params: Params, stack: ExitStack
) -> list[ClusterTask]:
    """Returns the tasks with their addresses, cores and GPUs; the stack ends the private network.

    Raises:
      RunError: hosts cannot be used.
      UsageError: a host has too few GPUs, or an address that other hosts cannot reach.
    """
    num_gpus = 0 if params.devices.device == 'cpu' else params.devices.num_gpus
    gpu_indices = tuple(parse_gpu_indices(params.tensorflow.gpu_indices))
    if options.hosts or options.hostfile:
        return prepare_hosts(layout, ssh_target(options), num_gpus, gpu_indices)
    [ids] = layout.values()
    if network := make_network(options.private_network):
        stack.callback(network.close)
        # No other program uses ports there; the kernel gives connections other ports.
        addresses = [
            join_host_port(LOOPBACK, _FIRST_PRIVATE_PORT + number) for number in range(len(ids))
        ]
    else:
        addresses = stack.enter_context(reserve_addresses(len(ids)))
    host = Host(network)
    tasks = make_tasks(ids, addresses, num_gpus, gpu_indices)
    return [replace(task, host=host) for task in tasks]


def ssh_target(options: ClusterOptions) -> SshTarget:
    return SshTarget(
        ssh=tuple(shlex.split(options.ssh or 'ssh')),
        python=options.remote_python or sys.executable,
        folder=options.remote_dir or str(FOLDER),
        working_folder=str(Path.cwd()),
    )


def format_commands(options: ClusterOptions, layout: Layout, run_flags: Sequence[str]) -> str:
    """Returns the command of each process, to start the cluster by hand.

    The commands do not divide cores and GPUs among the processes: only the hosts know them.
    """
    target = ssh_target(options)
    has_hosts = bool(options.hosts or options.hostfile)
    tasks: dict[str, tuple[ClusterTask, str]] = {}
    for name, processes in layout.items():
        host = name.rpartition('@')[2] if has_hosts else LOOPBACK
        for job, index in processes:
            task = ClusterTask(job, index, join_host_port(host, _FIRST_PORT + len(tasks)))
            tasks[task.name] = task, name
    commands, text = make_commands(run_flags, [task for task, _ in tasks.values()], {}), ''
    check_cluster_flags(commands)
    for command in commands:
        _, name = tasks[command.name]
        words = shlex.join([*target.program, *command.argv[2:]])
        if has_hosts:
            words = shlex.join(
                [
                    *target.ssh,
                    name,
                    f'cd {shlex.quote(target.working_folder)} 2>/dev/null; exec {words}',
                ]
            )
        text += f'# {command.name}{f" on {name}" if has_hosts else ""}\n{words}\n'
    return text


def check_cluster_flags(commands: Sequence[Command]) -> None:
    """Checks the rules that need the flags of all processes, not just the flags of the run."""
    for command in commands:
        find_cluster(parse_argv(command.argv[2:]).params, {})


def make_commands(
    run_flags: Sequence[str],
    tasks: Sequence[ClusterTask],
    environment: Mapping[str, str],
) -> list[Command]:
    """Returns the command of each task: parameter servers, workers, then the controller.

    Parameter servers and the controller always use all cores of their host: they work only briefly
    in each step, while the workers wait, so reserved cores would be idle most of the time.

    Args:
      run_flags: the flags of all tasks, without the flags that describe the cluster.
      tasks: the tasks, in any order. The controller is the chief, and the workers are
        servers; without a controller the first worker is the chief.
      environment: the variables of this process.
    """
    # Sorted, since the index of a task is also the index of its address.
    jobs = {
        job: sorted((task for task in tasks if task.job == job), key=lambda task: task.index)
        for job in HOSTS_FLAGS
    }
    cluster = [
        format_flag(HOSTS_FLAGS[job], ','.join(task.address for task in job_tasks))
        for job, job_tasks in jobs.items()
        if job_tasks
    ]
    chief = ('controller' if jobs['controller'] else 'worker', 0)
    params = parse_argv(run_flags).params
    # The last value of a flag counts, and an empty value means that the flag is not given.
    empty_output_flags = [f'--{name}=' for name in _SINGLE_WRITER_FLAGS if params.value(name)]
    commands = []
    for task in (task for job_tasks in jobs.values() for task in job_tasks):
        is_chief = (task.job, task.index) == chief
        # --gpu_indices has already chosen the worker's GPUs; it uses all of them.
        no_indices = ['--gpu_indices='] if params.tensorflow.gpu_indices and task.gpus else []
        flags = [*run_flags, *([] if is_chief else empty_output_flags), *no_indices]
        if len(tasks) > 1:
            flags += [
                format_flag('job_name', task.job),
                format_flag('task_index', task.index),
                *cluster,
            ]
        host = task.host or Host()
        env = host.environment(environment)
        commands.append(
            Command(
                name=task.name,
                argv=(*host.program, *flags),
                env=env if task.gpus is None else {**env, VISIBLE_VARIABLE: task.gpus},
                cores=task.cores,
                is_server=task.job != chief[0],
                has_result=is_chief,
                host=task.host,
            )
        )
    return commands


def warnings_of_single_writers(commands: Sequence[Command], params: Params) -> Iterator[str]:
    """Yields a warning if flags for output files are given: only one process gets them."""
    shared = [f'--{name}' for name in _SINGLE_WRITER_FLAGS if params.value(name)]
    if shared and len(commands) > 1:
        writer = next(command.name for command in commands if command.has_result)
        yield f'only {writer} gets {", ".join(shared)}: each process would write to the same path'
