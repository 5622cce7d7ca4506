"""Runs a server of a cluster, which answers until the trainers have ended."""

import math
import time
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from cluster.agreement import Settings
from cluster.failure_detector import failure_of_end, fault_of
from cluster.rendezvous import RETURN_SECS, End, Rendezvous, Timeout
from cluster.server import start_server
from cluster.signals import Stop
from cluster.topology import Cluster, Task
from errors import BenchmarkError, RunError, UsageError

_INTERVAL_SECS = 0.25
# A task that has not answered for this long is gone, not only slow.
_GONE_SECS = 3.0
# How long a server stays after a signal, since trainers may have received it too and save their state.
_STAY_SECS = 15.0


# Nine arguments, each an independent fact of the run or a way to reach its user. One caller passes them by name.
def run_server(
    cluster: Cluster,
    config: tf.ConfigProto,
    *,
    settings: Settings,
    together: bool,
    connect: Timeout,
    peer: Timeout,
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
      peer: how long to wait for a lost trainer.
      linger_secs: how long to stay after all trainers have ended, in seconds.
      warn: prints a warning.
      show: shows a line about the trainers that have not come yet.

    Raises:
      UsageError: two tasks have different settings, or another process has the address of this one.
      RunError: a trainer never came, was lost for good, or ended with an error.
    """
    start_server(cluster, config)
    rendezvous = Rendezvous(cluster, together=together, settings=settings, show=show)

    def finish(exit_code: int, signal_name: str) -> None:
        _await_trainers(rendezvous, _STAY_SECS)
        rendezvous.end(exit_code, f'stopped by {signal_name}')
        # The sessions of trainers close sooner while this server answers.
        _await_trainers(rendezvous, _GONE_SECS)
        rendezvous.stay_for_others()
        warn(f'stopped by {signal_name}')

    stop = Stop(finish)

    def end_if_requested() -> None:
        if stop.is_requested():
            stop.await_end()

    with stop.listening():
        try:
            serve(rendezvous, connect, peer, linger_secs, warn, end_if_requested, together=together)
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
    return [task for task in rendezvous.cluster.trainers if found[task] and task not in ends]


def serve(
    rendezvous: Rendezvous,
    connect: Timeout,
    peer: Timeout,
    linger_secs: float,
    warn: Callable[[str], None],
    end_if_requested: Callable[[], None],
    *,
    together: bool,
) -> None:
    """Returns when every trainer has ended well.

    The other trainers handle the loss of a trainer; the server gives up only when none of them is left.

    Args (the others are those of run_server):
      end_if_requested: called again and again; does not return after a signal.
      together: whether the trainers need each other. If not, the others go on without a lost one.

    Raises:
      RunError: a trainer never came, was lost for good, or ended with an error.
    """
    trainers = rendezvous.cluster.trainers
    limits = dict.fromkeys(trainers, connect)
    began = time.monotonic()
    last_answer = dict.fromkeys(trainers, began)
    ended: dict[Task, End] = {}
    given_up: list[Task] = []
    while len(ended.keys() | set(given_up)) < len(trainers):
        found = rendezvous.incarnations()
        rendezvous.check_own_address(found)
        entries = rendezvous.entries()
        if entries is None:
            ends = ended | rendezvous.ends(rendezvous.own_entries(), found)
        else:
            rendezvous.compare_settings(entries, found)
            ends = rendezvous.ends(entries, found)
        ended = {trainer: ends[trainer] for trainer in trainers if trainer in ends}
        now = time.monotonic()
        for trainer in trainers:
            if found[trainer] is not None:
                limits[trainer], last_answer[trainer] = peer, now
        # Trainers end well only when all steps are taken, so nothing is left for a lost trainer to do.
        is_over = any(end.exit_code == 0 for end in ended.values())
        given_up = [
            trainer
            for trainer in trainers
            if trainer not in ended
            and now - last_answer[trainer] > min(limits[trainer].secs, RETURN_SECS if is_over else math.inf)
        ]
        rendezvous.show_missing(
            [task for task in trainers if limits[task] is connect and task not in given_up], now - began
        )
        time.sleep(_INTERVAL_SECS)
        end_if_requested()
    _raise_failure(ended)
    for trainer in given_up:
        never_came = limits[trainer] is connect
        if never_came or (together and not is_over):
            raise RunError(limits[trainer].message(f'{trainer} did not {"come" if never_came else "come back"}'))
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
