"""Runs a server of a cluster, which answers until the trainers have ended."""

import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import FailureDetector, PeerError, failure_of_end, find_loss
from tf_cnn.cluster.rendezvous import End, Incarnations, Rendezvous, Settings
from tf_cnn.cluster.server import start_server
from tf_cnn.cluster.topology import Cluster, Task, Timeout
from tf_cnn.results.console import Console
from tf_cnn.system.errors import BenchmarkError, RunError, UsageError
from tf_cnn.system.signals import SIGNALS, Stopped

_INTERVAL_SECS = 0.25
# A task that has not answered for this long is gone, not only slow.
_GONE_SECS = 3.0
# How long a server that will end stays for the chief, which saves the variables.
_STAY_SECS = 10.0


def run_server(
    cluster: Cluster,
    config: tf.ConfigProto,
    *,
    settings: Settings,
    together: bool,
    connect: Timeout,
    linger_secs: float,
    console: Console,
) -> None:
    """Runs this process as a server until the trainers have ended; RunError if one fails or a
    needed task is lost.

    together: no trainer can go on without the others. connect limits the wait for the trainers at
    the start. linger_secs is how long to stay after all trainers have ended.
    """
    start_server(cluster, config)
    rendezvous = Rendezvous(cluster, together=together, settings=settings, show=console.progress)

    def finish(stop: Stopped) -> None:
        # A launcher stops all tasks when one is lost.
        loss = find_loss(rendezvous)
        reason = f'{loss}; {stop.reason}' if loss else stop.reason
        rendezvous.end(stop.exit_code, reason)
        if rendezvous.membership:
            # The chief saves the variables that are here.
            rendezvous.await_ends(cluster.trainers, _STAY_SECS)
            rendezvous.stay_for_others()
        console.warning(reason)

    with SIGNALS.storing(finish, may_exit=True):
        try:
            serve(rendezvous, connect, linger_secs, console.warning)
        except Stopped as stop:
            finish(stop)
            SIGNALS.exit(stop.exit_code)
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
    ask: Callable[[], None] = SIGNALS.ask,
) -> None:
    """Returns when every trainer has ended well; the arguments and errors are those of run_server.

    ask is called again and again; after a signal it raises Stopped.
    """
    trainers, polls = rendezvous.cluster.trainers, _poll(rendezvous, ask)
    began = time.monotonic()
    for found, ended in polls:
        # All may have ended before.
        if rendezvous.membership or len(ended) == len(trainers):
            break
        missing = [
            trainer for trainer in trainers if found[trainer] is None and trainer not in ended
        ]
        secs = time.monotonic() - began
        if missing and secs > connect.secs:
            raise RunError(connect.message(f'{missing[0]} did not come'))
        rendezvous.show_missing(missing, secs)
    gone: list[Task] = []
    if rendezvous.membership and len(ended) < len(trainers):
        detector = FailureDetector(rendezvous)
        last_answer = dict.fromkeys(trainers, time.monotonic())
        for found, ended in polls:
            if failure := detector.check():
                # The chief may read the variables from here, to save them.
                rendezvous.await_ends(trainers, _STAY_SECS)
                raise failure
            now = time.monotonic()
            last_answer |= {trainer: now for trainer in trainers if found[trainer] is not None}
            # If trainers do not need each other, a lost one may come back while others train.
            gone = [
                task
                for task in trainers
                if task not in ended and now - last_answer[task] > _GONE_SECS
            ]
            if len(ended) + len(gone) == len(trainers):
                break
    for trainer, end in ended.items():
        if failure := failure_of_end(trainer, end):
            raise failure
    for trainer in gone:
        if not ended:
            raise PeerError(trainer)
        warn(f'{trainer} was lost; the others took all steps')
    until = time.monotonic() + linger_secs
    while time.monotonic() < until:
        ask()
        time.sleep(_INTERVAL_SECS)


def _poll(
    rendezvous: Rendezvous, ask: Callable[[], None]
) -> Iterator[tuple[Incarnations, Mapping[Task, End]]]:
    """Yields which tasks are up, and which trainers have ended and how; joins the training when it
    has begun.
    """
    ended: Mapping[Task, End] = {}
    while True:
        found = rendezvous.incarnations()
        rendezvous.check_own_address(found)
        entries = rendezvous.entries()
        if entries is not None:
            rendezvous.compare_settings(entries, found)
            # The trainers of an earlier training, which still ends, are not those of this server.
            is_other = not rendezvous.enter(entries, found) and 'membership' in entries
            ends = {} if is_other else rendezvous.ends(entries, found)
            ended = {
                trainer: ends[trainer] for trainer in rendezvous.cluster.trainers if trainer in ends
            }
        yield found, ended
        time.sleep(_INTERVAL_SECS)
        ask()
