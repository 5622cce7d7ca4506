"""The processes of a run, and the role of this process. Does not import TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tf_cnn.cluster.environments import find_launch, find_local_rank_and_size, find_rank_variables
from tf_cnn.cluster.private_network import is_private
from tf_cnn.cluster.topology import HOSTS_FLAGS, Cluster, Shape, public_hosts, split_host_port
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.machine.visible_gpus import SINGLE_PROCESS, RankAndSize
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.plan.params import Params
from tf_cnn.plan.process_settings import find_visible_gpus
from tf_cnn.system.errors import UsageError

# The most ports in a rule of iptables.
_MOST_PORTS = 15


@dataclass(frozen=True)
class ClusterRole:
    """The processes of a run, and the role of this process."""

    cluster: Cluster | None  # None for a run of one process
    horovod: Any  # the module horovod.tensorflow if Horovod started the processes, else None
    # Whether the workers take each step together; in a server: whether the loss of a training task
    # stops the others.
    is_synchronous: bool
    shared_settings: Mapping[
        str, Any
    ]  # the flags that all processes of the cluster need with the same values
    place_on_host: RankAndSize = SINGLE_PROCESS
    devices_per_worker: int = 1

    @property
    def is_single_process(self) -> bool:
        """Whether this is the only process, without a launcher."""
        return self.cluster is None and self.horovod is None

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes variables, saves checkpoints and writes summaries."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def is_server(self) -> bool:
        """Whether this process only serves other tasks and takes no steps."""
        return self.cluster is not None and self.cluster.is_server

    @property
    def job(self) -> str:
        return self.cluster.job if self.cluster else 'worker'

    @property
    def is_parameter_server(self) -> bool:
        return self.job == 'ps'

    @property
    def has_local_towers(self) -> bool:
        """Whether this process has towers; parameter servers and controllers have none."""
        return not self.remote_tower_prefixes and not self.is_parameter_server

    @property
    def remote_tower_prefixes(self) -> tuple[str, ...]:
        """The device prefixes of the workers that a controller drives; empty in other processes."""
        has_controller = (
            self.cluster is not None and self.cluster.controller_hosts and not self.is_server
        )
        return (
            tuple(task.device for task in self.cluster.servers)
            if self.cluster and has_controller
            else ()
        )

    @property
    def num_hosts(self) -> int:
        """The number of processes with the towers that this process drives."""
        return len(self.remote_tower_prefixes) or 1

    @property
    def shape(self) -> Shape:
        num_ps = self.cluster.num_ps if self.cluster else 0
        return Shape(self.num_hosts * self.num_training_tasks, self.devices_per_worker, num_ps)

    @property
    def num_training_tasks(self) -> int:
        """The number of training tasks."""
        return len(self.cluster.training_tasks) if self.cluster else 1

    @property
    def index(self) -> int:
        """The index of this process among the training tasks."""
        return self.cluster.index if self.cluster else 0


def find_cluster_role(
    params: Params, environment: ProcessEnvironment, warnings: list[str]
) -> ClusterRole:
    horovod, cluster = _find_cluster(params, environment)
    in_step = params.variables.cross_replica_sync and not params.run.forward_only
    serves = cluster is not None and cluster.is_server
    if serves:
        # No task can continue without its controller.
        is_synchronous = in_step or bool(cluster and cluster.controller_hosts)
    else:
        is_synchronous = cluster is None or params.evaluation.eval or horovod is not None or in_step
    place_on_host = cluster.local_rank_and_size if cluster else SINGLE_PROCESS
    if horovod:
        place_on_host = horovod.local_rank(), horovod.local_size()
    cluster_role = ClusterRole(
        cluster=cluster,
        horovod=horovod,
        is_synchronous=is_synchronous,
        shared_settings=params.shared_flags(serves=serves),
        place_on_host=place_on_host,
        devices_per_worker=params.devices.num_gpus,
    )
    is_one = cluster is None or len(cluster.tasks) == 1
    names_hosts = any(params.value(name) for name in HOSTS_FLAGS.values())
    if is_one and not names_hosts and (unjoined := find_rank_variables(environment.variables)):
        warnings.append(
            f'{unjoined}: this process may be one of several, but these variables do not connect '
            'them, and it runs alone; to connect them use --worker_hosts=HOST:PORT,..., '
            '--job_name and --task_index in each'
        )
    return cluster_role


def add_file_hashes(cluster_role: ClusterRole, hashes: Mapping[str, str]) -> ClusterRole:
    """Adds the hashes of user files for the model and the mode to the shared settings.

    A parameter server needs no such files, so it compares only the files that it has.
    """
    settings = dict(cluster_role.shared_settings)
    for flag in ('model_file', 'variable_mgr_file'):
        digest = hashes.get(flag)
        if digest or not cluster_role.is_server:
            settings[f'SHA-256 of --{flag}'] = digest
    return replace(cluster_role, shared_settings=settings)


def warn_of_open_ports(cluster_role: ClusterRole, warnings: list[str]) -> None:
    """Warns that other users can reach the servers of this cluster; says how to close ports."""
    cluster = cluster_role.cluster
    if cluster is None or cluster_role.horovod or is_private():
        return
    # The line is the same in all tasks, so that a launcher shows it once.
    ports = sorted({split_host_port(task.host)[1] for task in cluster.tasks})
    port_list, in_rule = ', '.join(map(str, ports)), ','.join(map(str, ports))
    if len(ports) > _MOST_PORTS:
        port_list, in_rule = f'{ports[0]} to {ports[-1]}', f'{ports[0]}:{ports[-1]}'
    if cluster.is_on_one_host:
        advice = (
            f'`iptables -I INPUT ! -i lo -p tcp -m multiport --dports {in_rule} -j DROP` and the '
            'same by ip6tables'
        )
    else:
        advice = 'a firewall on each host that lets only the hosts of the cluster connect'
    public = ', '.join(public_hosts(cluster))
    warnings.append(
        f"{f'{public}: not in a private network; ' if public else ''}TensorFlow's servers "
        'listen on all addresses of their host without a password: anyone who can connect to port '
        f'{port_list} can read and write the files of this user and change the weights; close the '
        f'ports to others by {advice}'
    )


def _find_cluster(params: Params, environment: ProcessEnvironment) -> tuple[Any, Cluster | None]:
    """Returns horovod.tensorflow, or None if the mode does not need it, and the cluster."""
    if params.variables.mode.launcher is None:
        return None, find_cluster(params, environment.variables)
    from tf_cnn.cluster.horovod_worker import horovod_cluster, load_horovod

    place_on_host = find_local_rank_and_size(environment.variables)
    # A CUDA-aware MPI looks for GPUs when Horovod starts it.
    environment.process.show_gpus(
        find_visible_gpus(params, environment, place_on_host) if place_on_host else None
    )
    horovod = load_horovod()
    cluster = horovod_cluster(horovod)
    launch = find_launch(environment.variables)
    if len(cluster.tasks) == 1 and launch:
        raise UsageError(
            f'{launch.rank_variable}: {launch.source} started {launch.process_count}, and '
            'Horovod did not connect '
            'them; start them with horovodrun, or install a Horovod that was built for this MPI'
        )
    return horovod, cluster
