"""Finds the processes of a run, and the role of this process. Does not import TensorFlow."""

from dataclasses import replace
from typing import Any

from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.cluster.environments import find_launch, find_local_rank_and_size, find_rank_variables
from tf_cnn.cluster.private_network import is_private
from tf_cnn.cluster.topology import HOSTS_FLAGS, Cluster, Timeout, public_hosts, split_host_port
from tf_cnn.flags.spec import Output
from tf_cnn.machine.visible_gpus import SINGLE_PROCESS
from tf_cnn.planning.environment import ProcessEnvironment
from tf_cnn.planning.plan import ClusterRole, Workload
from tf_cnn.planning.process_settings import find_visible_gpus
from tf_cnn.run.params import Params, output_flags
from tf_cnn.system.errors import UsageError

# The most ports in a rule of iptables.
_MOST_PORTS = 15


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
        connect=Timeout('connect_timeout_secs', params.cluster.connect_timeout_secs),
        step_limit=Timeout('step_timeout_secs', params.cluster.step_timeout_secs),
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


def add_file_hashes(cluster_role: ClusterRole, workload: Workload) -> ClusterRole:
    """Adds the hashes of user files for the model and the mode to the shared settings.

    A parameter server needs no such files, so it compares only the files that it has.
    """
    settings = dict(cluster_role.shared_settings)
    for flag in ('model_file', 'variable_mgr_file'):
        digest = workload.file_hashes.get(flag)
        if digest or not cluster_role.is_server:
            settings[f'SHA-256 of --{flag}'] = digest
    return replace(cluster_role, shared_settings=settings)


def remove_outputs_of_other_tasks(params: Params, cluster_role: ClusterRole) -> Params:
    """Removes the output files that another process writes from the flags.

    horovodrun gives all processes the same flags, so only the chief writes. In other clusters each
    process has separate flags.
    """
    if cluster_role.horovod is None or cluster_role.is_chief:
        return params
    without = dict.fromkeys(output_flags(Output.FILE, Output.PREFIX))
    return params.replace(**without)


def warn_of_open_ports(cluster_role: ClusterRole, warnings: list[str]) -> None:
    """Warns that other users can reach the servers of this cluster, and how to close their "
    "ports."""
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
