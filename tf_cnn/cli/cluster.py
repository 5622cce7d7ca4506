"""`tf_cnn_benchmarks.py cluster`: starts a cluster. Does not import TensorFlow."""

import contextlib
import ipaddress
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tf_cnn.cli.options import Arguments, Declaration, warn
from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.cluster.environments import environment_for_runs
from tf_cnn.cluster.private_network import PrivateNetwork
from tf_cnn.cluster.topology import HOSTS_FLAGS, LOOPBACK, join_host_port, split_host_port
from tf_cnn.flags.spec import Output, flag
from tf_cnn.launch.host_layout import Layout, lay_out_tasks, read_host_file, read_hosts_flag
from tf_cnn.launch.hosts import ClusterTask, Command, Host
from tf_cnn.launch.launcher import launch
from tf_cnn.launch.ssh import SshTarget, prepare_hosts
from tf_cnn.machine.config import parse_gpu_indices
from tf_cnn.machine.gpus import VISIBLE_VARIABLE, has_nvidia_gpu
from tf_cnn.managers.modes import MODES, Mode, Topology, format_modes
from tf_cnn.run.params import output_flags
from tf_cnn.run.parsing import parse_argv
from tf_cnn.run.plan import check_launch
from tf_cnn.system.errors import RunError, UsageError, format_flag
from tf_cnn.system.place import FOLDER

_SINGLE_WRITER_FLAGS = output_flags(Output.FILE, Output.PREFIX)
# The port of the first process that --dry_run prints; the other processes use the next ones.
_FIRST_PORT = 50000
_NUM_LOCAL_WORKERS = 2
# With these flags no process is started on this machine.
_FLAGS_WITHOUT_LOCAL_TASKS = ('dry_run', 'hosts', 'hostfile')
# The file that CUDA opens first.
_CUDA_FILE = '/dev/nvidia-uvm'
# How long a parameter server may take to exit after the workers have exited.
_PS_EXIT_SECS = 30.0


@dataclass(frozen=True)
class ClusterOptions:
    """The flags of the subcommand. ps=None: the mode decides. workers=None: the hosts decide."""

    ps: int | None = flag(
        None, 'Parameter servers; by default 1 in modes that need them.', lower_bound=0
    )
    workers: int | None = flag(
        None,
        'Workers; by default 2 on this machine, and with --hosts one for each slot.',
        lower_bound=1,
    )
    hosts: str | None = flag(
        None,
        'Start the cluster on these hosts over ssh: a,b or, with the number of workers on each, '
        'a:4,b:4. Each host needs the same version of this program. Parameter servers are '
        'distributed over the hosts without workers, as in a:0,b,c, or else over all hosts; a '
        'controller runs on the first host. Put an IPv6 address in brackets: [fd00::1]:4.',
    )
    hostfile: str | None = flag(
        None, 'A file with the hosts instead, one in each line, such as "a slots=4".', is_path=True
    )
    dry_run: bool = flag(False, 'Only print the command of each process.')
    ssh: str | None = flag(
        None, 'The ssh program with its options; by default ssh. It must not ask for a password.'
    )
    remote_python: str | None = flag(
        None, 'The Python on the hosts; by default the path of the Python that runs here.'
    )
    remote_dir: str | None = flag(
        None, 'The folder of this program on the hosts; by default the same path as here.'
    )
    restart: int = flag(
        0,
        'How often to start all processes again after one has failed; with --train_dir they '
        'continue from its checkpoint.',
        lower_bound=0,
    )
    private_network: bool | None = flag(
        None,
        'Give the processes on this machine a network (a namespace of Linux) that no other '
        'program can reach; by default where the system allows it. Use --noprivate_network for a '
        '--model_file that uses the network.',
    )
    verbose: bool = flag(
        False,
        'Show all output of all processes, and their process ids; each process gets --verbose.',
    )


DECLARATION = Declaration(
    'cluster',
    ClusterOptions,
    examples=(
        '--ps=1 --workers=2 -- --model=resnet50',
        f'--workers=4 -- --model=resnet50 {format_modes(lambda mode: mode.is_for_peers)}',
        '--hosts=node1,node2 --ps=1 -- --model=resnet50',
    ),
    details='FLAGS are the flags of a run; each process also gets its role and the '
    'addresses of all processes. On a machine with GPUs each worker gets --num_gpus of them; '
    'CUDA_VISIBLE_DEVICES restricts which. The standard output of worker 0 (or of the controller, '
    'if the mode has one) is the result. Warnings and errors of all processes go to standard '
    'error, after the name of the process; with --verbose all other lines, too. If a process '
    'fails, the others are stopped, and the command ends with its exit code (128 + n if signal n '
    'ended it).',
)


@DECLARATION.main
def main(arguments: Arguments[ClusterOptions]) -> int:
    """Returns the exit code of launch(). Nothing has been started if it raises UsageError."""
    options = arguments.options
    run_flags = (*arguments.run_argv, *(['--verbose=true'] if options.verbose else []))
    if sys.platform != 'linux':
        raise UsageError(
            f'cluster: it needs Linux, and this is {sys.platform}; start each process yourself'
        )
    has_hosts = bool(options.hosts or options.hostfile)
    params = parse_argv(run_flags).params
    if role := next((name for name in params.given_flags if name in ROLE_FLAGS), None):
        raise UsageError(
            f'{params.given_flags[role]}: cluster gives each process its role and the '
            f'addresses; remove --{role}'
        )
    # Other hosts may have other folders. Their processes check them.
    check_launch(params, is_local=not has_hosts)
    layout = _choose_layout(options, params.variables.mode)
    if options.private_network and (
        other := next(filter(arguments.given_flags.__contains__, _FLAGS_WITHOUT_LOCAL_TASKS), None)
    ):
        raise UsageError(
            '--private_network=true: only processes on this machine can have a private network; '
            f'remove it, or --{other}'
        )
    if options.dry_run:
        print(_format_commands(options, layout, run_flags), end='')
        return 0
    environment = environment_for_runs(os.environ, 'cluster')
    with contextlib.ExitStack() as stack:
        num_gpus = 0 if params.devices.device == 'cpu' else params.devices.num_gpus
        gpu_indices = tuple(parse_gpu_indices(params.tensorflow.gpu_indices))
        if has_hosts:
            tasks = prepare_hosts(layout, _ssh_target(options), num_gpus, gpu_indices)
            _check_addresses(tasks)
        else:
            host = Host(network=_make_network(options.private_network))
            stack.callback(host.close)
            [ids] = layout.values()
            tasks = [replace(task, host=host) for task in host.prepare(ids, num_gpus, gpu_indices)]
        commands = make_commands(run_flags, tasks, environment)
        _check_cluster_flags(commands)
        if shared := [f'--{name}' for name in _SINGLE_WRITER_FLAGS if params.value(name)]:
            writer = next(command.name for command in commands if command.has_result)
            warn(
                f'only {writer} gets {", ".join(shared)}: each process would write to the same path'
            )
        return launch(
            commands,
            quiet=not params.run.verbose,
            num_restarts=options.restart,
            servers_end_secs=_PS_EXIT_SECS + params.cluster.ps_linger_secs,
        )


def _check_addresses(tasks: Sequence[ClusterTask]) -> None:
    """Raises UsageError for an address that other hosts cannot reach."""
    if len({task.host for task in tasks}) == 1:
        return
    for task in tasks:
        address, _ = split_host_port(task.address)
        if task.host and ipaddress.ip_address(address).is_loopback:
            raise UsageError(
                f'{task.host.name}: its processes would listen at {address}, which the other '
                'hosts cannot reach; use in --hosts the name or address that the other hosts use'
            )


def _choose_layout(options: ClusterOptions, mode: Mode) -> Layout:
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
    if options.hosts and options.hostfile:
        raise UsageError(f'--hostfile={options.hostfile}: conflicts with --hosts; use one of them')
    flag, workers = '', options.workers
    if options.hosts:
        flag, slots = '--hosts', read_hosts_flag(options.hosts)
    elif options.hostfile:
        flag, slots = '--hostfile', read_host_file(options.hostfile)
    else:
        for name in ('ssh', 'remote_python', 'remote_dir'):
            if value := getattr(options, name):
                raise UsageError(
                    f'--{name}={value}: it needs other hosts; add --hosts or --hostfile'
                )
        slots, workers = {Host().name: None}, _NUM_LOCAL_WORKERS if workers is None else workers
    num_ps = int(mode.needs_servers) if options.ps is None else options.ps
    return lay_out_tasks(slots, flag, workers, num_ps, int(mode.has_controller))


def _make_network(is_private: bool | None) -> PrivateNetwork | None:
    """Returns a private network for the processes; None: they use the network of this machine."""
    if is_private is False:
        return None
    # NVIDIA's driver makes this file with a program that has no rights in a user namespace.
    if os.geteuid() and has_nvidia_gpu() and not os.path.exists(_CUDA_FILE):
        reason = f'the NVIDIA driver has not made {_CUDA_FILE} yet'
    else:
        try:
            return PrivateNetwork()
        except OSError as error:
            reason = str(error)
    if is_private:
        raise RunError(
            f'--private_network=true: no network namespace can be made ({reason}); remove the flag'
        )
    return None


def _ssh_target(options: ClusterOptions) -> SshTarget:
    return SshTarget(
        ssh=tuple(shlex.split(options.ssh or 'ssh')),
        python=options.remote_python or sys.executable,
        folder=options.remote_dir or str(FOLDER),
        working_folder=str(Path.cwd()),
    )


def _format_commands(options: ClusterOptions, layout: Layout, run_flags: Sequence[str]) -> str:
    """Returns the command of each process, to start the cluster by hand.

    The commands do not divide cores and GPUs among the processes: only the hosts know them.
    """
    ssh_target = _ssh_target(options)
    has_hosts = bool(options.hosts or options.hostfile)
    tasks: dict[str, tuple[ClusterTask, str]] = {}
    for name, processes in layout.items():
        host = name.rpartition('@')[2] if has_hosts else LOOPBACK
        for job, index in processes:
            task = ClusterTask(job, index, join_host_port(host, _FIRST_PORT + len(tasks)))
            tasks[task.name] = task, name
    commands, text = make_commands(run_flags, [task for task, _ in tasks.values()], {}), ''
    _check_cluster_flags(commands)
    for command in commands:
        _, name = tasks[command.name]
        words = shlex.join([*ssh_target.program, *command.argv[2:]])
        if has_hosts:
            words = shlex.join(
                [
                    *ssh_target.ssh,
                    name,
                    f'cd {shlex.quote(ssh_target.working_folder)} 2>/dev/null; exec {words}',
                ]
            )
        text += f'# {command.name}{f" on {name}" if has_hosts else ""}\n{words}\n'
    return text


def _check_cluster_flags(commands: Sequence[Command]) -> None:
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
