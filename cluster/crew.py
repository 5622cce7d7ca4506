"""This task among the others: who is there, who has joined the training, and how each ended."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cluster.board import Board, BoardError
from cluster.health import Health
from cluster.members import Cluster, Task
from errors import RunError

Result = TypeVar('Result')

_ASK_SECS = 1.0
_BOARD_SECS = 15.0
_POLL_SECS = 0.1
# How long the keeper of the board stays for tasks that still read it.
_FAREWELL_SECS = 10.0


@dataclass(frozen=True)
class Generation:
    """The processes that take steps together until one of them is replaced, and what they agreed on.

    members are the incarnations of the tasks that must not change, workers those of all that began it; agreed is what
    the chief made of all offers.
    """

    number: int
    members: Mapping[str, int]
    workers: Sequence[int]
    agreed: Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """How a task ended: its exit code, and why if that is not 0."""

    exit_code: int
    reason: str


class Crew:
    """What one task does to meet the others.

    Args:
      cluster: all tasks, and which this is.
      target: this task's server.
      together: whether the workers take their steps together, so that none can be replaced without the others.
    """

    def __init__(self, cluster: Cluster, target: str, *, together: bool) -> None:
        self.cluster = cluster
        self._target = target
        self._health = Health(cluster.tasks)
        self._workers = cluster.trainers
        self._members = cluster.tasks if together else cluster.servers
        self._boards: dict[Task, Board] = {}
        self._keepers: dict[Task, Health] = {}

    def ask(self) -> Mapping[Task, int | None]:
        """The incarnation of every task, None where none answers."""
        return self._health.ask(_ASK_SECS)

    def facts(self) -> dict[str, Any] | None:
        """What is on the board; None if its keeper does not answer."""
        return self._with_board(Board.read, self.cluster.host_task)

    def own_facts(self) -> dict[str, Any]:
        """What was left with this task because the keeper did not answer."""
        return self._with_board(Board.read, self.cluster.own) or {}

    def post(self, name: str, value: Any) -> None:
        """Writes on the board, if its keeper answers."""
        self._with_board(lambda board: board.post(name, value), self.cluster.host_task)

    def _with_board(self, use: Callable[[Board], Result], keeper: Task) -> Result | None:
        # TensorFlow waits without end for a task to which it makes its first connection.
        if keeper not in self._keepers:
            self._keepers[keeper] = Health([keeper])
        if self._keepers[keeper].ask(_ASK_SECS)[keeper] is None:
            return None
        results: list[Result] = []

        def work() -> None:
            try:
                board = self._boards.get(keeper) or Board(self._target, self.cluster.own, keeper)
                self._boards[keeper] = board
                results.append(use(board))
            except BoardError:
                self._boards.pop(keeper, None)

        # On a thread that can be left behind, should the keeper be lost at this moment.
        thread = threading.Thread(target=work, name='board', daemon=True)
        thread.start()
        thread.join(_BOARD_SECS)
        if thread.is_alive():
            self._boards.pop(keeper, None)
        return results[0] if results else None

    def join(
        self,
        offer: Mapping[str, Any],
        agree: Callable[[list[Mapping[str, Any]]], Mapping[str, Any]],
        timeout: 'Timeout',
    ) -> Generation:
        """Waits until all tasks are there and all workers want to take steps, each a process that took none before.

        Args:
          offer: what this worker brings along.
          agree: called on the chief with the offers of all workers in order; its result is what all agree on.

        Raises:
          RunError: tasks were not there in time; it names them.
        """
        deadline = time.monotonic() + timeout.secs
        while True:
            there = self.ask()
            facts = self.facts()
            own = there[self.cluster.own]
            if facts is not None and own is not None:
                generation = _generation(facts)
                if generation and self._is_of(generation, there):
                    return generation
                self.post(f'join/{self.cluster.index}', {'incarnation': own, 'offer': dict(offer)})
                offers = self._offers(facts, there)
                if self.cluster.is_chief and None not in there.values() and len(offers) == len(self._workers):
                    self.post(
                        'generation',
                        {
                            'number': generation.number + 1 if generation else 1,
                            'members': {str(task): there[task] for task in self._members},
                            'workers': [there[worker] for worker in self._workers],
                            'agreed': dict(agree(list(offers.values()))),
                        },
                    )
                    continue
            if time.monotonic() > deadline:
                raise RunError(timeout.tell(self._absent(there, facts or {})))
            time.sleep(_POLL_SECS)

    def _is_of(self, generation: Generation, there: Mapping[Task, int | None]) -> bool:
        """Whether the tasks of a generation are those that are there."""
        return all(generation.members.get(str(task)) == there[task] for task in self._members)

    def _offers(self, facts: Mapping[str, Any], there: Mapping[Task, int | None]) -> dict[Task, Mapping[str, Any]]:
        """What the workers bring along that are there, have joined and took no part in the last generation.

        One that still takes steps of the last one leaves it when it sees that another was replaced, and joins anew.
        """
        generation = _generation(facts)
        old = generation.workers if generation else ()
        joined = {worker: facts.get(f'join/{worker.index}') for worker in self._workers}
        return {
            worker: each['offer']
            for worker, each in joined.items()
            if each and each['incarnation'] == there[worker] and each['incarnation'] not in old
        }

    def _absent(self, there: Mapping[Task, int | None], facts: Mapping[str, Any]) -> str:
        silent = [str(task) for task, incarnation in there.items() if incarnation is None]
        if silent:
            return f'{", ".join(silent)} did not answer'
        offers = self._offers(facts, there)
        missing = [str(worker) for worker in self._workers if worker not in offers]
        return f'{", ".join(missing or map(str, self._workers))} answered, but did not join the training'

    def end(self, exit_code: int, reason: str = '') -> None:
        """Tells the others that this task ends, and how: if the keeper of the board is gone, each server by itself."""
        there = self.ask()
        end = {'incarnation': there[self.cluster.own], 'exit_code': exit_code, 'reason': reason}
        keepers = [self.cluster.host_task]
        if there[self.cluster.host_task] is None:
            keepers = [server for server in self.cluster.servers if there[server] is not None]
        for keeper in keepers:
            self._with_board(lambda board: board.post(_end_name(self.cluster.own), end), keeper)

    def end_of(self, task: Task, incarnation: int | None) -> End | None:
        """How a task ended that now has this incarnation, or None if it has not told that it does."""
        return self.ends(self.facts() or {}, {**dict.fromkeys(self.cluster.tasks), task: incarnation}).get(task)

    def ends(self, facts: Mapping[str, Any], there: Mapping[Task, int | None]) -> dict[Task, End]:
        """The tasks that have ended. One that was started again since then has not."""
        found = {}
        for task in self.cluster.tasks:
            end = facts.get(_end_name(task))
            if end and there[task] in (None, end['incarnation']):
                found[task] = End(end['exit_code'], end['reason'])
        return found

    def see_off(self) -> None:
        """Where this task keeps the board: stays until the others have ended and read what they wanted."""
        if self.cluster.own != self.cluster.host_task:
            return
        deadline = time.monotonic() + _FAREWELL_SECS
        while time.monotonic() < deadline:
            there, facts = self.ask(), self.facts() or {}
            ended = self.ends(facts, there)
            if all(
                task in ended or incarnation is None for task, incarnation in there.items() if task != self.cluster.own
            ):
                return
            time.sleep(_POLL_SECS)


@dataclass(frozen=True)
class Timeout:
    """How long to wait for tasks, and the flag that says so."""

    flag: str
    secs: float

    def tell(self, what: str) -> str:
        return f'{what} within --{self.flag}={self.secs:g} seconds; see what they say, or write a larger one'


def _generation(facts: Mapping[str, Any]) -> Generation | None:
    found = facts.get('generation')
    return Generation(**found) if found else None


def _end_name(task: Task) -> str:
    return f'end/{task.job}/{task.index}'
