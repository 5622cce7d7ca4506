"""What a parameter server does: it is there until the workers are done."""

import os
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cluster.crew import Crew, End, Timeout
from cluster.members import Cluster, Task
from cluster.server import start_server
from cluster.signals import Stop
from errors import RunError
from params import Params

_INTERVAL_SECS = 0.25
# How long a server that is told to end stays for workers that were told so, too, and may be saving their state.
_FAREWELL_SECS = 15.0


def run_server(params: Params, cluster: Cluster, warn: Callable[[str], None]) -> None:
    """Runs this process as a parameter server until the workers are done.

    Raises:
      RunError: a worker never came, was lost for good, or ended with an error.
    """
    # Variables of parameter servers are on their CPUs; the GPUs are the workers'.
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    config = tf.ConfigProto(device_count={'GPU': 0})
    together = params.cross_replica_sync and not params.forward_only
    crew = Crew(cluster, start_server(cluster, config).target, together=together)

    def farewell(signal_name: str) -> None:
        deadline = time.monotonic() + _FAREWELL_SECS
        while time.monotonic() < deadline and _remaining(crew):
            time.sleep(_INTERVAL_SECS)
        crew.end(1, f'stopped by {signal_name}')

    connect = Timeout('connect_timeout_secs', params.connect_timeout_secs)
    peer = Timeout('peer_timeout_secs', params.peer_timeout_secs)
    with Stop(farewell).listening():
        try:
            serve(crew, connect, peer, params.ps_linger_secs, warn, together=together)
        except RunError as fault:
            crew.end(fault.exit_code, str(fault))
            raise
        crew.end(0)
        crew.see_off()


def _remaining(crew: Crew) -> list[Task]:
    """The workers that are still there."""
    there, facts = crew.ask(), crew.facts() or {}
    ended = crew.ends(facts, there)
    return [task for task, incarnation in there.items() if task.job == 'worker' and incarnation and task not in ended]


def serve(
    crew: Crew, connect: Timeout, peer: Timeout, linger_secs: float, warn: Callable[[str], None], *, together: bool
) -> None:
    """Returns when every worker has ended well.

    Args:
      together: whether the workers need each other. If not, a lost one counts as ended once its time is over.

    Raises:
      RunError: a worker never came, was lost for good, or ended with an error.
    """
    workers = [task for task in crew.cluster.tasks if task.job == 'worker']
    needed = {*workers, crew.cluster.host_task} - {crew.cluster.own}
    seen: set[Task] = set()
    given_up: set[Task] = set()
    last_answer = dict.fromkeys(needed, time.monotonic())
    ended: dict[Task, End] = {}
    while not all(worker in ended or worker in given_up for worker in workers):
        there, facts = crew.ask(), crew.facts()
        ended = crew.ends(facts, there) if facts is not None else ended
        now = time.monotonic()
        for task in needed - ended.keys() - given_up:
            if there[task] is not None:
                seen.add(task)
                last_answer[task] = now
            timeout = peer if task in seen else connect
            if now - last_answer[task] <= timeout.secs:
                continue
            if task in seen and not together and task.job == 'worker':
                warn(f'{task} was lost; the others go on')
                given_up.add(task)
            else:
                raise RunError(
                    timeout.tell(f'{task} {"was lost and did not come back" if task in seen else "did not answer"}')
                )
        time.sleep(_INTERVAL_SECS)
    failed = {task: end for task, end in ended.items() if end.exit_code and task.job == 'worker'}
    for task, end in failed.items():
        raise RunError(f'{task} ended with exit code {end.exit_code}: {end.reason}')
    if linger_secs:
        time.sleep(linger_secs)
