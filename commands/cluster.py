"""`tf_cnn_benchmarks.py cluster`: its options, and the command line of each process. Starts without TensorFlow."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import flags

from cluster.discovery import find_cluster
from cluster.environments import without_clusters
from cluster.launcher import Command, launch
from cluster.topology import HOSTS_FLAGS
from commands.options import Arguments, Declaration, Rest
from errors import RunError, UsageError, format_warning, spelled
from hardware.gpus import VISIBLE
from hardware.visible_gpus import has_visible_gpus, shares_of_workers, with_selected
from params import Params, parse_argv
from params.file_flags import Output, outputs_that_are
from params.flag_files import check_flag_files
from params.modes import MODES, Mode, modes_that
from params.spec import flag
from params.tensorflow_flags import chosen_gpus
from planning.line import check_launch

_ROLE_FLAGS = ('job_name', 'task_index', *HOSTS_FLAGS.values())
_FLAGS_OF_ONE_WRITER = outputs_that_are(Output.FILE, Output.PREFIX)
_LOOPBACK = '127.0.0.1'
# How long a parameter server may take to exit after the workers have.
_PS_END_SECS = 30.0
_PROGRAM = str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py')


@dataclass(frozen=True)
class ClusterOptions:
    """The flags of the subcommand.

    Attributes:
      ps: None if the mode decides.
    """

    ps: int | None = flag(None, 'Parameter servers; by default 1 in modes that need them.', lower_bound=0)
    workers: int = flag(2, 'Workers.', lower_bound=1)
    affinity: str = flag(
        'share',
        'share: each worker runs on an equal share of the cores, or on one core if there are more workers than cores; '
        'none: all run on all cores.',
        choices=('share', 'none'),
    )
    keep_going: bool = flag(False, 'Do not stop the other processes when one fails.')
    restart: int = flag(0, 'How often each process that fails is started again.', lower_bound=0)
    verbose: bool = flag(
        False,
        'Show all lines of all processes, their process ids, cores and GPUs; each process gets --verbose, too.',
    )


DECLARATION = Declaration(
    'cluster',
    ClusterOptions,
    'Starts a whole cluster on this machine and prints its result once.',
    examples=(
        '--ps=1 --workers=2 -- --model=resnet50',
        f'--workers=4 -- --model=resnet50 {modes_that(lambda mode: mode.is_for_peers)}',
    ),
    details='FLAGS are the flags of a run, see tf_cnn_benchmarks --help; each process also gets its role and the '
    'addresses of all processes. On a machine with GPUs each worker gets --num_gpus of them, out of those that '
    'CUDA_VISIBLE_DEVICES lists if it is set; no other process gets any. The standard output of worker 0 (of the '
    'controller, if the mode has one) is the result and goes to standard output. Warnings and errors of all processes '
    'go to standard error, each preceded by the name of its process; with --verbose, among these flags or those of the '
    'run, so do all other lines. If a process fails, the last lines of all are shown, the others are stopped, and the '
    'command ends with its exit code (128 + n if signal n ended it).',
    rest=Rest('FLAGS', 'the flags of the run'),
)


def main(argv: Sequence[str]) -> int:
    """Runs `cluster` with the arguments in argv; returns the exit code of cluster.launcher.launch.

    Raises:
      UsageError: a flag is wrong, one of the run included; nothing has been started then.
      RunError: as cluster.launcher.launch, or there are not enough free addresses.
    """
    return DECLARATION.run(argv, _start)


def _start(arguments: Arguments[ClusterOptions]) -> int:
    options = arguments.options
    run_flags = (*arguments.rest, *(['--verbose=true'] if options.verbose else []))
    if sys.platform != 'linux':
        raise UsageError(f'cluster: it needs Linux, and this is {sys.platform}; start each process yourself instead')
    params = _run_params(run_flags)
    mode = MODES[params.variable_update]
    num_ps = _choose_num_ps(mode, options.ps)
    num_controllers = int(mode.has_controller)
    cores = _usable_cores() if options.affinity == 'share' else None
    num_gpus = 0 if params.device == 'cpu' else params.num_gpus
    environ: Mapping[str, str] = os.environ
    if num_gpus and params.gpu_indices and has_visible_gpus(environ):
        environ = with_selected(chosen_gpus(params.gpu_indices), environ)
        # Each worker uses all GPUs of its share.
        run_flags = (*run_flags, '--gpu_indices=')
    gpus = shares_of_workers(num_gpus, options.workers, environ)
    with reserved_addresses(num_controllers + num_ps + options.workers) as addresses:
        controller_hosts, hosts = addresses[:num_controllers], addresses[num_controllers:]
        commands = make_commands(run_flags, hosts[:num_ps], hosts[num_ps:], os.environ, cores, controller_hosts, gpus)
        for command in commands:
            # Check the rules that need the flags of the whole cluster, not just those of the run.
            find_cluster(parse_argv(command.argv[2:]).params, command.env or {})
        shared = [f'--{name}' for name in _FLAGS_OF_ONE_WRITER if getattr(params, name)]
        if shared:
            reason = 'each process would write to the same path'
            writer = next(command.name for command in commands if command.has_result)
            print(format_warning(f'only {writer} gets {", ".join(shared)}: {reason}'), file=sys.stderr, flush=True)
        return launch(
            commands,
            quiet=not params.verbose,
            keep_going=options.keep_going,
            num_restarts=options.restart,
            # With --keep_going, a parameter server waits for a lost worker to come back.
            servers_end_secs=_PS_END_SECS
            + params.ps_linger_secs
            + (params.peer_timeout_secs if options.keep_going else 0),
        )


def make_commands(
    run_flags: Sequence[str],
    ps_hosts: Sequence[str],
    worker_hosts: Sequence[str],
    environment: Mapping[str, str],
    cores: Sequence[int] | None,
    controller_hosts: Sequence[str] = (),
    gpus: Sequence[str] | None = None,
) -> list[Command]:
    """Returns the processes of a cluster, servers first.

    Args:
      run_flags: the flags that all processes get, without those that describe the cluster.
      ps_hosts: the HOST:PORT of each parameter server.
      worker_hosts: the HOST:PORT of each worker; the first worker is the chief.
      environment: the variables that the processes inherit, except those that describe another cluster.
      cores: the cores to divide among the workers, see share_cores; None lets each worker use all. Parameter servers
        and the controller always use all cores: they work only briefly in each step, while the workers wait, so
        reserved cores would be idle most of the time.
      controller_hosts: the HOST:PORT of the controller, or empty. A controller is the chief, and then the workers are
        servers.
      gpus: the CUDA_VISIBLE_DEVICES of each worker; parameter servers then see no GPU. A controller hides them itself,
        since its default of --device depends on whether there are any. None if this machine has no GPUs.
    """
    inherited = without_clusters(environment)
    # If http_proxy is set, gRPC would try to reach this machine through the proxy, and wait forever.
    inherited['no_grpc_proxy'] = _LOOPBACK
    shares: Sequence[tuple[int, ...] | None] = (
        [None] * len(worker_hosts) if cores is None else share_cores(cores, len(worker_hosts))
    )
    named = {'ps_hosts': ps_hosts, 'controller_host': controller_hosts, 'worker_hosts': worker_hosts}
    hosts = [spelled(name, ','.join(addresses)) for name, addresses in named.items() if addresses]
    chief = ('controller' if controller_hosts else 'worker', 0)

    def command(job: str, index: int, share: tuple[int, ...] | None, own_gpus: str | None = None) -> Command:
        is_chief = (job, index) == chief
        # The last value of a flag counts, and an empty one means that the flag is not given.
        unset = [] if is_chief else [f'--{name}=' for name in _FLAGS_OF_ONE_WRITER]
        role = [spelled('job_name', job), spelled('task_index', index)]
        return Command(
            name=f'{job} {index}',
            argv=(sys.executable, _PROGRAM, *run_flags, *unset, *role, *hosts),
            env=inherited if own_gpus is None else {**inherited, VISIBLE: own_gpus},
            cores=share,
            gpus=own_gpus,
            is_server=job != chief[0],
            has_result=is_chief,
        )

    servers = [command('ps', index, None, None if gpus is None else '') for index in range(len(ps_hosts))]
    workers = [
        command('worker', index, share, None if gpus is None else gpus[index]) for index, share in enumerate(shares)
    ]
    return [*servers, *workers, *(command('controller', index, None) for index in range(len(controller_hosts)))]


def share_cores(cores: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Returns the cores of each worker: the same number of consecutive ones for each; the remaining ones stay unused.

    With fewer cores than workers, each worker gets one core, in turn.
    """
    size = len(cores) // num_workers
    if not size:
        return [(cores[worker % len(cores)],) for worker in range(num_workers)]
    return [tuple(cores[worker * size : (worker + 1) * size]) for worker in range(num_workers)]


def _usable_cores() -> list[int]:
    """The logical cores this process may use, sorted by package (socket), then by physical core."""

    def place(core: int) -> tuple[int, int, int]:
        topology = Path(f'/sys/devices/system/cpu/cpu{core}/topology')
        try:
            package, physical = (int((topology / name).read_text()) for name in ('physical_package_id', 'core_id'))
        except (OSError, ValueError):
            # Some containers do not show the topology.
            package, physical = 0, core
        return package, physical, core

    return sorted(os.sched_getaffinity(0), key=place)


@contextlib.contextmanager
def reserved_addresses(count: int) -> Iterator[list[str]]:
    """Reserves free loopback addresses, HOST:PORT each, while the block lasts.

    The ports stay bound, so that the kernel gives them to no other launcher or connection. The process that gets an
    address can still bind to it, also after a restart: both sockets set SO_REUSEADDR, as every gRPC server does, and
    only one of them listens (socket(7)). A program that sets it too can still take such a port by its number.

    Raises:
      RunError: there are fewer than `count` free ports.
    """
    with contextlib.ExitStack() as stack:
        addresses: list[str] = []
        for _ in range(count):
            try:
                reserving = stack.enter_context(socket.socket())
                reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserving.bind((_LOOPBACK, 0))
            except OSError as error:
                reason = f'{error.strerror} for port {len(addresses) + 1} of {count} on {_LOOPBACK}'
                raise RunError(f'there are too few free ports: {reason}; start fewer processes') from error
            addresses.append(f'{_LOOPBACK}:{reserving.getsockname()[1]}')
        yield addresses


def _run_params(run_flags: Sequence[str]) -> Params:
    """Reads and checks the flags of the run; raises UsageError if they are wrong or describe the cluster."""
    arguments = list(run_flags)
    # Include the flags of a --flagfile; parse_argv reports a --flagfile without a name.
    check_flag_files(arguments)
    with contextlib.suppress(flags.Error):
        arguments = flags.FlagValues().read_flags_from_files(arguments, force_gnu=True)
    for argument in arguments:
        name = argument.lstrip('-').split('=')[0]
        if argument.startswith('-') and name in _ROLE_FLAGS:
            raise UsageError(f'{argument}: cluster gives each process its role and the addresses; leave --{name} out')
    params = parse_argv(run_flags).params
    check_launch(params)
    return params


def _choose_num_ps(mode: Mode, asked: int | None) -> int:
    written = spelled('variable_update', mode.name)
    if not mode.has_cluster:
        able = ', '.join(other.name for other in MODES.values() if other.has_cluster)
        raise UsageError(f'{written}: cluster can start {able}; write one of them')
    if asked == 0 and mode.needs_servers:
        raise UsageError(f'--ps=0: {written} keeps its variables on parameter servers; write --ps=1 or more')
    if asked and not mode.needs_servers:
        raise UsageError(f'--ps={asked}: {written} has no parameter servers; leave --ps out')
    return int(mode.needs_servers) if asked is None else asked
