"""Plans which processes there are, and which of them this is. Does not import TensorFlow."""

from dataclasses import replace
from typing import Any

from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.cluster.environments import find_launch, find_place_on_host, find_unjoined
from tf_cnn.cluster.private_network import is_private
from tf_cnn.cluster.topology import HOSTS_FLAGS, Cluster, Timeout, public_hosts, split_host_port
from tf_cnn.flags.spec import Output
from tf_cnn.machine.visible_gpus import ONLY_ONE
from tf_cnn.managers.modes import MODES
from tf_cnn.params import Params
from tf_cnn.params.table import flags_to_agree_on, outputs_that_are
from tf_cnn.planning.environment import Environment
from tf_cnn.planning.plan import Processes, Subject
from tf_cnn.planning.process_settings import find_visible_gpus
from tf_cnn.system.errors import UsageError

# How many ports a rule of iptables may list.
_MOST_PORTS = 15


def find_processes(params: Params, environment: Environment, warnings: list[str]) -> Processes:
    horovod, cluster = _find_cluster(params, environment)
    in_step = params.cross_replica_sync and not params.forward_only
    serves = cluster is not None and cluster.serves
    if serves:
        # Without its controller no task can continue.
        together = in_step or bool(cluster and cluster.controller_hosts)
    else:
        together = cluster is None or params.eval or horovod is not None or in_step
    place = cluster.place_on_host if cluster else ONLY_ONE
    if horovod:
        place = horovod.local_rank(), horovod.local_size()
    processes = Processes(
        cluster=cluster,
        horovod=horovod,
        together=together,
        settings=flags_to_agree_on(params, serves=serves),
        connect=Timeout('connect_timeout_secs', params.connect_timeout_secs),
        step_limit=Timeout('step_timeout_secs', params.step_timeout_secs),
        place_on_host=place,
        devices_per_worker=params.num_gpus,
    )
    is_one = cluster is None or len(cluster.tasks) == 1
    names_hosts = any(getattr(params, name) for name in HOSTS_FLAGS.values())
    if is_one and not names_hosts and (unjoined := find_unjoined(environment.variables)):
        warnings.append(
            f'{unjoined}: this process may be one of several, but these variables do not connect '
            'them, and it runs alone; to connect them write --worker_hosts=HOST:PORT,..., '
            '--job_name and --task_index in each'
        )
    return processes


def agree_on_files(processes: Processes, subject: Subject) -> Processes:
    """Adds to the settings of the cluster the files of users that define the model and the mode.

    A parameter server needs neither, so it compares only those that it has.
    """
    settings = dict(processes.settings)
    for flag in ('model_file', 'variable_mgr_file'):
        digest = subject.file_hashes.get(flag)
        if digest or not processes.serves:
            settings[f'SHA-256 of --{flag}'] = digest
    return replace(processes, settings=settings)


def own_outputs(params: Params, processes: Processes) -> Params:
    """Returns the flags without the files that another process writes.

    horovodrun gives all processes the same flags, so only the chief writes; in other clusters flags
    may differ.
    """
    if processes.horovod is None or processes.is_chief:
        return params
    without = dict.fromkeys(outputs_that_are(Output.FILE, Output.PREFIX))
    # Each of these flags may be None, which mypy cannot see.
    return replace(params, **without)  # type: ignore[arg-type]


def warn_of_open_ports(processes: Processes, warnings: list[str]) -> None:
    """Warns that others may use the servers of this cluster, and how to close their ports."""
    cluster = processes.cluster
    if cluster is None or processes.horovod or is_private():
        return
    # All tasks write the same line, and a launcher shows it once.
    ports = sorted({split_host_port(task.host)[1] for task in cluster.tasks})
    named, in_rule = ', '.join(map(str, ports)), ','.join(map(str, ports))
    if len(ports) > _MOST_PORTS:
        named, in_rule = f'{ports[0]} to {ports[-1]}', f'{ports[0]}:{ports[-1]}'
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
        'listen on all addresses of their host without a password: whoever can connect to port '
        f'{named} can read and write the files of this user and change the weights; close the '
        f'ports to others by {advice}'
    )


def _find_cluster(params: Params, environment: Environment) -> tuple[Any, Cluster | None]:
    """Returns the module horovod.tensorflow if the mode needs it, and the cluster."""
    if MODES[params.variable_update].launcher is None:
        return None, find_cluster(params, environment.variables)
    from tf_cnn.cluster.horovod_worker import horovod_cluster, load_horovod

    place = find_place_on_host(environment.variables)
    # An MPI that knows CUDA looks for GPUs when Horovod starts it.
    environment.process.show(find_visible_gpus(params, environment, place) if place else None)
    horovod = load_horovod()
    cluster = horovod_cluster(horovod)
    launch = find_launch(environment.variables)
    if len(cluster.tasks) == 1 and launch:
        raise UsageError(
            f'{launch.own}: {launch.source} started {launch.started}, and Horovod did not connect '
            'them; start them with horovodrun, or install a Horovod that was built for this MPI'
        )
    return horovod, cluster
