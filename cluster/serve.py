"""Runs a server of a cluster, which answers until the trainers have ended."""

import time
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from cluster.agreement import Settings
from cluster.failure_detector import FailureDetector, failure_of_end, failure_of_loss, fault_of
from cluster.rendezvous import End, Incarnations, Rendezvous
from cluster.server import start_server
from cluster.signals import Stop
from cluster.topology import Cluster, Task, Timeout
from errors import BenchmarkError, RunError, UsageError

_INTERVAL_SECS = 0.25
# A task that has not answered for this long is gone, not only slow.
_GONE_SECS = 3.0
# How long a server that will end stays for the chief, which saves the variables.
_STAY_SECS = 10.0


# Eight arguments, each an independent fact of the run or a way to reach its user. One caller passes them by name.
def run_server(
    cluster: Cluster,
    config: tf.ConfigProto,
    *,
    settings: Settings,
    together: bool,
    connect: Timeout,
    linger_secs: float,
    warn: Callable[[str], None],
    show: Callable[[str], None],
) -> None:
    """Runs this process as a server until the trainers have ended; RunError if one fails or a needed task is lost.

    together: no trainer can go on without the others. connect limits the wait for the trainers at the start, about
    which show prints lines. linger_secs is how long to stay after all trainers have ended.
    """
    start_server(cluster, config)
    rendezvous = Rendezvous(cluster, together=together, settings=settings, show=show)

    def finish(exit_code: int, signal_name: str) -> None:
        rendezvous.end(exit_code, f'stopped by {signal_name}')
        rendezvous.await_ends(cluster.trainers, _STAY_SECS)
        rendezvous.stay_for_others()
        warn(f'stopped by {signal_name}')

    stop = Stop(finish)

    def end_if_requested() -> None:
        if stop.is_requested():
            stop.await_end()

    with stop.listening():
        try:
            serve(rendezvous, connect, linger_secs, warn, end_if_requested)
        except BenchmarkError as fault:
            rendezvous.end(fault.exit_code, str(fault))
            rendezvous.stay_for_others(all_will_end=isinstance(fault, UsageError))
            raise
        rendezvous.end(0)
        rendezvous.stay_for_others()


def serve(
    rendezvous: Rendezvous,
    connect: Timeout,
    linger_secs: float,
    warn: Callable[[str], None],
    end_if_requested: Callable[[], None],
) -> None:
    """Returns when every trainer has ended well; the arguments and errors are those of run_server.

    end_if_requested is called again and again; after a signal it does not return.
    """
    gone: list[Task] = []
    ended = _await_training(rendezvous, connect, end_if_requested)
    if rendezvous.membership:
        ended, gone = _await_end(rendezvous, ended, warn, end_if_requested)
    for trainer, end in ended.items():
        if failure := failure_of_end(trainer, end):
            raise fault_of(failure)
    for trainer in gone:
        if not ended:
            raise fault_of(failure_of_loss(trainer))
        warn(f'{trainer} was lost; the others took all steps')
    until = time.monotonic() + linger_secs
    while time.monotonic() < until:
        end_if_requested()
        time.sleep(_INTERVAL_SECS)


def _await_training(rendezvous: Rendezvous, connect: Timeout, end_if_requested: Callable[[], None]) -> dict[Task, End]:
    """Waits until the training has begun, or all trainers have ended before. Returns how trainers have ended."""
    trainers, began = rendezvous.cluster.trainers, time.monotonic()
    ended: dict[Task, End] = {}
    while not rendezvous.membership and len(ended) < len(trainers):
        found = rendezvous.incarnations()
        ended = _ended(rendezvous, found, ended)
        missing = [trainer for trainer in trainers if found[trainer] is None and trainer not in ended]
        secs = time.monotonic() - began
        if missing and secs > connect.secs:
            raise RunError(connect.message(f'{missing[0]} did not come'))
        rendezvous.show_missing(missing, secs)
        time.sleep(_INTERVAL_SECS)
        end_if_requested()
    return ended


def _await_end(
    rendezvous: Rendezvous, ended: dict[Task, End], warn: Callable[[str], None], end_if_requested: Callable[[], None]
) -> tuple[dict[Task, End], list[Task]]:
    """Waits until all trainers have ended or are gone. Returns how trainers have ended, and those that are gone."""
    assert rendezvous.membership
    detector = FailureDetector(rendezvous, rendezvous.membership, warn)
    trainers = rendezvous.cluster.trainers
    last_answer = dict.fromkeys(trainers, time.monotonic())
    gone: list[Task] = []
    while len(ended) + len(gone) < len(trainers):
        found = rendezvous.incarnations()
        ended = _ended(rendezvous, found, ended)
        if failure := detector.check():
            # The chief may read the variables from here, to save them.
            rendezvous.await_ends(trainers, _STAY_SECS)
            raise fault_of(failure)
        now = time.monotonic()
        last_answer |= {trainer: now for trainer in trainers if found[trainer] is not None}
        # If trainers do not need each other, a lost one may come back while others train.
        gone = [task for task in trainers if task not in ended and now - last_answer[task] > _GONE_SECS]
        time.sleep(_INTERVAL_SECS)
        end_if_requested()
    return ended, gone


def _ended(rendezvous: Rendezvous, found: Incarnations, known: Mapping[Task, End]) -> dict[Task, End]:
    """Returns the trainers that have ended, and how; takes part in the training when it has begun."""
    rendezvous.check_own_address(found)
    entries = rendezvous.entries()
    if entries is None:
        ends = {**known, **rendezvous.ends(rendezvous.entries(rendezvous.cluster.own) or {}, found)}
    else:
        rendezvous.compare_settings(entries, found)
        # The trainers of an earlier training, which still ends, are not those of this server.
        is_other = not rendezvous.enter(entries, found) and 'membership' in entries
        ends = {} if is_other else rendezvous.ends(entries, found)
    return {trainer: ends[trainer] for trainer in rendezvous.cluster.trainers if trainer in ends}
