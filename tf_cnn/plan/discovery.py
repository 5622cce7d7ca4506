"""Finds the cluster and the role of this process in it. Does not import TensorFlow."""

from collections.abc import Iterable, Mapping
from typing import Any

from tf_cnn.cluster.environments import (
    Environ,
    find_launch,
    is_evaluator,
    place_ranks,
    read_tf_config,
)
from tf_cnn.cluster.topology import (
    HOSTS_FLAGS,
    Cluster,
    Hosts,
    read_hosts,
    split_hosts,
    topology_of,
)
from tf_cnn.managers.modes import DEFAULT_MODE, Mode, format_modes
from tf_cnn.plan.params import Params
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag, plural

_FLAGS = 'the flags'
# How often an evaluator looks for new checkpoints if --eval_interval_secs is not set.
_EVALUATOR_INTERVAL_SECS = 10.0


def evaluator_params(params: Params, environ: Environ) -> Params:
    """Returns the flags of this process: with --eval if TF_CONFIG makes it an evaluator, else
    unchanged.
    """
    if not is_evaluator(environ):
        return params
    if cluster_flags := _format_flags(params, ('job_name', *HOSTS_FLAGS.values())):
        raise UsageError(
            f'{cluster_flags} contradicts TF_CONFIG, which makes this process an evaluator; '
            'remove one of them'
        )
    if params.checkpoints.train_dir is None:
        raise UsageError(
            'TF_CONFIG makes this process an evaluator, which reads checkpoints; add '
            '--train_dir=DIR'
        )
    overrides: dict[str, Any] = dict.fromkeys(params.evaluation.SCHEDULE_FLAGS)
    # The evaluator does not train, so it uses the mode for one process.
    overrides |= {
        'stop_at_top_1_accuracy': None,
        'variable_update': DEFAULT_MODE,
    }
    # These flags set the length of the training. With --eval they would limit the evaluation.
    overrides |= {'num_batches': None, 'num_epochs': None}
    return params.with_values(
        eval=True,
        eval_interval_secs=params.evaluation.eval_interval_secs or _EVALUATOR_INTERVAL_SECS,
        **overrides,
    )


def check_mode(params: Params, cluster: Cluster | None) -> None:
    """Raises UsageError if --variable_update conflicts with this cluster (None: one process)."""
    mode = params.variables.mode
    mode_flag = format_flag('variable_update', mode.name)
    if refusal := mode.refusal(topology_of(cluster)):
        members = (
            f'{plural(cluster.num_workers, "worker")} and {cluster.num_ps} ps ({cluster.source})'
            if cluster
            else 'one process'
        )
        ps = 'the ps of TF_CONFIG' if cluster and cluster.source == 'TF_CONFIG' else '--ps_hosts'
        raise UsageError(refusal.format(mode=mode_flag, members=members, ps=ps))


def find_cluster(params: Params, environ: Environ) -> Cluster | None:
    """Returns the cluster of this process, or None if it is the only process of its run.

    The first of these sources that describes a cluster is used:

    1. TF_CONFIG. A host or role flag that contradicts it is an error.
    2. --ps_hosts and --worker_hosts. --job_name and --task_index (default 0) give the role; with
       both of them the environment is ignored, since the process may run inside a Slurm or MPI job
       of another shape. Without them, the rank from the launcher gives the role.
    3. Slurm, Open MPI and other launchers, if they started several processes. --job_name and
       --task_index must agree with the rank if they are set.

    In 2 and 3, the first ranks are parameter servers: with P of them (--num_ps, or the length of
    --ps_hosts), rank r is ps r for r < P, else worker r - P. A controller has rank 0, and only
    flags can name its host.

    Returns None also for a mode that only Horovod can start, which numbers its processes.
    """
    mode = params.variables.mode
    if mode.launcher:
        return None
    cluster = _cluster_of_tf_config(params, environ) or _cluster_of_flags(params, environ)
    cluster = cluster or _cluster_of_launch(params, mode, environ)
    if cluster is None and (params.cluster.job_name or params.cluster.task_index):
        raise UsageError(
            f'{_format_flags(params)}: there are no hosts; add --worker_hosts=HOST:PORT,... '
            'and, in modes with parameter servers, --ps_hosts=HOST:PORT,...; or remove the role to '
            'run in one process'
        )
    hosts = [task.host.lower() for task in cluster.tasks] if cluster else []
    if cluster and (duplicate := next((host for host in hosts if hosts.count(host) > 1), None)):
        raise UsageError(
            f'{cluster.source}: two tasks of the cluster have the address {duplicate}; use a '
            'different HOST:PORT for each process'
        )
    if len(hosts) == 1:
        cluster = None
    check_mode(params, cluster)
    return cluster


def _cluster_of_tf_config(params: Params, environ: Environ) -> Cluster | None:
    cluster = read_tf_config(environ)
    if cluster is None:
        return None
    for name in ('ps_hosts', 'worker_hosts'):
        flag_hosts, hosts = _hosts_flag(params, name), getattr(cluster, name)
        if flag_hosts not in ((), hosts):
            raise UsageError(
                f'{format_flag(name, ",".join(flag_hosts))} contradicts TF_CONFIG, which has '
                f'{",".join(hosts) or "none"}; remove the flag, or unset TF_CONFIG'
            )
    _check_role(params, cluster, 'TF_CONFIG', 'remove the flags, or unset TF_CONFIG')
    return cluster


def _cluster_of_flags(params: Params, environ: Environ) -> Cluster | None:
    hosts = {job: _hosts_flag(params, name) for job, name in HOSTS_FLAGS.items()}
    if not any(hosts.values()):
        return None
    problems = ErrorCollector()
    with problems.collecting():
        if not hosts['worker']:
            flag_name = next(name for job, name in HOSTS_FLAGS.items() if hosts[job])
            role = (
                ''
                if params.cluster.job_name or find_launch(environ)
                else ', --job_name and --task_index'
            )
            raise UsageError(
                f'{format_flag(flag_name, params.value(flag_name))}: there are no workers; add '
                f'--worker_hosts=HOST:PORT,...{role}'
            )
    with problems.collecting():
        if hosts['controller'] and not params.variables.mode.has_controller:
            raise UsageError(
                f'--controller_host={params.cluster.controller_host}: '
                f'{format_flag("variable_update", params.variables.variable_update)} has no '
                f'controller; remove it, or use {format_modes(lambda mode: mode.has_controller)}'
            )
    with problems.collecting():
        if hosts['ps'] and hosts['controller'] and params.variables.mode.has_controller:
            raise UsageError(
                f'--controller_host={params.cluster.controller_host}: it conflicts with '
                '--ps_hosts; use one of them'
            )
    with problems.collecting():
        if hosts['worker']:
            job, index = _role_of_flags(
                params, environ, {job: len(job_hosts) for job, job_hosts in hosts.items()}
            )
    problems.raise_all()
    if not hosts[job]:
        raise UsageError(
            f'--job_name={job}: --{HOSTS_FLAGS[job]} is missing; add --{HOSTS_FLAGS[job]}=HOST:PORT'
        )
    if index >= (num_hosts := len(hosts[job])):
        raise UsageError(
            f'--job_name={job} --task_index={index}: --{HOSTS_FLAGS[job]} has '
            f'{plural(num_hosts, "host")}; use a lower --task_index, from 0, or add hosts'
        )
    return Cluster(hosts['ps'], hosts['worker'], job, index, _FLAGS, hosts['controller'])


def _role_of_flags(params: Params, environ: Environ, counts: Mapping[str, int]) -> tuple[str, int]:
    """Returns the job and index of this process, given the number of hosts of each job."""
    launch, num_hosts = find_launch(environ), sum(counts.values())
    if params.cluster.job_name:
        if params.cluster.task_index is None and launch and counts[params.cluster.job_name] > 1:
            # The default, 0, would make every rank with this command line the same task.
            raise UsageError(
                f'--job_name={params.cluster.job_name} without --task_index: {launch.source} '
                f'started several processes ({launch.rank_variable}); add --task_index, or remove '
                'both flags so that the rank decides'
            )
        return params.cluster.job_name, params.cluster.task_index or 0
    first = 'controller' if counts['controller'] else 'ps'
    if launch is None and num_hosts == 1:
        return 'worker', params.cluster.task_index or 0
    if launch is None or params.cluster.task_index is not None:
        raise UsageError(
            f'{_format_flags(params, ("worker_hosts", "task_index"))}: --job_name is missing; add '
            f'--job_name=worker or --job_name={first}, and --task_index=N for the host of this '
            f'process in its list'
        )
    if launch.size != num_hosts:
        raise UsageError(
            f'--{HOSTS_FLAGS[first]} and --worker_hosts have {plural(num_hosts, "host")}, and '
            f'{launch.source} started {launch.process_count}; start one process for each host, or '
            'set the role of this process with --job_name and --task_index'
        )
    return _role_of_rank(launch.rank, counts[first], first)


def _cluster_of_launch(params: Params, mode: Mode, environ: Environ) -> Cluster | None:
    launch = find_launch(environ)
    if launch is None:
        return None
    if mode.has_controller:
        raise UsageError(
            f'{launch.rank_variable}: {format_flag("variable_update", mode.name)} needs the '
            'hosts of all processes; add --controller_host=HOST:PORT for rank 0 and '
            '--worker_hosts=HOST:PORT,... for the others'
        )
    num_ps = params.cluster.num_ps if mode.needs_servers else 0
    if num_ps >= launch.size:
        raise UsageError(
            f'--num_ps={num_ps}: {launch.source} started {launch.process_count}, and at least one '
            f'must be a worker; start more, or use --num_ps={launch.size - 1}'
        )
    places = place_ranks(launch, environ, num_ps)
    first_port = params.cluster.cluster_port or launch.first_port
    if first_port is None:
        raise UsageError(
            f'{launch.rank_variable}: no variable identifies the job, so there is no default '
            'port; add --cluster_port=PORT'
        )
    hosts = tuple(f'{node}:{first_port + i}' for node, i in places)
    job, index = _role_of_rank(launch.rank, num_ps)
    cluster = Cluster(hosts[:num_ps], hosts[num_ps:], job, index, launch.source)
    _check_role(
        params,
        cluster,
        f'{launch.source} ({launch.rank_variable})',
        'remove the flags, or add --worker_hosts',
    )
    return cluster


def _role_of_rank(rank: int, num_first: int, first: str = 'ps') -> tuple[str, int]:
    return (first, rank) if rank < num_first else ('worker', rank - num_first)


def _check_role(params: Params, cluster: Cluster, environment: str, remedy: str) -> None:
    if params.cluster.job_name not in (None, cluster.job) or params.cluster.task_index not in (
        None,
        cluster.index,
    ):
        raise UsageError(
            f'{_format_flags(params)} contradicts {environment}, where this process is '
            f'{cluster.own_task}; {remedy}'
        )


def _format_flags(params: Params, names: Iterable[str] = ('job_name', 'task_index')) -> str:
    values = {name: params.value(name) for name in names}
    return ' '.join(format_flag(name, value) for name, value in values.items() if value is not None)


def _hosts_flag(params: Params, name: str) -> Hosts:
    text = params.value(name)
    if not text or not text.strip():
        return ()
    return read_hosts(
        [text] if name == 'controller_host' else split_hosts(text), format_flag(name, text)
    )
