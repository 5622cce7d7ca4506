"""Runs a server of a cluster, which answers until the trainers have ended."""

import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import (
    FailureDetector,
    PeerError,
    failure_of_exit,
    find_lost_peer,
)
from tf_cnn.cluster.rendezvous import Exit, Incarnations, Rendezvous, SharedSettings
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
    settings: SharedSettings,
    is_synchronous: bool,
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
    rendezvous = Rendezvous(
        cluster, is_synchronous=is_synchronous, settings=settings, report=console.progress
    )

    def finish(stop: Stopped) -> None:
        # A launcher stops all tasks when one is lost.
        loss = find_lost_peer(rendezvous)
        reason = f'{loss}; {stop.reason}' if loss else stop.reason
        rendezvous.record_exit(stop.exit_code, reason)
        if rendezvous.group:
            # The chief saves the variables that are here.
            rendezvous.await_exits(cluster.training_tasks, _STAY_SECS)
            rendezvous.wait_for_other_tasks()
        console.warning(reason)

    with SIGNALS.storing(finish, may_exit=True):
        try:
            serve(rendezvous, connect, linger_secs, console.warning)
        except Stopped as stop:
            finish(stop)
            SIGNALS.exit(stop.exit_code)
        except BenchmarkError as fault:
            rendezvous.record_exit(fault.exit_code, str(fault))
            rendezvous.wait_for_other_tasks(all_will_end=isinstance(fault, UsageError))
            raise
        rendezvous.record_exit(0)
        rendezvous.wait_for_other_tasks()


def serve(
    rendezvous: Rendezvous,
    connect: Timeout,
    linger_secs: float,
    warn: Callable[[str], None],
    check_signals: Callable[[], None] = SIGNALS.check,
) -> None:
    """Returns when every trainer has ended well; the arguments and errors are those of run_server.

    ask is called again and again; after a signal it raises Stopped.
    """
    training_tasks, polls = rendezvous.cluster.training_tasks, _poll(rendezvous, check_signals)
    started_at = time.monotonic()
    for incarnations, exits in polls:
        # All may have ended before.
        if rendezvous.group or len(exits) == len(training_tasks):
            break
        missing = [
            trainer
            for trainer in training_tasks
            if incarnations[trainer] is None and trainer not in exits
        ]
        secs = time.monotonic() - started_at
        if missing and secs > connect.secs:
            raise RunError(connect.message(f'{missing[0]} did not come'))
        rendezvous.report_missing(missing, secs)
    lost_tasks: list[Task] = []
    if rendezvous.group and len(exits) < len(training_tasks):
        detector = FailureDetector(rendezvous)
        last_answer = dict.fromkeys(training_tasks, time.monotonic())
        for incarnations, exits in polls:
            if failure := detector.check():
                # The chief may read the variables from here, to save them.
                rendezvous.await_exits(training_tasks, _STAY_SECS)
                raise failure
            now = time.monotonic()
            last_answer |= {
                trainer: now for trainer in training_tasks if incarnations[trainer] is not None
            }
            # If trainers do not need each other, a lost one may come back while others train.
            lost_tasks = [
                task
                for task in training_tasks
                if task not in exits and now - last_answer[task] > _GONE_SECS
            ]
            if len(exits) + len(lost_tasks) == len(training_tasks):
                break
    for trainer, task_exit in exits.items():
        if failure := failure_of_exit(trainer, task_exit):
            raise failure
    for trainer in lost_tasks:
        if not exits:
            raise PeerError(trainer)
        warn(f'{trainer} was lost; the others took all steps')
    until = time.monotonic() + linger_secs
    while time.monotonic() < until:
        check_signals()
        time.sleep(_INTERVAL_SECS)


def _poll(
    rendezvous: Rendezvous, check_signals: Callable[[], None]
) -> Iterator[tuple[Incarnations, Mapping[Task, Exit]]]:
    """Yields which tasks are up, and which trainers have ended and how; joins the training when it
    has begun.
    """
    training_exits: Mapping[Task, Exit] = {}
    while True:
        incarnations = rendezvous.incarnations()
        rendezvous.check_own_address(incarnations)
        entries = rendezvous.entries()
        if entries is not None:
            rendezvous.compare_settings(entries, incarnations)
            # The trainers of an earlier training, which still ends, are not those of this server.
            is_other = not rendezvous.enter_group(entries, incarnations) and 'membership' in entries
            exits = {} if is_other else rendezvous.exits(entries, incarnations)
            training_exits = {
                trainer: exits[trainer]
                for trainer in rendezvous.cluster.training_tasks
                if trainer in exits
            }
        yield incarnations, training_exits
        time.sleep(_INTERVAL_SECS)
        check_signals()
