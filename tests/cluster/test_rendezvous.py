"""How the processes of a cluster meet and part: who joins, who is missed, and who stays until the others have left."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest
import tensorflow.compat.v1 as tf

from cluster.agreement import settings_of
from cluster.rendezvous import NOTHING, Membership, Rendezvous, TrainingOverError, mismatched_tasks
from cluster.topology import Cluster, Task
from tests.cluster.local_cluster import (
    PATIENT,
    SOON,
    LocalCluster,
    Member,
    assert_waits,
    begin,
    introduce,
    join_all,
    result,
)
from tests.support.outputs import failed, refused

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.mark.parametrize(
    'order', [*itertools.permutations(['ps 0', 'worker 0', 'worker 1']), ('worker 1', 'worker 0')], ids=', '.join
)
def test_tasks_that_come_in_any_order_meet(order: tuple[str, ...], make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(sum(name.startswith('ps') for name in order))
    members: dict[str, Member] = {}
    futures: dict[str, Future[Membership]] = {}
    for name in order:
        assert not any(future.done() for future in futures.values())
        members[name] = cluster.start(name)
        introduce(members)
        if name.startswith('worker'):
            futures[name] = members[name].join(step=10 * int(name[-1]))
    introduce(members)
    memberships = [result(future) for future in futures.values()]
    incarnations = {str(cluster.task(name)): member.incarnation for name, member in members.items()}
    workers = [members[name].incarnation for name in ('worker 0', 'worker 1')]
    settings = settings_of(cluster.cluster('worker 0'), {})
    assert memberships == [Membership(incarnations, workers, {'step': 10, 'end': None}, settings)] * 2


def test_a_task_that_comes_back_waits_for_the_new_processes_of_the_others(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(2)
    old = cluster.start_all()
    (before, _) = join_all(old)
    new = {}
    joining: dict[str, Future[Membership]] = {}
    # The task with the store in the middle: until then the store is that of the old processes.
    for name in ('worker 1', 'ps 0', 'worker 0', 'ps 1'):
        assert not any(future.done() for future in joining.values())
        cluster.stop(name)
        new[name] = cluster.start(name)
        if name.startswith('worker'):
            joining[name] = new[name].join()
        # The others have not ended yet, and say how they do.
        for other, member in old.items():
            if other not in new:
                member.rendezvous.end(1, f'{name} was lost')
    introduce(new)
    after = result(joining['worker 0'])
    assert after == result(joining['worker 1']) != before
    assert set(after.members.values()) == {member.incarnation for member in new.values()}


def test_a_task_that_died_after_joining_must_join_once_more(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    introduce({'ps 0': cluster.start('ps 0')})
    hasty = cluster.start('worker 1')
    with failed(cluster.task('worker 0').host):
        result(hasty.join(SOON))
    # It has announced that it joins, and is gone.
    cluster.stop('worker 1')
    chief = cluster.start('worker 0').join()
    assert_waits(chief)
    again = cluster.start('worker 1')
    # Another process has its place, and has not announced that it joins.
    assert_waits(chief)
    assert result(again.join()) == result(chief)
    assert result(chief).members[str(cluster.task('worker 1'))] == again.incarnation


def test_all_meet_anew_when_the_task_that_keeps_the_store_is_replaced(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(2)
    join_all(cluster.start_all())
    for name in cluster.relays:
        cluster.stop(name)
    members = cluster.start_all()
    first, second = join_all(members)
    assert first == second
    assert set(first.members.values()) == {member.incarnation for member in members.values()}


def test_workers_that_do_not_wait_for_each_other_let_a_new_one_in_at_once(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(together=False)
    members = cluster.start_all()
    (first, _) = join_all(members)
    assert first.members == {str(cluster.task('ps 0')): members['ps 0'].incarnation}
    restarts = {0}
    for _ in range(2):
        cluster.stop('worker 0')
        members['worker 0'] = cluster.start('worker 0')
        assert result(members['worker 0'].join()) == first
        # With this its seeds become others than those of the process that it replaced.
        restarts.add(members['worker 0'].rendezvous.restart)
    assert len(restarts) == 3
    assert members['worker 1'].rendezvous.restart == 0


def assert_fails_for_want_of(missing: Sequence[str], joining: 'Future[Membership]', cluster: LocalCluster) -> None:
    """Asserts that the error names the flag of the time-out and these tasks, and no other one."""
    with failed('--connect_timeout_secs=1', *(cluster.task(name) for name in missing)) as error:
        result(joining)
    assert not [name for name in cluster.relays if name not in missing and str(cluster.task(name)) in str(error.value)]


@pytest.mark.parametrize(
    'absent',
    [('ps 0',), ('ps 1',), ('worker 0',), ('worker 2',), ('ps 0', 'ps 1'), ('ps 1', 'worker 0', 'worker 2')],
    ids=', '.join,
)
def test_all_tasks_that_did_not_answer_are_named(
    absent: tuple[str, ...], make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster(2, 3)
    member = [cluster.start(name) for name in cluster.relays if name not in absent][-1]
    assert_fails_for_want_of(absent, member.join(SOON), cluster)


def test_a_task_that_answers_and_does_not_join_is_named(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(1, 3)
    members = cluster.start_all()
    introduce(members)
    for joining in [members[f'worker {index}'].join(SOON) for index in (0, 2)]:
        assert_fails_for_want_of(['worker 1'], joining, cluster)


def test_how_a_task_ended_is_known_until_a_new_process_takes_its_place(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    rendezvous, task = members['worker 0'].rendezvous, cluster.task('worker 1')
    members['worker 1'].rendezvous.end(1, 'no space left')
    entries = rendezvous.entries() or {}
    # It may not have gone yet.
    for incarnation in (None, members['worker 1'].incarnation):
        ends = rendezvous.ends(entries, {**rendezvous.incarnations(), task: incarnation})
        assert (ends[task].exit_code, ends[task].reason) == (1, 'no space left')
    cluster.start('worker 1')
    assert task not in rendezvous.ends(entries, rendezvous.incarnations())


@pytest.mark.parametrize('num_ps', [0, 1])
def test_only_the_task_that_keeps_the_store_stays_until_the_others_have_left(
    num_ps: int, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster(num_ps, 3 - num_ps)
    members = cluster.start_all()
    (_, keeper), (_, leaving), (lost, _) = members.items()
    keeper.rendezvous.end(0)
    leaving.rendezvous.end(0)
    result(begin(leaving.rendezvous.stay_for_others))
    staying = begin(keeper.rendezvous.stay_for_others)
    assert_waits(staying)
    cluster.stop(lost)
    result(staying)


@pytest.mark.parametrize(('named', 'flag'), [(['ps 0', 'ps 1'], '--worker_hosts'), (['ps 1'], '--ps_hosts')])
def test_a_worker_of_another_cluster_is_refused_by_the_servers_of_one_that_is_running_which_goes_on(
    named: Sequence[str], flag: str, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster(2)
    members = cluster.start_all()
    (generation, _) = join_all(members)
    stranger = alone_with([cluster.task(name).host for name in named])
    with refused(str(stranger.cluster.own), flag):
        stranger.join(NOTHING, PATIENT)
    # It does not end as if it were worker 0 of this cluster.
    stranger.end(2, 'refused')
    chief = members['worker 0'].rendezvous
    found, entries = chief.incarnations(), chief.entries() or {}
    assert not chief.ends(entries, found)
    chief.compare_settings(entries, found)
    assert result(members['worker 0'].join()) == generation
    if 'ps 0' in named:
        assert list(mismatched_tasks(entries)) == [str(stranger.cluster.own)]


@pytest.mark.parametrize('joins_first', [False, True])
@pytest.mark.parametrize('name', ['ps 0', 'worker 0', 'worker 1'])
def test_a_process_whose_address_is_another_one_is_refused_and_the_cluster_goes_on(
    name: str, joins_first: bool, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster()
    impostor = of_another_host(cluster.cluster(name))
    joining = None if joins_first else begin(impostor.join, NOTHING, PATIENT)
    if joining:
        assert_waits(joining)
    members = cluster.start_all()
    (generation, _) = join_all(members) if joins_first else (None, None)
    with refused(f"{name}'s address {cluster.task(name).host} is another process", '--task_index'):
        result(joining or begin(impostor.join, NOTHING, PATIENT))
    impostor.end(2, 'refused')
    impostor.stay_for_others(all_will_end=True)
    chief = members['worker 0'].rendezvous
    entries = chief.entries() or {}
    assert not chief.ends(entries, chief.incarnations())
    assert not mismatched_tasks(entries)
    chief.compare_settings(entries, chief.incarnations())
    assert generation in (None, *join_all(members))


def of_another_host(cluster: Cluster) -> Rendezvous:
    """That of a process which takes itself for a task of this cluster, and listens at another address."""
    spec = tf.train.ClusterSpec({'worker': ['127.0.0.1:0']})
    rendezvous = Rendezvous(cluster, together=True, settings={})
    target = tf.train.Server(spec, job_name='worker', task_index=0).target
    rendezvous._own_server = Task('worker', 0, target.removeprefix('grpc://'))
    return rendezvous


def alone_with(ps_hosts: Sequence[str]) -> Rendezvous:
    """That of a worker which believes that it trains alone with these parameter servers."""
    spec = tf.train.ClusterSpec({'ps': list(ps_hosts), 'worker': ['127.0.0.1:0']})
    target = tf.train.Server(spec, job_name='worker', task_index=0).target
    cluster = Cluster(tuple(ps_hosts), (target.removeprefix('grpc://'),), 'worker', 0, 'the flags')
    return Rendezvous(cluster, together=True, settings={})


@pytest.mark.parametrize('num_ps', [0, 1])
def test_a_task_that_is_started_again_after_the_last_step_learns_that_training_is_over(
    num_ps: int, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster(num_ps)
    members = cluster.start_all()
    join_all(members)
    cluster.stop('worker 1')
    members['worker 0'].rendezvous.end(0)
    again = cluster.start('worker 1')
    with pytest.raises(TrainingOverError):
        result(again.join())
    again.rendezvous.end(0)
    # Who has ended well before belongs to another training, whose servers are not up yet.
    with failed():
        result(cluster.start('worker 1').join(SOON))
