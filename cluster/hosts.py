"""Where the processes of a cluster run. Linux only, no TensorFlow.

A launcher calls Host.prepare, writes the command lines, and starts the processes by Host.start. cluster.ssh.SshHost
asks a Host on another machine, see cluster.agent.
"""

import contextlib
import ipaddress
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cluster.child_process import ChildProcess
from cluster.environments import without_clusters
from cluster.topology import LOOPBACK, join_host_port
from errors import RunError, UsageError
from machine.visible_gpus import has_visible_gpus, shares_of_workers, with_selected

# How long agents have to end their processes when the launcher ends, in seconds.
CLOSE_SECS = 4.0
_PROGRAM = str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py')


@dataclass(frozen=True)
class HostNeeds:
    """What a launcher needs from a host before it can write the command lines of the processes there.

    processes are their jobs and indices. num_gpus is that of each worker. Only the GPUs of gpu_indices may be used;
    empty for all. interface is the network (10.0.0.0/8), the address or the name (eth0) of the interface at which the
    processes listen; empty if the host chooses.
    """

    processes: Sequence[tuple[str, int]]
    shares_cores: bool = True
    num_gpus: int = 0
    gpu_indices: Sequence[int] = ()
    interface: str = ''


@dataclass(frozen=True)
class Member:
    """One process of a cluster, with what its host has for it: a HOST:PORT, cores, GPUs. host is None for this machine.

    cores are None for all that it may use; gpus is its CUDA_VISIBLE_DEVICES, None if that stays as it is.
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
    """One process of a cluster.

    Attributes:
      name: the prefix of its lines; unique.
      env: its whole environment, None for that of this process; on another host what is added to the environment there.
      cores: the logical cores it may run on; None for all that it may use.
      gpus: the GPUs that env shows it; None if env does not set them.
      is_server: whether it ends by itself when all processes that are not servers have ended.
      has_result: whether its standard output is the result of the cluster.
      host: None for this machine.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cores: Sequence[int] | None = None
    gpus: str | None = None
    is_server: bool = False
    has_result: bool = False
    host: 'Host | None' = None


class LocalProcess(ChildProcess):
    """A process of a cluster on this machine."""

    # Whether the launcher has sent it a signal that ends it.
    is_stopped = False
    # Why nothing more will be known about it; None unless the connection to its host has ended.
    lost: str | None = None

    def __init__(self, command: Command) -> None:
        super().__init__(
            command.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=command.env, cores=command.cores or ()
        )
        self.command = command

    def watch(self, show: Callable[[str], None], show_error: Callable[[str], None], ended: Callable[[], None]) -> None:
        """Calls these functions on other threads: with each line of its two streams, and when it has ended."""
        self.read_lines(show, show_error)

        def wait() -> None:
            # If another process could not be started, the launcher reaps this one first.
            with contextlib.suppress(ChildProcessError):
                self.wait()
                ended()

        threading.Thread(target=wait, daemon=True).start()

    def end(self, number: signal.Signals) -> None:
        """Sends a signal that ends it to the process and its descendants."""
        self.is_stopped = True
        self.signal(number)


class RemoteProcess:
    """A process of a cluster on another machine, as a LocalProcess. send is how its agent gets requests."""

    is_stopped = False
    lost: str | None = None

    def __init__(self, command: Command, send: Callable[..., None]) -> None:
        self.command = command
        self.pid = 0
        self._send = send
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._has_ended = threading.Event()
        self._exit_code = 0

    def watch(self, show: Callable[[str], None], show_error: Callable[[str], None], ended: Callable[[], None]) -> None:
        def read() -> None:
            while (event := self._events.get())[0] != 'ended':
                (show if event[0] == 'out' else show_error)(event[1])
            self._has_ended.set()
            ended()

        threading.Thread(target=read, daemon=True).start()

    def end(self, number: signal.Signals) -> None:
        self.is_stopped = True
        self._send(end=int(number), name=self.command.name)

    def reap(self) -> int:
        # It has ended, or its host is lost, or the launcher gives up, and the agent ends it.
        self._has_ended.wait(CLOSE_SECS)
        return self._exit_code

    def tell(self, kind: str, value: Any) -> None:
        """Handles what the agent says about it, in order: 'out' or 'err' with a line, 'ended' with its exit code."""
        if kind == 'ended':
            self._exit_code = value
        self._events.put((kind, value))

    def lose(self, why: str) -> None:
        """Ends it for the launcher, since nothing more will be known about it."""
        self.lost = why
        self.tell('ended', 1)


HostProcess = LocalProcess | RemoteProcess


class Host:
    """A machine on which processes of a cluster run: this one, unless overridden.

    `program`, the Python and the script, begins each command line. The processes listen at `address` unless the user
    chooses an interface.
    """

    name = 'this machine'

    def __init__(self, address: str = LOOPBACK) -> None:
        self.program = (sys.executable, _PROGRAM)
        self._address = address
        self._reserving = contextlib.ExitStack()

    def prepare(self, needs: HostNeeds) -> list[Member]:
        """Reserves addresses, and divides the cores and GPUs among the workers. Leaves Member.host to the launcher.

        The ports stay bound until close(), so that the kernel gives them to no other launcher or connection. The
        process that gets an address can still bind to it, also after a restart: both sockets set SO_REUSEADDR, as
        every gRPC server does, and only one of them listens (socket(7)).
        """
        environ: Mapping[str, str] = os.environ
        if needs.num_gpus and needs.gpu_indices and has_visible_gpus(environ):
            environ = with_selected(needs.gpu_indices, environ)
        num_workers = sum(job == 'worker' for job, _ in needs.processes)
        gpus = shares_of_workers(needs.num_gpus, num_workers, environ)
        cores: Sequence[Sequence[int] | None] = [None] * num_workers
        if needs.shares_cores and num_workers:
            cores = share_cores(_usable_cores(), num_workers)
        address = own_address(needs.interface) if needs.interface else self._address
        addresses = self._reserving.enter_context(reserved_addresses(len(needs.processes), address))
        shares = zip(cores, [None] * num_workers if gpus is None else gpus, strict=True)
        # A controller hides the GPUs itself, since its default of --device depends on whether there are any.
        others = {'ps': (None, None if gpus is None else ''), 'controller': (None, None)}
        return [
            Member(job, index, address, None, *(others.get(job) or next(shares)))
            for (job, index), address in zip(needs.processes, addresses, strict=True)
        ]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns what Command.env has of the launcher's environment variables."""
        return without_clusters(environ)

    def start(self, command: Command) -> HostProcess:
        """Starts a process; raises OSError or RuntimeError if that is not possible."""
        return LocalProcess(command)

    def close(self) -> None:
        """Frees the addresses, and ends what still runs there for this launcher."""
        self._reserving.close()


@contextlib.contextmanager
def reserved_addresses(count: int, address: str = LOOPBACK) -> Iterator[list[str]]:
    """Reserves free ports at an address of this machine while the block lasts, HOST:PORT each; see Host.prepare."""
    # A link-local address needs the number of its interface, too.
    family, _, _, _, at_any_port = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with contextlib.ExitStack() as stack:
        found: list[str] = []
        for _ in range(count):
            try:
                reserving = stack.enter_context(socket.socket(family))
                reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserving.bind(at_any_port)
            except OSError as error:
                reason = f'{error.strerror} for port {len(found) + 1} of {count} on {address}'
                raise RunError(f'there are too few free ports: {reason}; start fewer processes') from error
            found.append(join_host_port(address, reserving.getsockname()[1]))
        yield found


def own_address(interface: str) -> str:
    """Returns the first address of this machine at an interface, see HostNeeds; UsageError if it has none."""
    # IPv4, IPv6, then link-local IPv6 with the name of its interface, fe80::1%eth0, of use where all hosts have it.
    here = sorted(
        (
            (each.address, label)
            for family in (socket.AF_INET, socket.AF_INET6)
            for label, addresses in psutil.net_if_addrs().items()
            for each in addresses
            if each.family == family
        ),
        key=lambda one: '%' in one[0],
    )
    try:
        network = ipaddress.ip_network(interface, strict=False)
        found = [address for address, _ in here if ipaddress.ip_address(address) in network]
    except ValueError:
        # eth0:1 is a label of addresses of eth0.
        found = [address for address, label in here if interface in (label, label.partition(':')[0])]
    if not found:
        there = ', '.join(f'{address} ({label})' for address, label in here) or 'none'
        raise UsageError(
            f'--interface={interface}: no address of this machine is there; it has {there}; write the name of an '
            'interface, or a network such as 10.0.0.0/8, which fits hosts whose interfaces have different names'
        )
    return found[0]


def share_cores(cores: Sequence[int], num_workers: int) -> list[tuple[int, ...]]:
    """Returns the same number of consecutive cores for each worker; one core each, in turn, if there are too few."""
    size = len(cores) // num_workers
    if not size:
        return [(cores[worker % len(cores)],) for worker in range(num_workers)]
    return [tuple(cores[worker * size : (worker + 1) * size]) for worker in range(num_workers)]


def _usable_cores() -> list[int]:
    """The logical cores this process may use, sorted by package (socket), then by physical core."""

    def place(core: int) -> list[int]:
        topology = Path(f'/sys/devices/system/cpu/cpu{core}/topology')
        # Some containers do not show it.
        with contextlib.suppress(OSError, ValueError):
            return [int((topology / name).read_text()) for name in ('physical_package_id', 'core_id')] + [core]
        return [0, core]

    return sorted(os.sched_getaffinity(0), key=place)
