"""Runs a server of a cluster, which answers until the trainers have ended."""

import time
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from cluster.agreement import Settings
from cluster.failure_detector import FailureDetector, failure_of_end, failure_of_loss, fault_of
from cluster.rendezvous import End, Rendezvous, Timeout
from cluster.server import start_server
from cluster.signals import Stop
from cluster.topology import Cluster, Task
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
    """Runs this process as a server until the trainers have ended.

    Args:
      cluster: all tasks, and the role of this one.
      config: the settings of the server.
      settings: the settings that this task must share with the others.
      together: whether no trainer can go on without the others.
      connect: how long to wait for the trainers at the start.
      linger_secs: how long to stay after all trainers have ended, in seconds.
      warn: prints a warning.
      show: shows a line about the trainers that have not come yet.

    Raises:
      UsageError: two tasks have different settings, or another process has the address of this one.
      RunError: a trainer never came, or a task was lost or ended with an error.
    """
    start_server(cluster, config)
    rendezvous = Rendezvous(cluster, together=together, settings=settings, show=show)

    def finish(exit_code: int, signal_name: str) -> None:
        rendezvous.end(exit_code, f'stopped by {signal_name}')
        _await_trainers(rendezvous, _STAY_SECS)
        rendezvous.stay_for_others()
        warn(f'stopped by {signal_name}')

    stop = Stop(finish)

    def end_if_requested() -> None:
        if stop.is_requested():
            stop.await_end()

    with stop.listening():
        try:
            serve(rendezvous, connect, linger_secs, warn, end_if_requested, together=together)
        except BenchmarkError as fault:
            rendezvous.end(fault.exit_code, str(fault))
            rendezvous.stay_for_others(all_will_end=isinstance(fault, UsageError))
            raise
        rendezvous.end(0)
        rendezvous.stay_for_others()


def _await_trainers(rendezvous: Rendezvous, secs: float) -> None:
    """Waits until the trainers have ended, at most this long."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline and _remaining(rendezvous):
        time.sleep(_INTERVAL_SECS)


def _remaining(rendezvous: Rendezvous) -> list[Task]:
    """Returns the trainers that are still up."""
    found, entries = rendezvous.incarnations(), rendezvous.entries() or {}
    ends = rendezvous.ends(entries, found)
    return [
        task for task in rendezvous.cluster.trainers if rendezvous.is_member(task, found[task]) and task not in ends
    ]


def serve(
    rendezvous: Rendezvous,
    connect: Timeout,
    linger_secs: float,
    warn: Callable[[str], None],
    end_if_requested: Callable[[], None],
    *,
    together: bool,
) -> None:
    """Returns when every trainer has ended well.

    Args (the others are those of run_server):
      end_if_requested: called again and again; does not return after a signal.
      together: whether the trainers need each other. If not, the others go on without a lost one.

    Raises:
      RunError: a trainer never came, a task without which the others cannot go on was lost, or a trainer ended with an
        error.
    """
    trainers = rendezvous.cluster.trainers
    began = time.monotonic()
    last_answer: dict[Task, float] = {}
    ended: dict[Task, End] = {}
    gone: list[Task] = []
    detector = None
    while len(ended.keys() | set(gone)) < len(trainers):
        found = rendezvous.incarnations()
        rendezvous.check_own_address(found)
        entries = rendezvous.entries()
        if entries is None:
            ends = ended | rendezvous.ends(rendezvous.own_entries(), found)
        else:
            rendezvous.compare_settings(entries, found)
            is_other = rendezvous.has_begun(entries) and not rendezvous.enter(entries, found)
            # The trainers of an earlier training, which still ends, are not those of this server.
            ends = {} if is_other else rendezvous.ends(entries, found)
        if detector is None and rendezvous.membership:
            detector = FailureDetector(rendezvous, rendezvous.membership, warn)
            last_answer = dict.fromkeys(trainers, time.monotonic())
        ended = {trainer: ends[trainer] for trainer in trainers if trainer in ends}
        if detector and (failure := detector.check()):
            # The chief may read the variables from here, to save them.
            _await_trainers(rendezvous, _STAY_SECS)
            raise fault_of(failure)
        now = time.monotonic()
        if detector:
            last_answer |= dict.fromkeys((trainer for trainer in trainers if found[trainer] is not None), now)
        else:
            missing = [trainer for trainer in trainers if found[trainer] is None and trainer not in ended]
            if missing and now - began > connect.secs:
                raise RunError(connect.message(f'{missing[0]} did not come'))
            rendezvous.show_missing(missing, now - began)
        # If trainers do not need each other, a lost one may come back while others train.
        gone = [task for task in last_answer if task not in ended and now - last_answer[task] > _GONE_SECS]
        time.sleep(_INTERVAL_SECS)
        end_if_requested()
    _raise_failure(ended)
    for trainer in gone:
        if not ended:
            raise fault_of(failure_of_loss(trainer))
        warn(f'{trainer} was lost; the others took all steps')
    _linger(linger_secs, end_if_requested)


def _raise_failure(ended: Mapping[Task, End]) -> None:
    """Raises RunError if a trainer ended with an error."""
    for trainer, end in ended.items():
        if failure := failure_of_end(trainer, end):
            raise fault_of(failure)


def _linger(secs: float, end_if_requested: Callable[[], None]) -> None:
    until = time.monotonic() + secs
    while time.monotonic() < until:
        end_if_requested()
        time.sleep(_INTERVAL_SECS)
