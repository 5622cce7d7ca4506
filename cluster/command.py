"""`tf_cnn_benchmarks.py cluster`: its flags, and the command line of each process. Starts without TensorFlow."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import flags

import flag_rules
import output_files
from cluster.launcher import Command, launch
from cluster.members import CONTROLLED_MODE, find_cluster
from errors import RunError, UsageError
from flag_spec import flag, read_flags, specs_of, spelled
from params import Params, parse_argv
from reporting.console import format_warning

_HELP = ('--help', '-help', '-h')
_USAGE = """\
Starts a whole cluster on this machine, shows the lines of all its processes and prints its result once.

  tf_cnn_benchmarks.py cluster --ps=1 --workers=2 -- --model=resnet50 --variable_update=parameter_server
  tf_cnn_benchmarks.py cluster --workers=4 -- --model=resnet50 --variable_update=collective_all_reduce

What stands behind -- are the flags of a run, see tf_cnn_benchmarks.py --help; each process gets its role and the
addresses of all in addition. The standard output of worker 0 (of the controller, where there is one) is the result and
goes to standard output; all other lines go to standard error with the name of their process in front. If a process
fails, the others are stopped, and its exit code is that of the command (128 + n if signal n ended it).
"""
# The modes that a cluster can train in, and how many parameter servers each has unless told otherwise.
_DEFAULT_NUM_PS = {'parameter_server': 1, 'distributed_replicated': 1, 'collective_all_reduce': 0, CONTROLLED_MODE: 0}
_ROLE_FLAGS = ('job_name', 'task_index', 'ps_hosts', 'worker_hosts', 'controller_host')
_FLAGS_OF_ONE_WRITER = ('trace_file', 'tfprof_file', 'graph_file', 'partitioned_graph_file_prefix')
# What a job scheduler, or a launcher around this one, tells its processes about another cluster.
_OTHER_CLUSTERS = ('TF_CONFIG', 'SLURM', 'OMPI_', 'PMI')
_LOOPBACK = '127.0.0.1'
# How long a parameter server may take to end once the workers have.
_PS_END_SECS = 30.0
_PROGRAM = str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py')


@dataclass(frozen=True)
class Options:
    """The flags of the word itself. ps is None where the mode decides."""

    ps: int | None = flag(None, '', 'Parameter servers; by default 1 in modes that have them.', lower_bound=0)
    workers: int = flag(2, '', 'Workers.', lower_bound=1)
    affinity: str = flag(
        'share',
        '',
        'share: each worker runs on cores of its own, as many as the others have, or on one of those that there are if '
        'there are more workers; none: all run on all cores.',
        choices=('share', 'none'),
    )
    keep_going: bool = flag(False, '', 'Do not stop the others when a process fails.')
    restart: int = flag(0, '', 'How often each process that fails is started again.', lower_bound=0)


def main(argv: list[str]) -> int:
    """Runs `cluster` with the flags in argv; returns the exit code of cluster.launcher.launch.

    Raises:
      UsageError: the flags do not fit, those of the run included; nothing has been started then.
      RunError: as cluster.launcher.launch, or there are no addresses for so many.
    """
    own, run_flags = _split(argv)
    if any(word in _HELP for word in own):
        print(_help_text())
        return 0
    options = _parse(own)
    if sys.platform != 'linux':
        raise UsageError(f'cluster: it needs Linux, and this is {sys.platform}; start each process by hand instead')
    params = _run_params(run_flags)
    num_ps = _choose_num_ps(params.variable_update, options.ps)
    num_controllers = int(params.variable_update == CONTROLLED_MODE)
    cores = _usable_cores() if options.affinity == 'share' else None
    with reserved_addresses(num_controllers + num_ps + options.workers) as addresses:
        controller_hosts, hosts = addresses[:num_controllers], addresses[num_controllers:]
        commands = make_commands(run_flags, hosts[:num_ps], hosts[num_ps:], os.environ, cores, controller_hosts)
        for command in commands:
            # The rules of clusters, which the flags of the run alone do not break.
            find_cluster(parse_argv(command.argv[2:]).params, command.env or {})
        shared = [f'--{name}' for name in _FLAGS_OF_ONE_WRITER if getattr(params, name)]
        if shared:
            reason = 'each process would write to the same path'
            writer = next(command.name for command in commands if command.has_result)
            print(format_warning(f'only {writer} gets {", ".join(shared)}: {reason}'), file=sys.stderr, flush=True)
        return launch(
            commands,
            keep_going=options.keep_going,
            num_restarts=options.restart,
            # Where a lost worker does not end the cluster, a parameter server waits for it to come back.
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
) -> list[Command]:
    """The processes of a cluster, servers first.

    Args:
      run_flags: the flags that all processes get, without any that says who is in the cluster.
      ps_hosts: the HOST:PORT of each parameter server. worker_hosts: of each worker; the first one is the chief.
      controller_hosts: of the controller, if there is one; then it is the chief, and the workers are servers.
      environment: what the processes inherit, apart from what it says of another cluster.
      cores: those that the workers share out between them, as share_cores; None lets each use all. Parameter servers
        and the controller always use all: they work for a moment of each step, while workers wait, and would lack what
        is theirs alone in the rest of it.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(_OTHER_CLUSTERS)}
    # Where http_proxy is set, gRPC would ask the proxy for this very machine, and wait for ever.
    kept['no_grpc_proxy'] = _LOOPBACK
    shares: Sequence[tuple[int, ...] | None] = (
        [None] * len(worker_hosts) if cores is None else share_cores(cores, len(worker_hosts))
    )
    named = {'ps_hosts': ps_hosts, 'controller_host': controller_hosts, 'worker_hosts': worker_hosts}
    hosts = [spelled(name, ','.join(addresses)) for name, addresses in named.items() if addresses]
    chief = ('controller' if controller_hosts else 'worker', 0)

    def command(job: str, index: int, share: tuple[int, ...] | None) -> Command:
        is_chief = (job, index) == chief
        # A later flag wins, and one without a value is as good as not given.
        unset = [] if is_chief else [f'--{name}=' for name in _FLAGS_OF_ONE_WRITER]
        role = [spelled('job_name', job), spelled('task_index', index)]
        return Command(
            name=f'{job} {index}',
            argv=(sys.executable, _PROGRAM, *run_flags, *unset, *role, *hosts),
            env=kept,
            cores=share,
            is_server=job != chief[0],
            has_result=is_chief,
        )

    servers = [command('ps', index, None) for index in range(len(ps_hosts))]
    workers = [command('worker', index, share) for index, share in enumerate(shares)]
    return [*servers, *workers, *(command('controller', index, None) for index in range(len(controller_hosts)))]


def share_cores(cores: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """The cores of each worker: neighbours in the order given, as many for each; what is left over is nobody's.

    Where there are fewer cores than workers, each gets one, in turn.
    """
    size = len(cores) // num_workers
    if not size:
        return [(cores[worker % len(cores)],) for worker in range(num_workers)]
    return [tuple(cores[worker * size : (worker + 1) * size]) for worker in range(num_workers)]


def _usable_cores() -> list[int]:
    """The logical cores this process may use, those of one package together, and in it those of one physical core."""

    def place(core: int) -> tuple[int, int, int]:
        topology = Path(f'/sys/devices/system/cpu/cpu{core}/topology')
        try:
            package, physical = (int((topology / name).read_text()) for name in ('physical_package_id', 'core_id'))
        except (OSError, ValueError):
            # Not told, as in some containers.
            package, physical = 0, core
        return package, physical, core

    return sorted(os.sched_getaffinity(0), key=place)


@contextlib.contextmanager
def reserved_addresses(count: int) -> Iterator[list[str]]:
    """Free loopback addresses, HOST:PORT each, that nobody else is given while the block lasts.

    The ports stay bound, so that the kernel gives them to no other launcher and no connection. The process that an
    address is for can bind to it all the same, also when it is started again, since both ask for SO_REUSEADDR, as every
    gRPC server does, and only one of them listens (socket(7)). What remains is a stranger that asks for this very port.

    Raises:
      RunError: there are not as many.
    """
    with contextlib.ExitStack() as stack:
        addresses: list[str] = []
        for _ in range(count):
            try:
                holder = stack.enter_context(socket.socket())
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                holder.bind((_LOOPBACK, 0))
            except OSError as error:
                reason = f'{error.strerror} for port {len(addresses) + 1} of {count} on {_LOOPBACK}'
                raise RunError(f'the processes cannot be given addresses: {reason}; start fewer processes') from error
            addresses.append(f'{_LOOPBACK}:{holder.getsockname()[1]}')
        yield addresses


def _run_params(run_flags: Sequence[str]) -> Params:
    """What the flags of the run say; raises UsageError if they are wrong, or say who is in the cluster."""
    words = list(run_flags)
    # With what a --flagfile holds; of one that cannot be read, parse_argv tells.
    with contextlib.suppress(flags.Error):
        words = flags.FlagValues().read_flags_from_files(words, force_gnu=True)
    for word in words:
        name = word.lstrip('-').split('=')[0]
        if word.startswith('-') and name in _ROLE_FLAGS:
            raise UsageError(f'{word}: cluster tells each process its role and the addresses; leave --{name} out')
    params = parse_argv(run_flags).params
    flag_rules.check_inputs(params)
    output_files.check_outputs(params)
    return params


def _choose_num_ps(variable_update: str, asked: int | None) -> int:
    mode = spelled('variable_update', variable_update)
    if variable_update not in _DEFAULT_NUM_PS:
        raise UsageError(f'{mode}: cluster can start {", ".join(_DEFAULT_NUM_PS)}; write one of them')
    default = _DEFAULT_NUM_PS[variable_update]
    if asked == 0 and default:
        raise UsageError(f'--ps=0: {mode} keeps its variables on parameter servers; write --ps=1 or more')
    if asked and not default:
        raise UsageError(f'--ps={asked}: {mode} has no parameter servers; leave --ps out')
    return default if asked is None else asked


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """What stands before -- and what behind it."""
    if argv.count('--') > 1:
        raise UsageError('--: it stands once, between the flags of cluster and those of the run; leave the others out')
    end = argv.index('--') if '--' in argv else len(argv)
    return argv[:end], argv[end + 1 :]


def _parse(argv: list[str]) -> Options:
    specs = specs_of(Options)
    values = flags.FlagValues()
    for spec in specs.values():
        read_later = flags.Flag(flags.ArgumentParser(), None, spec.name, None, '', boolean=spec.type is bool)
        flags.DEFINE_flag(read_later, flag_values=values)
    rest = read_flags(values, 'cluster', argv, 'flags of the run stand behind --, see cluster --help')
    if rest:
        raise UsageError(f'{rest[0]}: cluster takes flags only, and those of the run behind --; see cluster --help')
    given = {name: spec.read(values[name].value) for name, spec in specs.items() if values[name].present}
    # Each value was read by the spec of its field, which mypy cannot see.
    return Options(**given)  # type: ignore[arg-type]


def _help_text() -> str:
    lines = [_USAGE]
    for spec in specs_of(Options).values():
        takes = 'switch' if spec.type is bool else spec.expects
        default = '' if spec.default is None or spec.type is bool else f'; default {spec.default}'
        lines.append(f'  --{spec.name}: {spec.help} [{takes}{default}]')
    return '\n'.join(lines)
