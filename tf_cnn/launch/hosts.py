"""The tasks and processes of a cluster on this machine. Linux only; does not import TensorFlow.

A launcher calls make_tasks, makes the command lines, and starts the processes by Host.start.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.cluster.environments import remove_cluster_variables
from tf_cnn.cluster.private_network import PrivateNetwork
from tf_cnn.cluster.topology import LOOPBACK, join_host_port
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.machine.visible_gpus import divide_gpus, has_visible_gpus, select_gpus
from tf_cnn.system.child_process import ChildProcess
from tf_cnn.system.errors import RunError
from tf_cnn.system.place import PROGRAM

# The file that CUDA opens first.
_CUDA_FILE = '/dev/nvidia-uvm'
_PORT_RANGE = Path('/proc/sys/net/ipv4/ip_local_port_range')
# Lower ports often belong to services.
_FIRST_PICKED_PORT = 10_000


@dataclass(frozen=True)
class ClusterTask:
    """One task of a cluster, with the resources of its host.

    Attributes:
      address: HOST:PORT.
      host: None for this machine.
      cores: the logical cores it may run on; None for all usable ones.
      gpus: the value of CUDA_VISIBLE_DEVICES; None to leave it unchanged.
    """

    job: str
    index: int
    address: str
    host: 'Host | None' = None
    cores: Sequence[int] | None = None
    gpus: str | None = None

    @property
    def name(self) -> str:
        return f'{self.job} {self.index}'


@dataclass(frozen=True)
class Command:
    """The command of one process of a cluster.

    Attributes:
      name: the unique prefix of its lines.
      env: its whole environment, or None for the environment of this process; on another host, the
        variables to add there.
      cores: the logical cores it may run on; None for all usable ones.
      is_server: whether it ends by itself after all other processes have ended.
      has_result: whether its standard output is the result of the cluster.
      host: None for this machine.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cores: Sequence[int] | None = None
    is_server: bool = False
    has_result: bool = False
    host: 'Host | None' = None


Show = Callable[[str], None]
# (job, index) of each task.
TaskIds = Sequence[tuple[str, int]]


class LocalProcess(ChildProcess):
    """A process of a cluster on this machine."""

    # Whether the launcher has sent it a signal that ends it.
    is_stopped = False
    # Why it is lost; None unless the connection to its host has ended.
    lost_reason: str | None = None

    def __init__(
        self,
        command: Command,
        network: int | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        super().__init__(
            command.argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command.env,
            cores=command.cores or (),
            network=network,
        )
        self.command = command

    def listen(
        self,
        show: Show,
        show_error: Show,
        on_start: Callable[[int], None],
        on_exit: Callable[['LocalProcess'], None],
    ) -> None:
        """Calls show and show_error on other threads with each line of its streams, on_start with
        its process id, and on_exit after it has ended.
        """
        on_start(self.pid)
        self.read_lines(show, show_error)
        self._report_exit(on_exit)

    def _report_exit(self, on_exit: Callable[['LocalProcess'], None]) -> None:
        def wait_for_exit() -> None:
            # The launcher reaps it first if another process could not be started.
            with contextlib.suppress(ChildProcessError):
                self.wait()
                on_exit(self)

        threading.Thread(target=wait_for_exit, daemon=True).start()

    def end(self, number: signal.Signals) -> None:
        """Ends the process and its descendants by this signal."""
        self.is_stopped = True
        self.signal(number)


class Host:
    """A machine that runs processes of a cluster: this machine, unless overridden.

    `program` (Python and the script) begins each command line. The processes use `network`, or the
    network of this machine.
    """

    name = 'this machine'

    def __init__(self, network: PrivateNetwork | None = None) -> None:
        self.program = PROGRAM
        self._network = network

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the launcher's environment variables that Command.env passes on."""
        return remove_cluster_variables(environ)

    def start(self, command: Command) -> LocalProcess:
        """Starts a process; raises OSError or RuntimeError if that fails."""
        return LocalProcess(command, network=self._network.pid if self._network else None)


def make_tasks(
    processes: TaskIds,
    addresses: Sequence[str],
    num_gpus: int = 0,
    gpu_indices: Sequence[int] = (),
) -> list[ClusterTask]:
    """Divides the cores and GPUs of this machine among the workers of these tasks.

    Does not set ClusterTask.host. Each worker gets num_gpus of the GPUs with these indices (empty:
    of all GPUs).
    """
    environ: Mapping[str, str] = os.environ
    if num_gpus and gpu_indices and has_visible_gpus(environ):
        environ = select_gpus(gpu_indices, environ)
    num_workers = sum(job == 'worker' for job, _ in processes)
    gpus = divide_gpus(num_gpus, num_workers, environ)
    cores = share_cores(_usable_cores(), num_workers) if num_workers else []
    shares = zip(cores, [None] * num_workers if gpus is None else gpus, strict=True)
    # A controller hides the GPUs itself: its default of --device depends on whether GPUs exist.
    cores_and_gpus_by_job = {'ps': (None, None if gpus is None else ''), 'controller': (None, None)}
    return [
        ClusterTask(job, index, address, None, *(cores_and_gpus_by_job.get(job) or next(shares)))
        for (job, index), address in zip(processes, addresses, strict=True)
    ]


@contextlib.contextmanager
def reserve_addresses(count: int, address: str = LOOPBACK) -> Iterator[list[str]]:
    """Yields HOST:PORT for free ports of this machine, reserved while the block lasts.

    The ports stay bound, so that the kernel gives them to no other launcher or connection. A task
    can still bind to its port, also after a restart: both sockets set SO_REUSEADDR, as every gRPC
    server does, and only one of them listens (socket(7)).
    """
    # getaddrinfo also gives the interface number, which a link-local address needs.
    family, _, _, _, at_any_port = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with contextlib.ExitStack() as stack:
        addresses: list[str] = []
        for _ in range(count):
            try:
                port_socket = stack.enter_context(socket.socket(family))
                port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                port_socket.bind(at_any_port)
            except OSError as error:
                reason = f'{error.strerror} for port {len(addresses) + 1} of {count} on {address}'
                raise RunError(
                    f'there are too few free ports: {reason}; start fewer processes'
                ) from error
            addresses.append(join_host_port(address, port_socket.getsockname()[1]))
        yield addresses


def pick_addresses(count: int, address: str) -> list[str]:
    """Returns HOST:PORT for free ports, if possible below the range that the kernel gives to
    connections (ip(7), ip_local_port_range). They are random, so that two launchers hardly pick the
    same.
    """
    first_of_connections = int(_PORT_RANGE.read_text().split()[0])
    family, _, _, _, (host, _, *scope) = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    addresses: list[str] = []
    ports = range(_FIRST_PICKED_PORT, first_of_connections)
    for port in random.Random().sample(ports, len(ports)):
        if len(addresses) == count:
            break
        with contextlib.suppress(OSError), socket.socket(family) as port_socket:
            port_socket.bind((host, port, *scope))
            addresses.append(join_host_port(address, port))
    with reserve_addresses(count - len(addresses), address) as others:
        return [*addresses, *others]


def share_cores(cores: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Gives each worker the same number of consecutive cores.

    If there are too few cores, several workers share one.
    """
    size = len(cores) // num_workers
    if not size:
        return [(cores[worker % len(cores)],) for worker in range(num_workers)]
    return [tuple(cores[worker * size : (worker + 1) * size]) for worker in range(num_workers)]


def _usable_cores() -> list[int]:
    """Returns the logical cores this process may use, sorted by package, then physical core."""

    def core_order(core: int) -> list[int]:
        topology = Path(f'/sys/devices/system/cpu/cpu{core}/topology')
        # Some containers hide the topology.
        with contextlib.suppress(OSError, ValueError):
            return [
                int((topology / name).read_text()) for name in ('physical_package_id', 'core_id')
            ] + [core]
        return [0, core]

    return sorted(os.sched_getaffinity(0), key=core_order)


def make_network(is_private: bool | None) -> PrivateNetwork | None:
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
