"""How the tasks of a cluster join, which of them are reported missing, and how they leave."""

import itertools
import time
from concurrent.futures import Future

import pytest
import tensorflow.compat.v1 as tf

from tests.cluster.local_cluster import (
    DEADLINE_SECS,
    PATIENT,
    POLL_SECS,
    SOON,
    Member,
    assert_waits,
    await_answer,
    begin,
    introduce,
    join_all,
    result,
)
from tests.support.outputs import failed, refused
from tf_cnn.cluster.rendezvous import NO_RESUME_POINT, Rendezvous, TrainingGroup
from tf_cnn.cluster.server import KeyValueStore
from tf_cnn.cluster.topology import Cluster, Task

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.mark.parametrize(
    'order',
    [*itertools.permutations(['ps 0', 'worker 0', 'worker 1']), ('worker 1', 'worker 0')],
    ids=', '.join,
)
def test_tasks_that_come_in_any_order_meet(order, make_cluster):
    cluster = make_cluster(num_ps=len(order) - 2)
    members: dict[str, Member] = {}
    futures: dict[str, Future[TrainingGroup]] = {}
    for name in order:
        assert not any(future.done() for future in futures.values())
        members[name] = cluster.start(name)
        introduce(members)
        if name.startswith('worker'):
            futures[name] = members[name].join(step=10 * int(name[-1]))
    introduce(members)
    incarnations = {str(cluster.task(name)): member.incarnation for name, member in members.items()}
    workers = [members[name].incarnation for name in ('worker 0', 'worker 1')]
    group = TrainingGroup(incarnations, workers, {'step': 10, 'end': None})
    assert [*map(result, futures.values())] == [group] * 2


def test_a_task_that_comes_back_waits_for_the_new_processes_of_the_others(make_cluster):
    cluster = make_cluster(2)
    old = cluster.start_all()
    (before, _) = join_all(old)
    new = {}
    joining: dict[str, Future[TrainingGroup]] = {}
    # ps 0 keeps the store. Until it is replaced, the old processes' entries are in it.
    for name in ('worker 1', 'ps 0', 'worker 0', 'ps 1'):
        assert not any(future.done() for future in joining.values())
        cluster.stop(name)
        new[name] = cluster.start(name)
        if name.startswith('worker'):
            joining[name] = new[name].join()
        # The old processes that still run publish how they end.
        for other, member in old.items():
            if other not in new:
                member.rendezvous.record_exit(1, f'{name} was lost')
    introduce(new)
    after = result(joining['worker 0'])
    assert after == result(joining['worker 1']) != before
    incarnations = {member.incarnation for member in new.values()}
    assert {*after.required_incarnations.values()} == incarnations


def test_a_task_that_died_after_joining_must_join_once_more(make_cluster):
    cluster = make_cluster()
    introduce({'ps 0': cluster.start('ps 0')})
    hasty = cluster.start('worker 1')
    with failed(cluster.task('worker 0').host):
        result(hasty.join(SOON))
    # It has announced that it joins, and stops.
    cluster.stop('worker 1')
    chief = cluster.start('worker 0').join()
    assert_waits(chief)
    again = cluster.start('worker 1')
    # A new process has replaced it, and has not announced that it joins.
    assert_waits(chief)
    assert result(again.join()) == result(chief)
    assert result(chief).required_incarnations[str(cluster.task('worker 1'))] == again.incarnation


def test_workers_that_do_not_wait_for_each_other_let_a_new_one_in_at_once(make_cluster):
    cluster = make_cluster(is_synchronous=False)
    members = cluster.start_all()
    (first, _) = join_all(members)
    assert first.required_incarnations == {str(cluster.task('ps 0')): members['ps 0'].incarnation}
    restarts = {0}
    for _ in range(2):
        cluster.stop('worker 0')
        members['worker 0'] = cluster.start('worker 0')
        assert result(members['worker 0'].join()) == first
        # The number makes its seeds differ from the seeds of the process that it replaced.
        restarts.add(members['worker 0'].rendezvous.restart)
    assert len(restarts) == 3
    assert members['worker 1'].rendezvous.restart == 0


@pytest.mark.parametrize(
    'absent', [('ps 0',), ('worker 0',), ('ps 1', 'worker 0', 'worker 2')], ids=', '.join
)
def test_all_tasks_that_did_not_answer_are_named_and_no_others(absent, make_cluster):
    cluster = make_cluster(2, 3)
    member = [cluster.start(name) for name in cluster.relays if name not in absent][-1]
    with failed('--connect_timeout_secs=1') as error:
        result(member.join(SOON))
    missing = [name for name in cluster.relays if str(cluster.task(name)) in str(error.value)]
    assert missing == [*absent]
    # A task that answers and does not join is named, too.
    for name in absent:
        cluster.start(name)
        await_answer(member.rendezvous, cluster.task(name))
    with failed('--connect_timeout_secs=1', cluster.task('worker 0')) as error:
        result(member.join(SOON))
    assert str(member.rendezvous.cluster.own_task) not in str(error.value)


def test_the_exit_of_a_task_is_known_until_a_new_process_takes_its_place(make_cluster):
    cluster = make_cluster()
    members = cluster.start_all()
    rendezvous, task = members['worker 0'].rendezvous, cluster.task('worker 1')
    members['worker 1'].rendezvous.record_exit(1, 'no space left')
    entries = rendezvous.entries() or {}
    # Its process may still answer.
    for incarnation in (None, members['worker 1'].incarnation):
        ends = rendezvous.exits(entries, {**rendezvous.incarnations(), task: incarnation})
        assert ends[task] == (1, 'no space left')
    cluster.start('worker 1')
    assert task not in rendezvous.exits(entries, rendezvous.incarnations())


@pytest.mark.parametrize('num_ps', [0, 1])
def test_the_task_with_the_store_stays_until_the_others_have_left(num_ps, make_cluster):
    cluster = make_cluster(num_ps, 3 - num_ps)
    members = cluster.start_all()
    (_, keeper), (_, leaving), (lost, _) = members.items()
    keeper.rendezvous.record_exit(0)
    leaving.rendezvous.record_exit(0)
    result(begin(leaving.rendezvous.wait_for_other_tasks))
    staying = begin(keeper.rendezvous.wait_for_other_tasks)
    assert_waits(staying)
    cluster.stop(lost)
    result(staying)


def serving_alone(servers: dict[str, list[str]]) -> str:
    """Starts a server that is worker 0 of its own cluster; returns its address."""
    spec = tf.train.ClusterSpec({**servers, 'worker': ['127.0.0.1:0']})
    return tf.train.Server(spec, job_name='worker', task_index=0).target.removeprefix('grpc://')


@pytest.mark.parametrize('is_late', [False, True])
def test_a_process_with_other_settings_is_refused_and_the_cluster_goes_on(is_late, make_cluster):
    cluster = make_cluster(2, is_synchronous=False)
    members = cluster.start_all()
    (generation, _) = join_all(members)
    if is_late:
        cluster.stop('worker 1')
        cluster.start('worker 1')
        settings = {'worker_hosts': 'a:1'}
        foreign_cluster = cluster.cluster('worker 1')
        foreign = Rendezvous(foreign_cluster, is_synchronous=False, settings=settings)
    else:
        # Its flags name no other worker.
        ps_hosts = tuple(cluster.task(name).host for name in ('ps 0', 'ps 1'))
        foreign_cluster = Cluster(
            ps_hosts, (serving_alone({'ps': list(ps_hosts)}),), 'worker', 0, 'the flags'
        )
        foreign = Rendezvous(foreign_cluster, is_synchronous=True, settings={})
    with refused(str(foreign.cluster.own_task), '--worker_hosts'):
        foreign.join(NO_RESUME_POINT, PATIENT)
    # Its exit does not count as the exit of a worker.
    foreign.record_exit(2, 'refused')
    chief = members['worker 0'].rendezvous
    incarnations, entries = chief.incarnations(), chief.entries() or {}
    assert not chief.exits(entries, incarnations)
    chief.compare_settings(entries, incarnations)
    assert result(members['worker 0'].join()) == generation


@pytest.mark.parametrize('joins_first', [False, True])
def test_a_process_at_another_address_than_its_task_is_refused_and_the_cluster_goes_on(
    joins_first, make_cluster
):
    cluster, name = make_cluster(), 'worker 1'
    # Its flags name a task of this cluster, and it listens at another address.
    impostor = Rendezvous(cluster.cluster(name), is_synchronous=True, settings={})
    impostor._own_server = Task('worker', 0, serving_alone({}))
    joining = None if joins_first else begin(impostor.join, NO_RESUME_POINT, PATIENT)
    if joining:
        assert_waits(joining)
    members = cluster.start_all()
    (generation, _) = join_all(members) if joins_first else (None, None)
    fact = f"{name}'s address {cluster.task(name).host} belongs to another process"
    with refused(fact, '--task_index'):
        result(joining or begin(impostor.join, NO_RESUME_POINT, PATIENT))
    impostor.record_exit(2, 'refused')
    impostor.wait_for_other_tasks(all_will_end=True)
    chief = members['worker 0'].rendezvous
    entries = chief.entries() or {}
    assert not chief.exits(entries, chief.incarnations())
    chief.compare_settings(entries, chief.incarnations())
    assert generation in (None, *join_all(members))


def test_a_worker_that_took_all_steps_and_comes_back_belongs_to_the_next_training(make_cluster):
    cluster = make_cluster(is_synchronous=False)
    members = cluster.start_all()
    join_all(members)
    members['worker 1'].rendezvous.record_exit(0)
    with failed():
        result(cluster.start('worker 1').join(SOON))


# ---- the key-value store -------------------------------------------------------------------------


def test_all_tasks_read_what_one_has_written_until_the_task_that_keeps_it_is_lost(make_cluster):
    cluster = make_cluster()
    rendezvous = cluster.start_all()['worker 0'].rendezvous
    stores = [KeyValueStore(cluster.task('ps 0'), timeout_secs=1) for _ in range(3)]
    assert stores[1].get_all() == {}
    stores[1].put('großer Name', {'steps': [1, 2.5, None], 'is_done': False})
    stores[2].put('other', 'first')
    stores[2].put('other', 'second')
    expected = {'großer Name': {'steps': [1, 2.5, None], 'is_done': False}, 'other': 'second'}
    assert [store.get_all() for store in stores] == [expected] * 3
    assert rendezvous.entries() == expected
    cluster.stop('ps 0')
    assert rendezvous.entries() is None
    with pytest.raises(tf.errors.OpError):
        stores[0].get_all()
    cluster.start('ps 0')
    with pytest.raises(tf.errors.OpError):
        stores[0].get_all()
    assert KeyValueStore(cluster.task('ps 0')).get_all() == {}
    deadline = time.monotonic() + DEADLINE_SECS
    while (entries := rendezvous.entries()) is None:
        assert time.monotonic() < deadline
        time.sleep(POLL_SECS)
    assert entries == {}
