"""Runs a server of a cluster until the training tasks have exited."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import (
    INTERVAL_SECS,
    FailureDetector,
    failure_of_exit,
    find_lost_peer,
    loss_of,
)
from tf_cnn.cluster.rendezvous import (
    Exits,
    Incarnations,
    Rendezvous,
    SharedSettings,
    connect_timeout,
)
from tf_cnn.cluster.server import start_server
from tf_cnn.cluster.topology import Cluster, Task
from tf_cnn.system.errors import BenchmarkError, UsageError
from tf_cnn.system.signals import SIGNALS, Stopped

# How often a server looks for the tasks before the training, and for a signal after it.
_WAIT_SECS = 0.25
# After this long without an answer a task is lost, not just slow.
_LOST_SECS = 3.0
# How long a server stays before its exit for the chief, which may save the variables.
_STAY_SECS = 10.0


# As those of ClusterWorker: what this module does not read from flags.
def run_server(
    cluster: Cluster,
    config: tf.ConfigProto,
    *,
    settings: SharedSettings,
    is_synchronous: bool,
    connect_secs: float,
    linger_secs: float,
    report: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Runs this process as a server until the training tasks have exited.

    Args:
      is_synchronous: whether no training task can go on without the others.
      connect_secs: limits the wait for the training tasks at the start.
      linger_secs: how long to stay after all training tasks have exited.
      report, warn: receive lines for the user.

    Raises:
      RunError: a training task failed, or a required task is lost.
    """
    start_server(cluster, config)
    rendezvous = Rendezvous(
        cluster, is_synchronous=is_synchronous, settings=settings, report=report
    )

    def finish(stop: Stopped) -> None:
        # When a task is lost, launchers stop all others by a signal.
        lost_peer = find_lost_peer(rendezvous)
        reason = f'{lost_peer}; {stop.reason}' if lost_peer else stop.reason
        rendezvous.record_exit(stop.exit_code, reason)
        if rendezvous.group:
            # The chief may save the variables of this server.
            rendezvous.await_exits(cluster.training_tasks, _STAY_SECS)
            rendezvous.wait_for_other_tasks()
        warn(reason)

    with SIGNALS.storing(finish, may_exit=True):
        try:
            serve(rendezvous, connect_secs, linger_secs, warn)
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
    connect_secs: float,
    linger_secs: float,
    warn: Callable[[str], None],
    check_signals: Callable[[], None] = SIGNALS.check,
) -> None:
    """Returns when every training task has succeeded. Arguments and errors are as in run_server.

    check_signals is called regularly; it raises Stopped after a signal.
    """
    training_tasks, polls = rendezvous.cluster.training_tasks, _poll(rendezvous, check_signals)
    started_at = time.monotonic()
    for incarnations, _, exits in polls:
        # All may have exited before this server saw the training begin.
        if rendezvous.group or len(exits) == len(training_tasks):
            break
        missing = [
            task for task in training_tasks if incarnations[task] is None and task not in exits
        ]
        secs = time.monotonic() - started_at
        if missing and secs > connect_secs:
            raise connect_timeout(f'{missing[0]} did not start', connect_secs)
        rendezvous.report_missing(missing, secs)
    lost_tasks: list[Task] = []
    if rendezvous.group and len(exits) < len(training_tasks):
        detector = FailureDetector(rendezvous)
        last_answer = dict.fromkeys(training_tasks, time.monotonic())
        for incarnations, entries, exits in polls:
            if failure := detector.check(incarnations, entries):
                # The chief may still read the variables of this server to save them.
                rendezvous.await_exits(training_tasks, _STAY_SECS)
                raise failure
            now = time.monotonic()
            last_answer |= {task: now for task in training_tasks if incarnations[task] is not None}
            # An asynchronous worker may be lost and restarted while others train.
            lost_tasks = [
                task
                for task in training_tasks
                if task not in exits and now - last_answer[task] > _LOST_SECS
            ]
            if len(exits) + len(lost_tasks) == len(training_tasks):
                break
    for task, task_exit in exits.items():
        if failure := failure_of_exit(task, task_exit):
            raise failure
    for task in lost_tasks:
        if not exits:
            raise loss_of(task, rendezvous)
        warn(f'{loss_of(task, rendezvous)}; the others took all steps')
    until = time.monotonic() + linger_secs
    while time.monotonic() < until:
        check_signals()
        time.sleep(_WAIT_SECS)


def _poll(
    rendezvous: Rendezvous, check_signals: Callable[[], None]
) -> Iterator[tuple[Incarnations, Mapping[str, Any] | None, Exits]]:
    """Yields (incarnations, entries of the store, exits of training tasks); joins the training when
    it has begun.
    """
    training_exits: Exits = {}
    while True:
        incarnations = rendezvous.incarnations()
        rendezvous.check_own_address(incarnations)
        entries = rendezvous.entries()
        if entries is not None:
            rendezvous.compare_settings(entries, incarnations)
            # Ignore the exits of an earlier training that is still ending.
            is_other = not rendezvous.enter_group(entries, incarnations) and 'membership' in entries
            exits = {} if is_other else rendezvous.exits(entries, incarnations)
            training_exits = {
                task: exits[task] for task in rendezvous.cluster.training_tasks if task in exits
            }
        yield incarnations, entries, training_exits
        time.sleep(INTERVAL_SECS if rendezvous.group else _WAIT_SECS)
        check_signals()
