"""Who is there, who joins, how tasks end: real TensorFlow servers of this process, each behind a relay."""

import functools
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from relay import Relay

from cluster.board import Board, BoardError
from cluster.crew import Crew, Generation, Timeout
from cluster.health import Health
from cluster.members import Cluster, Task
from cluster.serve import serve
from cluster.watch import Verdict, Watch
from errors import RunError

pytestmark = pytest.mark.graph

DEADLINE_SECS = 60.0
# How long something has to happen in that must not.
MOMENT_SECS = 0.7
PATIENT = Timeout('connect_timeout_secs', DEADLINE_SECS)
SOON = Timeout('connect_timeout_secs', 1.0)
PATIENT_PEER = Timeout('peer_timeout_secs', DEADLINE_SECS)
PEER = Timeout('peer_timeout_secs', 1.0)


@dataclass(frozen=True)
class Member:
    """What stands for one process of a cluster."""

    crew: Crew
    target: str
    incarnation: int

    def join(self, timeout: Timeout = PATIENT, **offer: Any) -> 'Future[Generation]':
        return begin(self.crew.join, offer, lambda offers: {'offers': offers}, timeout)


@functools.cache
def relays() -> dict[str, Relay]:
    """Those of all tasks that a town may have, by their names."""
    return {name: Relay() for name in ('ps 0', 'ps 1', 'worker 0', 'worker 1', 'worker 2')}


@functools.cache
def server_of(name: str, number: int) -> tf.train.Server:
    """The server of a process that stands for the task of that name; another number is another process.

    Towns share them, since each has 80 threads that never end.
    """
    job, index = name.split()
    spec = {
        job: [relay.address for name, relay in relays().items() if name.startswith(job)] for job in ('ps', 'worker')
    }
    # At any port: the others go through the relay.
    spec[job][int(index)] = '127.0.0.1:0'
    return tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=int(index))


class Town:
    """A cluster whose tasks, called 'worker 0' and so on, come and go."""

    def __init__(self, num_ps: int, num_workers: int, *, together: bool = True) -> None:
        names = [f'ps {index}' for index in range(num_ps)] + [f'worker {index}' for index in range(num_workers)]
        self.relays = {name: relays()[name] for name in names}
        self.watches: list[Watch] = []
        self._num_starts = dict.fromkeys(names, 0)
        self._together = together

    def cluster(self, name: str) -> Cluster:
        """The cluster as the task of that name knows it."""
        job, index = name.split()
        ps_hosts, worker_hosts = (
            tuple(relay.address for name, relay in self.relays.items() if name.startswith(job))
            for job in ('ps', 'worker')
        )
        return Cluster(ps_hosts, worker_hosts, job, int(index), 'the flags')

    def task(self, name: str) -> Task:
        return self.cluster(name).own

    def start(self, name: str) -> Member:
        """Starts a task; if it was there before, a new process takes its place."""
        cluster = self.cluster(name)
        server = server_of(name, self._num_starts[name])
        self._num_starts[name] += 1
        self.relays[name].lead_to(server.target.removeprefix('grpc://'))
        crew = Crew(cluster, server.target, together=self._together)
        return Member(crew, server.target, answer(crew, cluster.own))

    def stop(self, name: str) -> None:
        """The task does not answer from now on."""
        self.relays[name].lead_to(None)

    def start_all(self) -> dict[str, Member]:
        members = {name: self.start(name) for name in self.relays}
        for member in members.values():
            for name in members:
                answer(member.crew, self.task(name))
        return members

    def close(self) -> None:
        for watch in self.watches:
            watch.stop()
            watch.join(DEADLINE_SECS)
        for name in self.relays:
            self.stop(name)
        for name, num_starts in self._num_starts.items():
            for number in range(num_starts):
                _wipe(server_of(name, number), self.task(name))


def _wipe(server: tf.train.Server, keeper: Task) -> None:
    """Leaves nothing on its board, if there is one."""
    with tf.Graph().as_default() as graph, tf.device(f'{keeper.device}/cpu:0'):
        table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.string, shared_name='board')
        wiped = tf.raw_ops.DestroyResourceOp(resource=table)
    with tf.Session(server.target, graph=graph, config=tf.ConfigProto(device_filters=[keeper.device])) as session:
        session.run(wiped)


@pytest.fixture
def make_town() -> Iterator[Callable[..., Town]]:
    towns: list[Town] = []

    def make(num_ps: int = 1, num_workers: int = 2, *, together: bool = True) -> Town:
        towns.append(Town(num_ps, num_workers, together=together))
        return towns[-1]

    yield make
    for town in towns:
        town.close()


def answer(crew: Crew, task: Task) -> int:
    """The incarnation of a task that is there, once the crew has found it."""
    deadline = time.monotonic() + DEADLINE_SECS
    while (incarnation := crew.ask()[task]) is None:
        assert time.monotonic() < deadline
    return incarnation


def begin(function: Callable[..., Any], *args: Any, **options: Any) -> 'Future[Any]':
    """Calls it on a thread that does not keep the tests from ending."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def result(future: 'Future[Any]') -> Any:
    return future.result(DEADLINE_SECS)


def fault(future: 'Future[Any]') -> str:
    with pytest.raises(RunError) as caught:
        result(future)
    return str(caught.value)


def assert_waits(future: 'Future[Any]') -> None:
    with pytest.raises(NotYet):
        future.result(MOMENT_SECS)


def join_all(members: dict[str, Member]) -> list[Generation]:
    futures = [member.join() for name, member in members.items() if name.startswith('worker')]
    return [result(future) for future in futures]


# Health


def test_a_server_answers_with_a_number_that_a_new_one_does_not_have(make_town: Callable[..., Town]) -> None:
    town = make_town(0, 1)
    task, first = town.task('worker 0'), town.start('worker 0')
    health = Health([task])
    assert health.ask(1) == health.ask(1) == {task: first.incarnation}
    second = town.start('worker 0')
    assert health.ask(1) == {task: second.incarnation}
    assert first.incarnation != second.incarnation
    health.close()


def test_only_tasks_that_are_there_answer() -> None:
    with socket.create_server(('127.0.0.1', 0)) as mute, socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        tasks = [Task('worker', index, f'127.0.0.1:{end.getsockname()[1]}') for index, end in enumerate((mute, silent))]
        health = Health(tasks)
        # One accepts connections and says nothing, at the other nobody listens.
        assert health.ask(0.2) == dict.fromkeys(tasks)
        health.close()


# Board


def test_all_tasks_read_what_one_has_written(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    keeper = town.task('ps 0')
    boards = [Board(member.target, town.task(name), keeper) for name, member in members.items()]
    assert boards[1].read() == {}
    boards[1].post('großer Name', {'steps': [1, 2.5, None], 'is_done': False})
    boards[2].post('other', 'first')
    boards[2].post('other', 'second')
    expected = {'großer Name': {'steps': [1, 2.5, None], 'is_done': False}, 'other': 'second'}
    assert [board.read() for board in boards] == [expected] * 3


def test_a_board_is_lost_with_its_keeper(make_town: Callable[..., Town]) -> None:
    town = make_town(1, 1)
    members = town.start_all()
    worker, keeper = town.task('worker 0'), town.task('ps 0')
    board = Board(members['worker 0'].target, worker, keeper, timeout_secs=1)
    board.post('fact', 1)
    town.stop('ps 0')
    with pytest.raises(BoardError):
        board.read()
    town.start('ps 0')
    with pytest.raises(BoardError):
        board.read()
    assert Board(members['worker 0'].target, worker, keeper, timeout_secs=10).read() == {}


def test_a_crew_whose_keeper_is_gone_has_no_facts_and_finds_the_next_one(make_town: Callable[..., Town]) -> None:
    town = make_town(1, 1)
    crew = town.start_all()['worker 0'].crew
    crew.post('fact', 1)
    assert crew.facts() == {'fact': 1}
    town.stop('ps 0')
    assert crew.facts() is None
    town.start('ps 0')
    deadline = time.monotonic() + DEADLINE_SECS
    while (facts := crew.facts()) is None:
        assert time.monotonic() < deadline
    assert facts == {}


# Joining


@pytest.mark.parametrize(
    'order', [*itertools.permutations(['ps 0', 'worker 0', 'worker 1']), ('worker 1', 'worker 0')], ids=', '.join
)
def test_tasks_that_come_in_any_order_meet(order: tuple[str, ...], make_town: Callable[..., Town]) -> None:
    town = make_town(sum(name.startswith('ps') for name in order))
    members: dict[str, Member] = {}
    futures: dict[str, Future[Generation]] = {}
    for name in order:
        assert not any(future.done() for future in futures.values())
        members[name] = town.start(name)
        if name.startswith('worker'):
            futures[name] = members[name].join(step=10 * int(name[-1]))
    generations = [result(future) for future in futures.values()]
    incarnations = {str(town.task(name)): member.incarnation for name, member in members.items()}
    workers = [members[name].incarnation for name in ('worker 0', 'worker 1')]
    assert generations == [Generation(1, incarnations, workers, {'offers': [{'step': 0}, {'step': 10}]})] * 2


def test_a_generation_is_formed_of_processes_that_took_no_part_in_the_last(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    assert [generation.number for generation in join_all(members)] == [1, 1]
    town.stop('worker 1')
    new = {'worker 1': town.start('worker 1')}
    joining = new['worker 1'].join()
    # The chief is still the one that took steps with the worker that is lost.
    assert town.task('worker 0').host in fault(members['worker 0'].join(SOON))
    assert_waits(joining)
    new['worker 0'] = town.start('worker 0')
    chief = result(new['worker 0'].join())
    assert chief == result(joining)
    assert chief.number == 2
    assert chief.members[str(town.task('worker 1'))] == new['worker 1'].incarnation


def test_who_joins_and_dies_before_the_others_come_is_not_counted_on(make_town: Callable[..., Town]) -> None:
    town = make_town()
    town.start('ps 0')
    hasty = town.start('worker 1')
    begun = hasty.join(SOON)
    assert town.task('worker 0').host in fault(begun)
    # It has told that it joins, and is gone.
    town.stop('worker 1')
    chief = town.start('worker 0').join()
    assert_waits(chief)
    again = town.start('worker 1')
    # Another process has its place, and has not told so yet.
    assert_waits(chief)
    assert result(again.join()) == result(chief)
    assert result(chief).members[str(town.task('worker 1'))] == again.incarnation


def test_all_meet_anew_when_the_keeper_of_the_board_is_replaced(make_town: Callable[..., Town]) -> None:
    town = make_town(2)
    join_all(town.start_all())
    for name in town.relays:
        town.stop(name)
    members = town.start_all()
    first, second = join_all(members)
    assert first == second
    assert set(first.members.values()) == {member.incarnation for member in members.values()}


def test_workers_that_do_not_wait_for_each_other_let_a_new_one_in_at_once(make_town: Callable[..., Town]) -> None:
    town = make_town(together=False)
    members = town.start_all()
    (first, _) = join_all(members)
    assert first.members == {str(town.task('ps 0')): members['ps 0'].incarnation}
    town.stop('worker 0')
    assert result(town.start('worker 0').join()) == first


def test_workers_that_do_not_wait_for_each_other_meet_anew_when_a_server_is_replaced(
    make_town: Callable[..., Town],
) -> None:
    town = make_town(2, together=False)
    members = town.start_all()
    assert join_all(members)[0].number == 1
    town.stop('ps 1')
    members['ps 1'] = town.start('ps 1')
    members['worker 0'] = town.start('worker 0')
    joining = members['worker 0'].join()
    # Worker 1 took part in the last one.
    fault(members['worker 1'].join(SOON))
    members['worker 1'] = town.start('worker 1')
    assert result(members['worker 1'].join()) == result(joining)
    assert result(joining).number == 2


# Who did not come


@pytest.mark.parametrize(
    'absent',
    [('ps 0',), ('ps 1',), ('worker 0',), ('worker 2',), ('ps 0', 'ps 1'), ('ps 1', 'worker 0', 'worker 2')],
    ids=', '.join,
)
def test_all_who_did_not_answer_are_named(absent: tuple[str, ...], make_town: Callable[..., Town]) -> None:
    town = make_town(2, 3)
    member = [town.start(name) for name in town.relays if name not in absent][-1]
    named = ', '.join(str(town.task(name)) for name in absent)
    assert fault(member.join(SOON)).startswith(f'{named} did not answer within --connect_timeout_secs=1 seconds')


def test_who_answers_and_does_not_join_is_named(make_town: Callable[..., Town]) -> None:
    town = make_town(1, 3)
    members = town.start_all()
    joining = [members[f'worker {index}'].join(SOON) for index in (0, 2)]
    expected = f'{town.task("worker 1")} answered, but did not join the training within --connect_timeout_secs=1'
    assert [fault(future).startswith(expected) for future in joining] == [True, True]


def test_who_does_not_join_once_more_is_named(make_town: Callable[..., Town]) -> None:
    town = make_town()
    join_all(town.start_all())
    town.stop('worker 1')
    joining = town.start('worker 1').join(SOON)
    assert fault(joining).startswith(f'{town.task("worker 0")} answered, but did not join the training')


# Ends


def test_how_a_task_ended_is_known_until_a_new_process_takes_its_place(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    crew, task = members['worker 0'].crew, town.task('worker 1')
    assert crew.end_of(task, members['worker 1'].incarnation) is None
    members['worker 1'].crew.end(1, 'no space left')
    # It may not have gone yet.
    for incarnation in (None, members['worker 1'].incarnation):
        end = crew.end_of(task, incarnation)
        assert end is not None
        assert (end.exit_code, end.reason) == (1, 'no space left')
    new = town.start('worker 1')
    assert crew.end_of(task, new.incarnation) is None


@pytest.mark.parametrize('num_ps', [0, 1])
def test_only_the_keeper_of_the_board_stays_for_the_others(num_ps: int, make_town: Callable[..., Town]) -> None:
    town = make_town(num_ps, 3 - num_ps)
    members = town.start_all()
    (_, keeper), (_, leaving), (lost, _) = members.items()
    keeper.crew.end(0)
    leaving.crew.end(0)
    result(begin(leaving.crew.see_off))
    staying = begin(keeper.crew.see_off)
    assert_waits(staying)
    town.stop(lost)
    result(staying)


# Parameter servers


@dataclass
class Serving:
    """A parameter server at work, and what it has said."""

    future: 'Future[None]'
    warnings: list[str]


def begin_serving(
    member: Member, *, connect: Timeout = PATIENT, peer: Timeout = PATIENT_PEER, together: bool
) -> Serving:
    """Returns when it has looked for the workers once."""
    warnings: list[str] = []
    has_looked = threading.Event()
    future = begin(serve, member.crew, connect, peer, 0.0, warnings.append, has_looked.set, together=together)
    assert has_looked.wait(DEADLINE_SECS)
    return Serving(future, warnings)


@pytest.mark.parametrize('together', [True, False])
def test_a_server_ends_when_all_workers_have(together: bool, make_town: Callable[..., Town]) -> None:
    town = make_town(together=together)
    members = town.start_all()
    serving = begin_serving(members['ps 0'], together=together)
    members['worker 1'].crew.end(0)
    assert_waits(serving.future)
    members['worker 0'].crew.end(0)
    result(serving.future)
    assert not serving.warnings


def test_a_server_tells_why_a_worker_failed(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    serving = begin_serving(members['ps 0'], together=True)
    members['worker 1'].crew.end(1, 'the disk is full')
    members['worker 0'].crew.end(0)
    assert fault(serving.future) == f'{town.task("worker 1")} ended with exit code 1: the disk is full'


def test_a_server_learns_how_a_worker_ended_when_the_keeper_of_the_board_is_lost(
    make_town: Callable[..., Town],
) -> None:
    town = make_town(2, 1)
    members = town.start_all()
    serving = begin_serving(members['ps 1'], together=True)
    town.stop('ps 0')
    assert_waits(serving.future)
    members['worker 0'].crew.end(1, 'ps 0 was lost')
    assert fault(serving.future) == f'{town.task("worker 0")} ended with exit code 1: ps 0 was lost'


@pytest.mark.parametrize('together', [True, False])
def test_a_server_names_a_worker_that_never_came(together: bool, make_town: Callable[..., Town]) -> None:
    town = make_town(together=together)
    server, worker = town.start('ps 0'), town.start('worker 0')
    serving = begin_serving(server, connect=SOON, together=together)
    # The one that is there may know better.
    assert_waits(serving.future)
    worker.crew.end(1, 'not all came')
    with pytest.raises(RunError):
        result(serving.future)


def test_a_server_gives_up_when_no_worker_ever_came(make_town: Callable[..., Town]) -> None:
    town = make_town()
    serving = begin_serving(town.start('ps 0'), connect=SOON, together=True)
    assert f'{town.task("worker 0")} did not come within --connect_timeout_secs=1 ' in fault(serving.future)


def test_a_server_gives_workers_up_that_do_not_come_back(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    serving = begin_serving(members['ps 0'], peer=PEER, together=True)
    town.stop('worker 0')
    assert_waits(serving.future)
    # While one is there it is for that one to decide.
    town.stop('worker 1')
    assert f'{town.task("worker 0")} did not come back within --peer_timeout_secs=1 ' in fault(serving.future)


def test_a_server_waits_for_a_worker_that_comes_back(make_town: Callable[..., Town]) -> None:
    town = make_town(1, 1)
    members = town.start_all()
    serving = begin_serving(members['ps 0'], together=True)
    town.stop('worker 0')
    assert_waits(serving.future)
    town.start('worker 0').crew.end(0)
    result(serving.future)


def test_a_server_ends_without_a_lost_worker_when_the_others_did_not_need_it(make_town: Callable[..., Town]) -> None:
    town = make_town(together=False)
    members = town.start_all()
    serving = begin_serving(members['ps 0'], together=False)
    town.stop('worker 1')
    assert_waits(serving.future)
    members['worker 0'].crew.end(0)
    # Long before it would have been given up.
    result(serving.future)
    assert serving.warnings == [f'{town.task("worker 1")} was lost; the others went on']


# Watching


class Watching:
    """A watch over the others of worker 0, and what came of it."""

    def __init__(
        self, town: Town, members: dict[str, Member], *, peer: Timeout = PATIENT_PEER, can_return: bool = True
    ) -> None:
        self.warnings: list[str] = []
        self._interrupted: Future[None] = Future()
        generation = join_all(members)[0]
        self.watch = Watch(
            members['worker 0'].crew,
            generation,
            lambda _: can_return,
            peer.secs,
            self.warnings.append,
            lambda: self._interrupted.set_result(None),
        )
        town.watches.append(self.watch)
        self.watch.start()

    def verdict(self) -> Verdict | None:
        result(self._interrupted)
        return self.watch.verdict

    def assert_calm(self) -> None:
        assert_waits(self._interrupted)
        assert self.watch.verdict is None


def test_a_worker_that_is_replaced_is_back(make_town: Callable[..., Town]) -> None:
    town = make_town()
    watching = Watching(town, town.start_all())
    town.stop('worker 1')
    town.start('worker 1')
    task = town.task('worker 1')
    assert watching.verdict() == Verdict(task, True, f'{task} was lost and is back')


@pytest.mark.parametrize('lost', ['worker 1', 'ps 0'])
def test_a_task_that_does_not_come_back_is_lost_when_its_time_is_over(
    lost: str, make_town: Callable[..., Town]
) -> None:
    town = make_town()
    watching = Watching(town, town.start_all(), peer=PEER)
    town.stop(lost)
    task = town.task(lost)
    assert watching.verdict() == Verdict(
        task, False, f'{task} was lost and did not come back within --peer_timeout_secs=1'
    )
    assert watching.warnings == [f'{task} does not answer; waiting up to 1 s for it']


def test_a_server_whose_variables_are_lost_is_not_waited_for(make_town: Callable[..., Town]) -> None:
    town = make_town()
    watching = Watching(town, town.start_all(), can_return=False)
    town.stop('ps 0')
    # Of no use: it has none of them.
    town.start('ps 0')
    verdict = watching.verdict()
    assert verdict is not None
    assert (verdict.task, verdict.is_back) == (town.task('ps 0'), False)
    assert '--train_dir' in verdict.line


@pytest.mark.parametrize('has_gone', [False, True])
def test_a_task_that_failed_is_not_waited_for(has_gone: bool, make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    watching = Watching(town, members)
    members['worker 1'].crew.end(1, 'stopped by SIGTERM')
    if has_gone:
        town.stop('worker 1')
        task = town.task('worker 1')
        expected = Verdict(task, False, f'{task} ended with exit code 1: stopped by SIGTERM')
        assert watching.verdict() == expected
        assert not watching.warnings
    else:
        # It may have something to finish.
        watching.assert_calm()


def test_who_keeps_the_board_is_not_waited_for_once_it_told_that_it_ends(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    watching = Watching(town, members)
    # It stays until this was read: later nobody could tell.
    members['ps 0'].crew.end(143, 'stopped by SIGTERM')
    task = town.task('ps 0')
    assert watching.verdict() == Verdict(task, False, f'{task} ended with exit code 143: stopped by SIGTERM')
    assert not watching.warnings


def test_a_task_may_go_when_it_has_ended_well(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    watching = Watching(town, members, peer=PEER)
    members['worker 1'].crew.end(0)
    town.stop('worker 1')
    assert watching.watch.wait(2 * PEER.secs) is None
    assert not watching.warnings


def test_a_task_that_was_only_slow_is_not_lost(make_town: Callable[..., Town]) -> None:
    town = make_town()
    members = town.start_all()
    watching = Watching(town, members, peer=Timeout('peer_timeout_secs', 3.0))
    server = members['worker 1'].target.removeprefix('grpc://')
    for _ in range(2):
        town.stop('worker 1')
        while not watching.watch.lost:
            watching.assert_calm()
        town.relays['worker 1'].lead_to(server)
        while watching.watch.lost:
            watching.assert_calm()
    assert len(watching.warnings) == 2


def test_nothing_is_lost_after_the_end_of_a_watch(make_town: Callable[..., Town]) -> None:
    town = make_town()
    watching = Watching(town, town.start_all(), peer=Timeout('peer_timeout_secs', 0.0))
    watching.watch.stop()
    town.stop('worker 1')
    watching.watch.join(DEADLINE_SECS)
    assert not watching.watch.is_alive()
    assert watching.watch.verdict is None


def test_workers_that_do_not_wait_for_each_other_watch_the_servers_alone(make_town: Callable[..., Town]) -> None:
    town = make_town(together=False)
    watching = Watching(town, town.start_all(), peer=PEER)
    town.stop('worker 1')
    assert watching.watch.wait(2 * PEER.secs) is None
    town.stop('ps 0')
    verdict = watching.verdict()
    assert verdict is not None
    assert verdict.task == town.task('ps 0')
