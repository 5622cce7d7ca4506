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

from tf_cnn.cluster.server import KeyValueStore, LivenessProbe
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
SharedSettings = Mapping[str, Any]
# What a process brings from an earlier training: the step of its variables ('step'), and its last
# step ('end').
ResumePoint = Mapping[str, int | None]
NO_RESUME_POINT: ResumePoint = {'step': None, 'end': None}
# The incarnation of each task, a number that is new for each process; None if the task does not
# answer.
Incarnations = Mapping[Task, int | None]

_MOST_RESTARTS = 2**20
_SETTINGS = 'settings/'
# In the name of a setting that is the hash of a file, and how many digits of the hash are shown.
_FILE_SEPARATOR, _HASH_DIGITS = ' of --', 12
_STORE_SECS = 15.0
_POLL_SECS = 0.1
# After how many seconds a task reports again for which tasks it waits.
_FIRST_LINE_SECS = 10.0
# How long the task with the store stays for tasks that still read it.
_STAY_SECS = 10.0
# How long the task with the store stays for tasks that have not started yet.
_STAY_SECS_FOR_ALL = 30.0


@dataclass(frozen=True)
class TrainingGroup:
    """The processes that began a training.

    members are the incarnations, by str(task), of the tasks without which it cannot go on; workers
    are those of all workers, in order. agreed has the latest of what the workers offered.
    """

    required_incarnations: Mapping[str, int]
    worker_incarnations: Sequence[int]
    resume_point: ResumePoint


@dataclass(frozen=True)
class Exit:
    """How a task ended: its exit code, and the reason if the code is not 0."""

    exit_code: int
    reason: str


class ForeignTaskError(UsageError):
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
        is_synchronous: bool,
        settings: SharedSettings,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.cluster = cluster
        self.is_synchronous = is_synchronous
        self._report = report
        self._next_report_secs = 0.0
        self._settings = shared_settings(cluster, settings)
        self.liveness = LivenessProbe()
        # The server of this process, wherever the address of its task leads.
        port = split_host_port(cluster.own_task.host)[1]
        self._own_server = replace(cluster.own_task, host=join_host_port(LOOPBACK, port))
        self._own_incarnation: int | None = None
        # Those without which none can go on.
        self._required_tasks = cluster.tasks if is_synchronous else cluster.servers
        self._store: KeyValueStore | None = None
        self.group: TrainingGroup | None = None
        self.restart = 0
        # Whether the servers, or the address of this task, belong to others: then this task records
        # nothing there.
        self._is_foreign = False

    def incarnations(self) -> Incarnations:
        return self.liveness.incarnations(self.cluster.tasks)

    def check_own_address(self, incarnations: Incarnations) -> None:
        """Raises ForeignTaskError if another process answers at the address of this task."""
        task = self.cluster.own_task
        if self._own_incarnation is None:
            self._own_incarnation = self.liveness.incarnations([self._own_server])[self._own_server]
        if (
            None in (incarnations[task], self._own_incarnation)
            or incarnations[task] == self._own_incarnation
        ):
            return
        self._is_foreign = True
        raise ForeignTaskError(
            f"{task.job} {task.index}'s address {task.host} is another process; this host is not "
            f'{split_host_port(task.host)[0]}, or {task.job} {task.index} was started twice; check '
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
        incarnation = self.liveness.incarnations([host], patient=patient)[host]
        # A new process has the store of another training.
        if incarnation is None or (
            self.group
            and incarnation != self.group.required_incarnations.get(str(host), incarnation)
        ):
            return None
        results: list[Result] = []

        def run_method() -> None:
            try:
                store = self._store = self._store or KeyValueStore(host)
                results.append(method(store, *arguments))
            except tf.errors.OpError:
                self._store = None

        # On a thread, which can be abandoned if the host is lost at this moment.
        thread = threading.Thread(target=run_method, name='key-value store', daemon=True)
        thread.start()
        thread.join(_STORE_SECS)
        if thread.is_alive():
            self._store = None
        return results[0] if results else None

    def join(self, resume_point: ResumePoint, timeout: Timeout) -> TrainingGroup:
        """Waits until all tasks are up and all workers have joined.

        A process that comes while those of an earlier training still end waits for the others' new
        processes. Raises ForeignTaskError if the addresses belong to other processes, UsageError if
        two tasks have different settings, and RunError if some tasks do not come in time.
        """
        began = time.monotonic()
        deadline = began + timeout.secs
        while True:
            SIGNALS.check()
            incarnations = self.incarnations()
            self.check_own_address(incarnations)
            entries = self.entries()
            own_incarnation = incarnations[self.cluster.own_task]
            if entries is not None and own_incarnation is not None:
                group = _stored_group(entries)
                self.compare_settings(entries, incarnations)
                # If an earlier process of this task took all steps, this one belongs to the next
                # training.
                last_exit = entries.get(_exit_key(self.cluster.own_task))
                if not (last_exit and last_exit['exit_code'] == 0) and self.enter_group(
                    entries, incarnations
                ):
                    assert group
                    self.restart = (
                        0
                        if own_incarnation in group.worker_incarnations
                        else own_incarnation % _MOST_RESTARTS + 1
                    )
                    return group
                if group is None:
                    self.put(
                        f'join/{self.cluster.index}',
                        {'incarnation': own_incarnation, 'offer': dict(resume_point)},
                    )
                resume_points = self._resume_points(entries, incarnations)
                if (
                    self.cluster.is_chief
                    and group is None
                    and self._are_ready(resume_points, entries, incarnations)
                ):
                    group = TrainingGroup(
                        required_incarnations={
                            str(task): incarnations[task] or 0 for task in self._required_tasks
                        },
                        worker_incarnations=[
                            incarnations[worker] or 0 for worker in self.cluster.training_tasks
                        ],
                        resume_point={
                            name: _latest(each[name] for each in resume_points.values())
                            for name in NO_RESUME_POINT
                        },
                    )
                    self.put('membership', asdict(group))
                    continue
            resume_points = self._resume_points(entries or {}, incarnations)
            # Those that do not answer, else those that have not joined.
            missing = [task for task, incarnation in incarnations.items() if incarnation is None]
            missing = missing or [
                worker for worker in self.cluster.training_tasks if worker not in resume_points
            ]
            if time.monotonic() > deadline:
                missing_names = ', '.join(map(str, missing or self.cluster.training_tasks))
                raise RunError(
                    timeout.message(f'{missing_names} did not answer and join the training')
                )
            self.report_missing(missing, time.monotonic() - began)
            time.sleep(_POLL_SECS)

    def report_missing(self, missing: Sequence[Task], secs: float) -> None:
        """Shows which tasks this one has been waiting for, at once and then at growing
        intervals.
        """
        own_task = self.cluster.own_task
        other_tasks = [task for task in missing if task != own_task]
        if secs < self._next_report_secs or not other_tasks:
            return
        self._report(
            f'{own_task.job} {own_task.index}, waiting for {name_tasks(other_tasks)} ({secs:.0f} s)'
        )
        self._next_report_secs = max(_FIRST_LINE_SECS, 2 * self._next_report_secs)

    def enter_group(self, entries: Mapping[str, Any], incarnations: Incarnations) -> bool:
        """Takes part in the training in the store, if this process belongs to it, and returns
        whether it does.

        A process belongs to the training that it has begun. An asynchronous worker belongs to one
        of the same servers.
        """
        group, task = _stored_group(entries), self.cluster.own_task
        if group is None:
            return False
        has_begun = incarnations[task] in (
            group.required_incarnations.get(str(task)),
            *group.worker_incarnations,
        )
        is_late = task not in self._required_tasks and all(
            group.required_incarnations.get(str(member)) == incarnations[member]
            for member in self._required_tasks
        )
        if has_begun or is_late:
            self.group = group
        return self.group is not None

    def _are_ready(
        self,
        resume_points: Mapping[Task, Any],
        entries: Mapping[str, Any],
        incarnations: Incarnations,
    ) -> bool:
        """Whether all workers have joined, and each task is a new process that has told its
        settings.
        """
        published_incarnations = {
            task: entries.get(f'{_SETTINGS}{task}', {}).get('incarnation')
            for task in self.cluster.tasks
        }
        return (
            None not in incarnations.values()
            and published_incarnations == dict(incarnations)
            and len(resume_points) == len(self.cluster.training_tasks)
        )

    def compare_settings(self, entries: Mapping[str, Any], incarnations: Incarnations) -> None:
        """Publishes the settings that this task must share with the others; raises UsageError if
        another has others.

        The entries may contain settings of tasks that were replaced, or that are not in this task's
        cluster. A cluster that is running already goes on: it raises ForeignTaskError, and
        publishes nothing.
        """
        key, own_incarnation = (
            f'{_SETTINGS}{self.cluster.own_task}',
            incarnations[self.cluster.own_task],
        )
        own_entry = {'incarnation': own_incarnation, 'settings': self._settings}
        published = {
            name.removeprefix(_SETTINGS): value
            for name, value in entries.items()
            if name.startswith(_SETTINGS)
        }
        is_running = _stored_group(entries) is not None
        if is_running:
            published = {
                str(task): published[str(task)]
                for task in self.cluster.tasks
                if str(task) in published
            }
        replaced = {
            str(task)
            for task, incarnation in incarnations.items()
            if incarnation is not None
            and published.get(str(task), own_entry)['incarnation'] != incarnation
        }
        settings = {
            name: value['settings'] for name, value in published.items() if name not in replaced
        }
        difference = find_difference(settings | {str(self.cluster.own_task): self._settings})
        self._is_foreign |= bool(difference) and is_running and self.group is None
        if difference and self._is_foreign:
            raise ForeignTaskError(difference)
        if entries.get(key) != own_entry:
            self.put(key, own_entry)
        if difference:
            raise UsageError(difference)

    def _resume_points(
        self, entries: Mapping[str, Any], incarnations: Incarnations
    ) -> dict[Task, Mapping[str, Any]]:
        join_entries = {
            worker: entries.get(f'join/{worker.index}') for worker in self.cluster.training_tasks
        }
        return {
            worker: entry['offer']
            for worker, entry in join_entries.items()
            if entry and entry['incarnation'] == incarnations[worker]
        }

    def record_exit(self, exit_code: int, reason: str = '') -> None:
        """Records how this task ends."""
        incarnations = self.incarnations()
        with contextlib.suppress(ForeignTaskError):
            self.check_own_address(incarnations)
        if self._is_foreign:
            return
        entry = {
            'incarnation': incarnations[self.cluster.own_task],
            'exit_code': exit_code,
            'reason': reason,
        }
        self.put(_exit_key(self.cluster.own_task), entry)

    def exits(self, entries: Mapping[str, Any], incarnations: Incarnations) -> dict[Task, Exit]:
        """Returns the tasks that have ended, and how; not those that were restarted since."""
        exits = {}
        for task in self.cluster.tasks:
            entry = entries.get(_exit_key(task))
            if entry and incarnations[task] in (None, entry['incarnation']):
                exits[task] = Exit(entry['exit_code'], entry['reason'])
        return exits

    def await_exits(
        self, tasks: Sequence[Task], secs: float, *, all_will_end: bool = False
    ) -> None:
        """Waits at most this long, and not after a further signal, until these tasks have ended.

        all_will_end: also those that are not up yet.
        """
        deadline, num_signals = time.monotonic() + secs, SIGNALS.count
        while time.monotonic() < deadline and SIGNALS.count == num_signals:
            incarnations, entries = self.incarnations(), self.entries() or {}
            exits = self.exits(entries, incarnations)
            if all(
                task in exits
                or not (all_will_end or self._is_participant(task, incarnations[task]))
                for task in tasks
            ):
                return
            time.sleep(_POLL_SECS)

    def _is_participant(self, task: Task, incarnation: int | None) -> bool:
        """Whether a process takes part in the training of this process, as far as that is known."""
        expected = (
            self.group.required_incarnations.get(str(task), incarnation)
            if self.group
            else incarnation
        )
        return incarnation is not None and incarnation == expected

    def wait_for_other_tasks(self, *, all_will_end: bool = False) -> None:
        """Waits, if this task has the store, until the others have ended, since they may still read
        it.

        all_will_end: tasks that are not up yet must learn from the store that the cluster cannot
          start.
        """
        if SIGNALS.received and not self.group:
            # Nothing has begun, so nobody reads anything.
            return
        if self.cluster.own_task == self.cluster.store_task and not self._is_foreign:
            other_tasks = [task for task in self.cluster.tasks if task != self.cluster.own_task]
            self.await_exits(
                other_tasks,
                _STAY_SECS_FOR_ALL if all_will_end else _STAY_SECS,
                all_will_end=all_will_end,
            )


def _latest(steps: Iterable[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def _stored_group(entries: Mapping[str, Any]) -> TrainingGroup | None:
    fields = entries.get('membership')
    return TrainingGroup(**fields) if fields else None


def _exit_key(task: Task) -> str:
    return f'end/{task.job}/{task.index}'


# ---- the settings that all tasks of a cluster must share -----------------------------------------


def shared_settings(cluster: Cluster, flags: SharedSettings) -> SharedSettings:
    """Returns the settings that a task must share with the others, by flag: these flags, and the
    hosts.
    """
    hosts = {
        'ps': cluster.ps_hosts,
        'worker': cluster.worker_hosts,
        'controller': cluster.controller_hosts,
    }
    return {
        **{HOSTS_FLAGS[job]: ','.join(job_hosts) or None for job, job_hosts in hosts.items()},
        **flags,
    }


def find_difference(settings: Mapping[str, SharedSettings]) -> str | None:
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
                values_text = (
                    f'{_format_setting(name, expected)} in {other}, and '
                    f'{_format_setting(name, value)} in {task}'
                )
                advice = f'write the same --{name} for all'
                if ' ' in name:
                    advice = f'give each the same {"file" if _FILE_SEPARATOR in name else "data"}'
                return f'{values_text}: all processes of a cluster need the same; {advice}'
    return None


def _format_setting(name: str, value: Any) -> str:
    if _FILE_SEPARATOR in name:
        kind, flag = name.split(_FILE_SEPARATOR)
        return (
            f'no --{flag}' if value is None else f'--{flag} with {kind} {value[:_HASH_DIGITS]}...'
        )
    if ' ' in name:
        return f'--data_dir with {value} {name}'
    return f'no --{name}' if value is None else format_flag(name, value)
