"""How one task meets the others: which tasks are up, which have joined the training, and how each ended."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cluster.agreement import Settings, find_difference, settings_of
from cluster.health import Health
from cluster.key_value_store import KeyValueStore, StoreError
from cluster.topology import Cluster, Task, Timeout
from errors import RunError, UsageError

Result = TypeVar('Result')
# The incarnation of each task, a number that is new for each process; None if the task does not answer.
Incarnations = Mapping[Task, int | None]

_SETTINGS = 'settings/'
_ANSWER_SECS = 1.0
_STORE_SECS = 15.0
_POLL_SECS = 0.1
# How long the task that holds the store stays for tasks that still read it.
_STAY_SECS = 10.0
# And for tasks that have not started yet.
_STAY_SECS_FOR_ALL = 30.0


@dataclass(frozen=True)
class Generation:
    """The processes that take steps together until one of them is replaced, and what they agreed on.

    Attributes:
      number: counts the generations of a cluster from 1.
      members: the incarnations of the tasks that must not change, by str(task).
      workers: the incarnations of all workers that began the generation, in order.
      agreed: what the chief derived from the offers of all workers.
    """

    number: int
    members: Mapping[str, int]
    workers: Sequence[int]
    agreed: Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """How a task ended: its exit code, and the reason if that is not 0."""

    exit_code: int
    reason: str


class Rendezvous:
    """One task's view of the cluster and its access to the key-value store.

    Args:
      cluster: all tasks, and the role of this one.
      target: this task's server.
      together: whether the workers take their steps together, so that none can be replaced without the others.
      settings: what this task must have in common with the others, see cluster.agreement.
    """

    def __init__(self, cluster: Cluster, target: str, *, together: bool, settings: Settings) -> None:
        self.cluster = cluster
        self._target = target
        self._settings = settings_of(cluster, settings)
        self._health = Health(cluster.tasks)
        self._workers = cluster.trainers
        self._members = cluster.tasks if together else cluster.servers
        self._stores: dict[Task, KeyValueStore] = {}
        self._store_hosts: dict[Task, Health] = {}

    def incarnations(self) -> Incarnations:
        """The incarnation of every task, None for one that does not answer."""
        return self._health.incarnations(_ANSWER_SECS)

    def entries(self) -> dict[str, Any] | None:
        """All entries of the key-value store; None if the task that holds it does not answer."""
        return self._use_store(KeyValueStore.get_all, self.cluster.store_task)

    def own_entries(self) -> dict[str, Any]:
        """What other tasks put into this server because the task that holds the store did not answer."""
        return self._use_store(KeyValueStore.get_all, self.cluster.own) or {}

    def put(self, key: str, value: Any) -> None:
        """Puts a value into the key-value store, if the task that holds it answers."""
        self._use_store(lambda store: store.put(key, value), self.cluster.store_task)

    def put_large(self, key: str, value: Any) -> None:
        """As put, for a value that entries() does not return."""
        self._use_store(lambda store: store.put_large(key, value), self.cluster.store_task)

    def get_large(self, key: str) -> Any:
        """The value that put_large stored; None if there is none, or the task that holds the store does not answer."""
        return self._use_store(lambda store: store.get_large(key), self.cluster.store_task)

    def _use_store(self, use: Callable[[KeyValueStore], Result], host: Task) -> Result | None:
        # TensorFlow's first connection to a task waits for it without a time limit, so ask first whether it is up.
        if host not in self._store_hosts:
            self._store_hosts[host] = Health([host])
        if self._store_hosts[host].incarnations(_ANSWER_SECS)[host] is None:
            return None
        results: list[Result] = []

        def work() -> None:
            try:
                store = self._stores.get(host) or KeyValueStore(self._target, self.cluster.own, host)
                self._stores[host] = store
                results.append(use(store))
            except StoreError:
                self._stores.pop(host, None)

        # On a thread that can be abandoned if the host is lost at this moment.
        thread = threading.Thread(target=work, name='key-value store', daemon=True)
        thread.start()
        thread.join(_STORE_SECS)
        if thread.is_alive():
            self._stores.pop(host, None)
        return results[0] if results else None

    def join(
        self,
        offer: Mapping[str, Any],
        agree: Callable[[list[Mapping[str, Any]]], Mapping[str, Any]],
        timeout: Timeout,
    ) -> Generation:
        """Waits until all tasks are up and all workers have joined, each a process that has taken no steps yet.

        Args:
          offer: what this worker contributes to the agreement.
          agree: called on the chief with the offers of all workers in order; returns what all agree on.

        Raises:
          UsageError: two tasks have different settings.
          RunError: some tasks did not come in time; it names them.
        """
        deadline = time.monotonic() + timeout.secs
        while True:
            found = self.incarnations()
            entries = self.entries()
            own = found[self.cluster.own]
            if entries is not None and own is not None:
                self.compare_settings(entries, found)
                generation = _generation(entries)
                if generation and self._is_current(generation, found):
                    return generation
                self.put(f'join/{self.cluster.index}', {'incarnation': own, 'offer': dict(offer)})
                offers = self._offers(entries, found)
                if self.cluster.is_chief and None not in found.values() and len(offers) == len(self._workers):
                    self.put(
                        'generation',
                        {
                            'number': generation.number + 1 if generation else 1,
                            'members': {str(task): found[task] for task in self._members},
                            'workers': [found[worker] for worker in self._workers],
                            'agreed': dict(agree(list(offers.values()))),
                        },
                    )
                    continue
            if time.monotonic() > deadline:
                raise RunError(timeout.message(self._missing(found, entries or {})))
            time.sleep(_POLL_SECS)

    def compare_settings(self, entries: Mapping[str, Any], found: Incarnations) -> None:
        """Tells the other tasks what this one must have in common with them, and compares it.

        Args:
          entries, found: the entries of the store, and the tasks that are up. In the store is also what tasks that were
            replaced, or that only some others know, have told.

        Raises:
          UsageError: two tasks differ.
        """
        key, own = f'{_SETTINGS}{self.cluster.own}', found[self.cluster.own]
        mine = {'incarnation': own, 'settings': self._settings}
        if entries.get(key) != mine:
            self.put(key, mine)
        told = {name.removeprefix(_SETTINGS): value for name, value in entries.items() if name.startswith(_SETTINGS)}
        replaced = {
            str(task)
            for task, incarnation in found.items()
            if incarnation is not None and told.get(str(task), mine)['incarnation'] != incarnation
        }
        settings = {name: value['settings'] for name, value in told.items() if name not in replaced}
        if difference := find_difference(settings | {str(self.cluster.own): self._settings}):
            raise UsageError(difference)

    def _is_current(self, generation: Generation, found: Incarnations) -> bool:
        """Whether the members of a generation are the processes that are up now."""
        return all(generation.members.get(str(task)) == found[task] for task in self._members)

    def _offers(self, entries: Mapping[str, Any], found: Incarnations) -> dict[Task, Mapping[str, Any]]:
        """The offers of the workers that are up, have joined and took no part in the last generation.

        A worker that still takes steps of the last generation leaves it when it detects that a task was replaced, and
        then joins as a new process.
        """
        generation = _generation(entries)
        old = generation.workers if generation else ()
        joined = {worker: entries.get(f'join/{worker.index}') for worker in self._workers}
        return {
            worker: each['offer']
            for worker, each in joined.items()
            if each and each['incarnation'] == found[worker] and each['incarnation'] not in old
        }

    def _missing(self, found: Incarnations, entries: Mapping[str, Any]) -> str:
        silent = [str(task) for task, incarnation in found.items() if incarnation is None]
        if silent:
            return f'{", ".join(silent)} did not answer'
        offers = self._offers(entries, found)
        missing = [str(worker) for worker in self._workers if worker not in offers]
        return f'{", ".join(missing or map(str, self._workers))} answered, but did not join the training'

    def end(self, exit_code: int, reason: str = '') -> None:
        """Records that this task ends, and how; in every server if the task that holds the store is gone."""
        found = self.incarnations()
        end = {'incarnation': found[self.cluster.own], 'exit_code': exit_code, 'reason': reason}
        hosts = [self.cluster.store_task]
        if found[self.cluster.store_task] is None:
            hosts = [server for server in self.cluster.servers if found[server] is not None]
        for host in hosts:
            self._use_store(lambda store: store.put(_end_key(self.cluster.own), end), host)

    def end_of(self, task: Task, incarnation: int | None) -> End | None:
        """How a task ended whose process now has this incarnation; None if it has not recorded its end."""
        return self.ends(self.entries() or {}, {**dict.fromkeys(self.cluster.tasks), task: incarnation}).get(task)

    def ends(self, entries: Mapping[str, Any], found: Incarnations) -> dict[Task, End]:
        """The tasks that have ended. A task that was started again since then has not."""
        ends = {}
        for task in self.cluster.tasks:
            end = entries.get(_end_key(task))
            if end and found[task] in (None, end['incarnation']):
                ends[task] = End(end['exit_code'], end['reason'])
        return ends

    def stay_for_others(self, *, all_will_end: bool = False) -> None:
        """If this task holds the store: waits until the others have ended, since they may still read it.

        Args:
          all_will_end: whether tasks that are not up yet have to learn from the store that the cluster cannot start.
        """
        if self.cluster.own != self.cluster.store_task:
            return
        deadline = time.monotonic() + (_STAY_SECS_FOR_ALL if all_will_end else _STAY_SECS)
        while time.monotonic() < deadline:
            found, entries = self.incarnations(), self.entries() or {}
            ends = self.ends(entries, found)
            if all(
                task in ends or (incarnation is None and not all_will_end)
                for task, incarnation in found.items()
                if task != self.cluster.own
            ):
                return
            time.sleep(_POLL_SECS)


def _generation(entries: Mapping[str, Any]) -> Generation | None:
    stored = entries.get('generation')
    return Generation(**stored) if stored else None


def _end_key(task: Task) -> str:
    return f'end/{task.job}/{task.index}'
