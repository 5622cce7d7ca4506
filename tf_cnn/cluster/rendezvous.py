"""One task's view of its cluster: which tasks are up, have joined the training, or have exited."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.server import KeyValueStore, LivenessProbe
from tf_cnn.cluster.topology import (
    HOSTS_FLAGS,
    LOOPBACK,
    Cluster,
    Task,
    join_host_port,
    name_tasks,
    split_host_port,
)
from tf_cnn.system.errors import RunError, UsageError, format_flag
from tf_cnn.system.signals import SIGNALS

Result = TypeVar('Result')
SharedSettings = Mapping[str, Any]
# Where an earlier training of a process stopped: the step of its variables ('step') and the last
# step of the training ('end'); None if there was none.
ResumePoint = Mapping[str, int | None]
NO_RESUME_POINT: ResumePoint = {'step': None, 'end': None}
# The incarnation of each task: a random number, new for each process. None: no answer.
Incarnations = Mapping[Task, int | None]
# The exit code of each task that has exited, and the reason, which is empty for 0.
Exits = Mapping[Task, tuple[int, str]]

_MOST_RESTARTS = 2**20
_SETTINGS = 'settings/'
# The part between 'SHA-256' and the flag in the name of a file's hash, and the digits to print.
_FILE_SEPARATOR, _HASH_DIGITS = ' of --', 12
_STORE_SECS = 15.0
_POLL_SECS = 0.1
# Seconds until the second report of the missing tasks.
_FIRST_LINE_SECS = 10.0
# How long the task with the store waits for tasks that still read it.
_STAY_SECS = 10.0
# How long the task with the store waits for tasks that have not started yet.
_STAY_SECS_FOR_ALL = 30.0


@dataclass(frozen=True)
class TrainingGroup:
    """The processes that began a training.

    Attributes:
      required_incarnations: by str(task), of the tasks that the training cannot go on without.
      worker_incarnations: of all training tasks, in order.
      resume_point: the latest step and the latest end among the resume points of all workers.
    """

    required_incarnations: Mapping[str, int]
    worker_incarnations: Sequence[int]
    resume_point: ResumePoint


class ForeignTaskError(UsageError):
    """Another cluster, or another process, uses the addresses, so this process records nothing."""


class Rendezvous:
    """One task's view of the cluster and its access to the key-value store.

    is_synchronous and restart are documented in Worker.
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
        # The server of this process itself. The address of the task may lead to another host.
        port = split_host_port(cluster.own_task.host)[1]
        self._own_server = replace(cluster.own_task, host=join_host_port(LOOPBACK, port))
        self._own_incarnation: int | None = None
        # The tasks that no other task can go on without.
        self._required_tasks = cluster.tasks if is_synchronous else cluster.servers
        self._store: KeyValueStore | None = None
        self.group: TrainingGroup | None = None
        self.restart = 0
        # Whether the servers or the address of this task belong to another cluster or process. If
        # so, this task must record nothing there.
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
            f"{task.job} {task.index}'s address {task.host} belongs to another process; this host "
            f'is not {split_host_port(task.host)[0]}, or {task.job} {task.index} was started '
            f'twice; check --task_index, or the role in {self.cluster.source}'
        )

    def entries(self, *, patient: bool = True) -> dict[str, Any] | None:
        """Returns all entries of the key-value store; None if its task does not answer.

        patient: whether a task that is slow to answer counts as up.
        """
        return self.use_store(KeyValueStore.get_all, patient=patient)

    def put(self, key: str, value: Any) -> None:
        """Puts a value into the key-value store if its task answers."""
        self.use_store(KeyValueStore.put, key, value)

    def use_store(
        self, method: Callable[..., Result], *arguments: Any, patient: bool = True
    ) -> Result | None:
        """Calls a method of the key-value store; returns None if its task does not answer."""
        host = self.cluster.store_task
        # TensorFlow's first connection to a task waits without a time limit. So first check that
        # the task is up.
        incarnation = self.liveness.incarnations([host], patient=patient)[host]
        # A new process of that task has the store of another training.
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

        # A thread can be abandoned if the host is lost during the call.
        thread = threading.Thread(target=run_method, name='key-value store', daemon=True)
        thread.start()
        thread.join(_STORE_SECS)
        if thread.is_alive():
            self._store = None
        return results[0] if results else None

    # Long, to show the whole meeting of the tasks in order.
    def join(self, resume_point: ResumePoint, timeout_secs: float) -> TrainingGroup:
        """Waits until all tasks are up and all workers have joined.

        While processes of an earlier training are still ending, waits for their successors.

        Raises:
          ForeignTaskError: another cluster, or another process, uses the addresses.
          UsageError: two tasks have different settings.
          RunError: some tasks did not join in time.
        """
        began = time.monotonic()
        deadline = began + timeout_secs
        while True:
            SIGNALS.check()
            incarnations = self.incarnations()
            self.check_own_address(incarnations)
            entries = self.entries()
            own_incarnation = incarnations[self.cluster.own_task]
            if entries is not None and own_incarnation is not None:
                group = _stored_group(entries)
                self.compare_settings(entries, incarnations)
                # If the previous process of this task succeeded, this one starts the next training.
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
                            name: max(
                                (
                                    step
                                    for point in resume_points.values()
                                    if (step := point[name]) is not None
                                ),
                                default=None,
                            )
                            for name in NO_RESUME_POINT
                        },
                    )
                    self.put('membership', asdict(group))
                    continue
            resume_points = self._resume_points(entries or {}, incarnations)
            # Tasks that do not answer; if all answer, the workers that have not joined.
            missing = [task for task, incarnation in incarnations.items() if incarnation is None]
            missing = missing or [
                worker for worker in self.cluster.training_tasks if worker not in resume_points
            ]
            if time.monotonic() > deadline:
                missing_names = ', '.join(map(str, missing or self.cluster.training_tasks))
                raise connect_timeout(
                    f'{missing_names} did not answer and join the training', timeout_secs
                )
            self.report_missing(missing, time.monotonic() - began)
            time.sleep(_POLL_SECS)

    def report_missing(self, missing: Sequence[Task], secs: float) -> None:
        """Reports the tasks that this one waits for, at once and then at growing intervals."""
        own_task = self.cluster.own_task
        other_tasks = [task for task in missing if task != own_task]
        if secs < self._next_report_secs or not other_tasks:
            return
        self._report(
            f'{own_task.job} {own_task.index}, waiting for {name_tasks(other_tasks)} ({secs:.0f} s)'
        )
        self._next_report_secs = max(_FIRST_LINE_SECS, 2 * self._next_report_secs)

    def enter_group(self, entries: Mapping[str, Any], incarnations: Incarnations) -> bool:
        """Joins the training in the store if this process belongs to it; returns whether it does.

        A process belongs to the training that it began. An asynchronous worker also belongs to the
        training of the servers that are up now.
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
        """Whether all workers have joined and each task's process has published its settings."""
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
        """Publishes the shared settings of this task, and compares the settings of all tasks.

        The entries may also contain settings of replaced processes, or of tasks outside this task's
        cluster.

        Raises:
          UsageError: the settings of two tasks differ.
          ForeignTaskError: they differ, and the other cluster already runs. Nothing is published.
        """
        key = f'{_SETTINGS}{self.cluster.own_task}'
        own_incarnation = incarnations[self.cluster.own_task]
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

    def exits(self, entries: Mapping[str, Any], incarnations: Incarnations) -> Exits:
        """Returns the exits of all tasks that have exited and were not restarted since."""
        exits = {}
        for task in self.cluster.tasks:
            entry = entries.get(_exit_key(task))
            if entry and incarnations[task] in (None, entry['incarnation']):
                exits[task] = entry['exit_code'], entry['reason']
        return exits

    def await_exits(
        self, tasks: Sequence[Task], secs: float, *, all_will_end: bool = False
    ) -> None:
        """Waits until these tasks have exited, for at most `secs` and until the next signal.

        all_will_end: whether to wait also for tasks that are not up yet.
        """
        deadline, num_signals = time.monotonic() + secs, SIGNALS.count
        while time.monotonic() < deadline and SIGNALS.count == num_signals:
            incarnations = self.incarnations()
            # Other processes at these addresses take no part in this training.
            required = self.group.required_incarnations if self.group else {}
            remaining = [
                task
                for task in tasks
                if all_will_end
                or (
                    incarnations[task] is not None
                    and incarnations[task] == required.get(str(task), incarnations[task])
                )
            ]
            if not remaining:
                # The task with the store may be ending too, and then a call to it hangs.
                return
            exits = self.exits(self.entries() or {}, incarnations)
            if all(task in exits for task in remaining):
                return
            time.sleep(_POLL_SECS)

    def wait_for_other_tasks(self, *, all_will_end: bool = False) -> None:
        """If this task has the store, waits until the other tasks, which may read it, have exited.

        all_will_end: whether to wait also for tasks that are not up yet, which learn from the store
          that the cluster cannot start.
        """
        if SIGNALS.received and not self.group:
            # The training has not begun, so nobody reads the store.
            return
        if self.cluster.own_task == self.cluster.store_task and not self._is_foreign:
            other_tasks = [task for task in self.cluster.tasks if task != self.cluster.own_task]
            self.await_exits(
                other_tasks,
                _STAY_SECS_FOR_ALL if all_will_end else _STAY_SECS,
                all_will_end=all_will_end,
            )


def connect_timeout(event: str, secs: float) -> RunError:
    """Returns the error for an event such as 'ps 0 (HOST:PORT) did not answer'."""
    return RunError(
        f'{event} within --connect_timeout_secs={secs:g} seconds; see the output there, or use a '
        'longer time'
    )


def _stored_group(entries: Mapping[str, Any]) -> TrainingGroup | None:
    fields = entries.get('membership')
    return TrainingGroup(**fields) if fields else None


def _exit_key(task: Task) -> str:
    return f'end/{task.job}/{task.index}'


# ---- the settings that all tasks of a cluster must share -----------------------------------------


def shared_settings(cluster: Cluster, flags: SharedSettings) -> SharedSettings:
    """Returns the settings that all tasks must share, by flag: these flags and the hosts."""
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
    """Returns one line about the first setting that differs between two tasks, else None.

    Ignores settings that only one task has.

    Args:
      settings: for each task, its settings by name. A name is a flag, 'SHA-256 of --FLAG' for the
        file that a flag names, or what the value counts in --data_dir, such as 'training images'.
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
                advice = f'use the same --{name} for all'
                if ' ' in name:
                    advice = f'give each the same {"file" if _FILE_SEPARATOR in name else "data"}'
                return f'{values_text}: all processes of a cluster need the same value; {advice}'
    return None


def _format_setting(name: str, value: Any) -> str:
    if _FILE_SEPARATOR in name:
        kind, flag = name.split(_FILE_SEPARATOR)
        return (
            f'no --{flag}' if value is None else f'--{flag} with {kind} {value[:_HASH_DIGITS]}...'
        )
    if ' ' in name:
        return 'no --data_dir' if value is None else f'--data_dir with {value} {name}'
    return f'no --{name}' if value is None else format_flag(name, value)
