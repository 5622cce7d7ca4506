"""How one task finds the others: which tasks are up, which have joined the training, and how each
ended.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.server import Health, KeyValueStore
from tf_cnn.cluster.topology import (
    HOSTS_FLAGS,
    LOOPBACK,
    Cluster,
    Task,
    Timeout,
    join_host_port,
    name_tasks,
    split_host_port,
)
from tf_cnn.system.errors import RunError, UsageError, format_flag
from tf_cnn.system.signals import SIGNALS

Result = TypeVar('Result')
Settings = Mapping[str, Any]
# What a process brings from an earlier training: the step of its variables ('step'), and its last
# step ('end').
Offer = Mapping[str, int | None]
NOTHING: Offer = {'step': None, 'end': None}
# The incarnation of each task, a number that is new for each process; None if the task does not
# answer.
Incarnations = Mapping[Task, int | None]

_MOST_RESTARTS = 2**20
_SETTINGS = 'settings/'
# In the name of a setting that is the hash of a file, and how many digits of the hash are shown.
_OF_FILE, _DIGITS = ' of --', 12
_STORE_SECS = 15.0
_POLL_SECS = 0.1
# After how many seconds a task reports again for which tasks it waits.
_FIRST_LINE_SECS = 10.0
# How long the task with the store stays for tasks that still read it.
_STAY_SECS = 10.0
# How long the task with the store stays for tasks that have not started yet.
_STAY_SECS_FOR_ALL = 30.0


@dataclass(frozen=True)
class Membership:
    """The processes that began a training.

    members are the incarnations, by str(task), of the tasks without which it cannot go on; workers
    are those of all workers, in order. agreed has the latest of what the workers offered.
    """

    members: Mapping[str, int]
    workers: Sequence[int]
    agreed: Offer


@dataclass(frozen=True)
class End:
    """How a task ended: its exit code, and the reason if the code is not 0."""

    exit_code: int
    reason: str


class StrangerError(UsageError):
    """The process does not belong to the cluster that runs at its addresses, so it leaves
    everything as it is.
    """


class Rendezvous:
    """One task's view of the cluster and its access to the key-value store. together, restart: as
    in Worker.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        together: bool,
        settings: Settings,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.cluster = cluster
        self.together = together
        self._show = show
        self._next_line_secs = 0.0
        self._settings = settings_of(cluster, settings)
        self.health = Health()
        # The server of this process, wherever the address of its task leads.
        port = split_host_port(cluster.own.host)[1]
        self._own_server = replace(cluster.own, host=join_host_port(LOOPBACK, port))
        self._own_incarnation: int | None = None
        # Those without which none can go on.
        self._members = cluster.tasks if together else cluster.servers
        self._store: KeyValueStore | None = None
        self.membership: Membership | None = None
        self.restart = 0
        # Whether the servers, or the address of this task, belong to others: then this task records
        # nothing there.
        self._is_stranger = False

    def incarnations(self) -> Incarnations:
        return self.health.incarnations(self.cluster.tasks)

    def check_own_address(self, found: Incarnations) -> None:
        """Raises StrangerError if another process answers at the address of this task."""
        own = self.cluster.own
        if self._own_incarnation is None:
            self._own_incarnation = self.health.incarnations([self._own_server])[self._own_server]
        if None in (found[own], self._own_incarnation) or found[own] == self._own_incarnation:
            return
        self._is_stranger = True
        raise StrangerError(
            f"{own.job} {own.index}'s address {own.host} is another process; this host is not "
            f'{split_host_port(own.host)[0]}, or {own.job} {own.index} was started twice; check '
            f'--task_index, or the role in {self.cluster.source}'
        )

    def entries(self, *, patient: bool = True) -> dict[str, Any] | None:
        """Returns all entries of the key-value store; None if the task with the store does not
        answer.

        patient: whether to wait for a task that is slow to answer.
        """
        return self.use_store(KeyValueStore.get_all, patient=patient)

    def put(self, key: str, value: Any) -> None:
        """Puts a value into the key-value store, if the task with the store answers."""
        self.use_store(KeyValueStore.put, key, value)

    def use_store(
        self, method: Callable[..., Result], *arguments: Any, patient: bool = True
    ) -> Result | None:
        """Returns what a method of the key-value store returns; None if the task with the store
        does not answer.
        """
        host = self.cluster.store_task
        # TensorFlow's first connection to a task waits without a time limit, so check first that
        # the task is up.
        found = self.health.incarnations([host], patient=patient)[host]
        # A new process has the store of another training.
        if found is None or (
            self.membership and found != self.membership.members.get(str(host), found)
        ):
            return None
        results: list[Result] = []

        def work() -> None:
            try:
                store = self._store = self._store or KeyValueStore(host)
                results.append(method(store, *arguments))
            except tf.errors.OpError:
                self._store = None

        # On a thread, which can be abandoned if the host is lost at this moment.
        thread = threading.Thread(target=work, name='key-value store', daemon=True)
        thread.start()
        thread.join(_STORE_SECS)
        if thread.is_alive():
            self._store = None
        return results[0] if results else None

    def join(self, offer: Offer, timeout: Timeout) -> Membership:
        """Waits until all tasks are up and all workers have joined.

        A process that comes while those of an earlier training still end waits for the others' new
        processes. Raises StrangerError if the addresses belong to other processes, UsageError if
        two tasks have different settings, and RunError if some tasks do not come in time.
        """
        began = time.monotonic()
        deadline = began + timeout.secs
        while True:
            SIGNALS.ask()
            found = self.incarnations()
            self.check_own_address(found)
            entries = self.entries()
            own = found[self.cluster.own]
            if entries is not None and own is not None:
                membership = _membership(entries)
                self.compare_settings(entries, found)
                # If an earlier process of this task took all steps, this one belongs to the next
                # training.
                before = entries.get(_end_key(self.cluster.own))
                if not (before and before['exit_code'] == 0) and self.enter(entries, found):
                    assert membership
                    self.restart = 0 if own in membership.workers else own % _MOST_RESTARTS + 1
                    return membership
                if membership is None:
                    self.put(
                        f'join/{self.cluster.index}', {'incarnation': own, 'offer': dict(offer)}
                    )
                offers = self._offers(entries, found)
                if (
                    self.cluster.is_chief
                    and membership is None
                    and self._are_ready(offers, entries, found)
                ):
                    membership = Membership(
                        members={str(task): found[task] or 0 for task in self._members},
                        workers=[found[worker] or 0 for worker in self.cluster.trainers],
                        agreed={
                            name: _latest(each[name] for each in offers.values())
                            for name in NOTHING
                        },
                    )
                    self.put('membership', asdict(membership))
                    continue
            offers = self._offers(entries or {}, found)
            # Those that do not answer, else those that have not joined.
            missing = [task for task, incarnation in found.items() if incarnation is None]
            missing = missing or [
                worker for worker in self.cluster.trainers if worker not in offers
            ]
            if time.monotonic() > deadline:
                who = ', '.join(map(str, missing or self.cluster.trainers))
                raise RunError(timeout.message(f'{who} did not answer and join the training'))
            self.show_missing(missing, time.monotonic() - began)
            time.sleep(_POLL_SECS)

    def show_missing(self, missing: Sequence[Task], secs: float) -> None:
        """Shows which tasks this one has been waiting for, at once and then at growing
        intervals.
        """
        own = self.cluster.own
        others = [task for task in missing if task != own]
        if secs < self._next_line_secs or not others:
            return
        self._show(f'{own.job} {own.index}, waiting for {name_tasks(others)} ({secs:.0f} s)')
        self._next_line_secs = max(_FIRST_LINE_SECS, 2 * self._next_line_secs)

    def enter(self, entries: Mapping[str, Any], found: Incarnations) -> bool:
        """Takes part in the training in the store, if this process belongs to it, and returns
        whether it does.

        A process belongs to the training that it has begun. An asynchronous worker belongs to one
        of the same servers.
        """
        membership, task = _membership(entries), self.cluster.own
        if membership is None:
            return False
        has_begun = found[task] in (membership.members.get(str(task)), *membership.workers)
        is_late = task not in self._members and all(
            membership.members.get(str(member)) == found[member] for member in self._members
        )
        if has_begun or is_late:
            self.membership = membership
        return self.membership is not None

    def _are_ready(
        self, offers: Mapping[Task, Any], entries: Mapping[str, Any], found: Incarnations
    ) -> bool:
        """Whether all workers have joined, and each task is a new process that has told its
        settings.
        """
        told = {
            task: entries.get(f'{_SETTINGS}{task}', {}).get('incarnation')
            for task in self.cluster.tasks
        }
        return (
            None not in found.values()
            and told == dict(found)
            and len(offers) == len(self.cluster.trainers)
        )

    def compare_settings(self, entries: Mapping[str, Any], found: Incarnations) -> None:
        """Publishes the settings that this task must share with the others; raises UsageError if
        another has others.

        The entries may contain settings of tasks that were replaced, or that are not in this task's
        cluster. A cluster that is running already goes on: it raises StrangerError, and publishes
        nothing.
        """
        key, own = f'{_SETTINGS}{self.cluster.own}', found[self.cluster.own]
        mine = {'incarnation': own, 'settings': self._settings}
        published = {
            name.removeprefix(_SETTINGS): value
            for name, value in entries.items()
            if name.startswith(_SETTINGS)
        }
        is_running = _membership(entries) is not None
        if is_running:
            published = {
                str(task): published[str(task)]
                for task in self.cluster.tasks
                if str(task) in published
            }
        replaced = {
            str(task)
            for task, incarnation in found.items()
            if incarnation is not None
            and published.get(str(task), mine)['incarnation'] != incarnation
        }
        settings = {
            name: value['settings'] for name, value in published.items() if name not in replaced
        }
        difference = find_difference(settings | {str(self.cluster.own): self._settings})
        self._is_stranger |= bool(difference) and is_running and self.membership is None
        if difference and self._is_stranger:
            raise StrangerError(difference)
        if entries.get(key) != mine:
            self.put(key, mine)
        if difference:
            raise UsageError(difference)

    def _offers(
        self, entries: Mapping[str, Any], found: Incarnations
    ) -> dict[Task, Mapping[str, Any]]:
        joined = {worker: entries.get(f'join/{worker.index}') for worker in self.cluster.trainers}
        return {
            worker: each['offer']
            for worker, each in joined.items()
            if each and each['incarnation'] == found[worker]
        }

    def end(self, exit_code: int, reason: str = '') -> None:
        """Records how this task ends."""
        found = self.incarnations()
        with contextlib.suppress(StrangerError):
            self.check_own_address(found)
        if self._is_stranger:
            return
        end = {'incarnation': found[self.cluster.own], 'exit_code': exit_code, 'reason': reason}
        self.put(_end_key(self.cluster.own), end)

    def ends(self, entries: Mapping[str, Any], found: Incarnations) -> dict[Task, End]:
        """Returns the tasks that have ended, and how; not those that were restarted since."""
        ends = {}
        for task in self.cluster.tasks:
            end = entries.get(_end_key(task))
            if end and found[task] in (None, end['incarnation']):
                ends[task] = End(end['exit_code'], end['reason'])
        return ends

    def await_ends(self, tasks: Sequence[Task], secs: float, *, all_will_end: bool = False) -> None:
        """Waits at most this long, and not after a further signal, until these tasks have ended.

        all_will_end: also those that are not up yet.
        """
        deadline, num_signals = time.monotonic() + secs, SIGNALS.count
        while time.monotonic() < deadline and SIGNALS.count == num_signals:
            found, entries = self.incarnations(), self.entries() or {}
            ends = self.ends(entries, found)
            if all(
                task in ends or not (all_will_end or self._is_member(task, found[task]))
                for task in tasks
            ):
                return
            time.sleep(_POLL_SECS)

    def _is_member(self, task: Task, incarnation: int | None) -> bool:
        """Whether a process takes part in the training of this process, as far as that is known."""
        expected = (
            self.membership.members.get(str(task), incarnation) if self.membership else incarnation
        )
        return incarnation is not None and incarnation == expected

    def stay_for_others(self, *, all_will_end: bool = False) -> None:
        """Waits, if this task has the store, until the others have ended, since they may still read
        it.

        all_will_end: tasks that are not up yet must learn from the store that the cluster cannot
          start.
        """
        if SIGNALS.received and not self.membership:
            # Nothing has begun, so nobody reads anything.
            return
        if self.cluster.own == self.cluster.store_task and not self._is_stranger:
            others = [task for task in self.cluster.tasks if task != self.cluster.own]
            self.await_ends(
                others,
                _STAY_SECS_FOR_ALL if all_will_end else _STAY_SECS,
                all_will_end=all_will_end,
            )


def _latest(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def _membership(entries: Mapping[str, Any]) -> Membership | None:
    stored = entries.get('membership')
    return Membership(**stored) if stored else None


def _end_key(task: Task) -> str:
    return f'end/{task.job}/{task.index}'


# ---- the settings that all tasks of a cluster must share -----------------------------------------


def settings_of(cluster: Cluster, flags: Settings) -> Settings:
    """Returns the settings that a task must share with the others, by flag: these flags, and the
    hosts.
    """
    hosts = {
        'ps': cluster.ps_hosts,
        'worker': cluster.worker_hosts,
        'controller': cluster.controller_hosts,
    }
    return {**{HOSTS_FLAGS[job]: ','.join(named) or None for job, named in hosts.items()}, **flags}


def find_difference(settings: Mapping[str, Settings]) -> str | None:
    """Returns one line about the first setting that two tasks both have and that differs; None if
    all agree.

    A name is a flag, or 'SHA-256 of --FLAG' for the file that a flag names, or it says what its
    value counts in --data_dir, such as 'training images'.
    """
    first: dict[str, tuple[str, Any]] = {}
    for task in sorted(settings):
        for name, value in settings[task].items():
            other, expected = first.setdefault(name, (task, value))
            if value != expected:
                both = (
                    f'{_written(name, expected)} in {other}, and {_written(name, value)} in {task}'
                )
                advice = f'write the same --{name} for all'
                if ' ' in name:
                    advice = f'give each the same {"file" if _OF_FILE in name else "data"}'
                return f'{both}: all processes of a cluster need the same; {advice}'
    return None


def _written(name: str, value: Any) -> str:
    if _OF_FILE in name:
        kind, flag = name.split(_OF_FILE)
        return f'no --{flag}' if value is None else f'--{flag} with {kind} {value[:_DIGITS]}...'
    if ' ' in name:
        return f'--data_dir with {value} {name}'
    return f'no --{name}' if value is None else format_flag(name, value)
