"""What a server does: it is there until those that train are done."""

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
# Who does not answer for so long is not only slow.
_GONE_SECS = 3.0
# How long a server that is told to end stays for workers that were told so, too, and may be saving their state.
_FAREWELL_SECS = 15.0


def run_server(params: Params, cluster: Cluster, config: tf.ConfigProto, warn: Callable[[str], None]) -> None:
    """Runs this process as a server until those that train are done.

    Raises:
      RunError: one of them never came, was lost for good, or ended with an error.
    """
    # Nobody goes on without a controller.
    together = (params.cross_replica_sync and not params.forward_only) or bool(cluster.controller_hosts)
    crew = Crew(cluster, start_server(cluster, config).target, together=together)

    def farewell(exit_code: int, signal_name: str) -> None:
        _await_trainers(crew, _FAREWELL_SECS)
        crew.end(exit_code, f'stopped by {signal_name}')
        # Their sessions close sooner while this server answers.
        _await_trainers(crew, _GONE_SECS)
        crew.see_off()
        warn(f'stopped by {signal_name}')

    connect = Timeout('connect_timeout_secs', params.connect_timeout_secs)
    peer = Timeout('peer_timeout_secs', params.peer_timeout_secs)
    stop = Stop(farewell)
    with stop.listening():
        try:
            serve(crew, connect, peer, params.ps_linger_secs, warn, stop.check, together=together)
        except RunError as fault:
            crew.end(fault.exit_code, str(fault))
            crew.see_off()
            raise
        crew.end(0)
        crew.see_off()


def _await_trainers(crew: Crew, secs: float) -> None:
    """Waits until those that train have ended, for so long at most."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline and _remaining(crew):
        time.sleep(_INTERVAL_SECS)


def _remaining(crew: Crew) -> list[Task]:
    """The workers that are still there."""
    there, facts = crew.ask(), crew.facts() or {}
    ended = crew.ends(facts, there)
    return [task for task in crew.cluster.trainers if there[task] and task not in ended]


def serve(
    crew: Crew,
    connect: Timeout,
    peer: Timeout,
    linger_secs: float,
    warn: Callable[[str], None],
    check_stop: Callable[[], None],
    *,
    together: bool,
) -> None:
    """Returns when every worker has ended well.

    What to do about a lost worker is for the others to decide: it is only given up when none of them is left.

    Args:
      check_stop: called now and then; does not return when a signal is about to end the process.
      together: whether the workers need each other. If not, a lost one counts as ended once its time is over.

    Raises:
      RunError: a worker never came, was lost for good, or ended with an error.
    """
    workers = crew.cluster.trainers
    limits = dict.fromkeys(workers, connect)
    last_answer = dict.fromkeys(workers, time.monotonic())
    ended: dict[Task, End] = {}
    given_up: list[Task] = []
    while len(ended.keys() | set(given_up)) < len(workers):
        there, facts = crew.ask(), crew.facts()
        ends = ended | crew.ends(crew.own_facts(), there) if facts is None else crew.ends(facts, there)
        ended = {worker: ends[worker] for worker in workers if worker in ends}
        now = time.monotonic()
        for worker in workers:
            if there[worker] is not None:
                limits[worker], last_answer[worker] = peer, now
        # Those that do not need each other end when all steps are taken: then there is nothing left to come back for.
        is_over = not together and any(end.exit_code == 0 for end in ended.values())
        given_up = [
            worker
            for worker in workers
            if worker not in ended and now - last_answer[worker] > (_GONE_SECS if is_over else limits[worker].secs)
        ]
        time.sleep(_INTERVAL_SECS)
        check_stop()
    for worker, end in ended.items():
        if end.exit_code:
            raise RunError(f'{worker} ended with exit code {end.exit_code}: {end.reason}')
    for worker in given_up:
        if together or limits[worker] is connect:
            raise RunError(
                limits[worker].tell(f'{worker} did not {"come" if limits[worker] is connect else "come back"}')
            )
        warn(f'{worker} was lost; the others went on')
    until = time.monotonic() + linger_secs
    while time.monotonic() < until:
        check_stop()
        time.sleep(_INTERVAL_SECS)
