"""Processes of a cluster compare the flags that they need in common."""

import dataclasses

import pytest

from cluster.agreement import find_difference, settings_of
from cluster.topology import Cluster
from params import make_params
from params.table import SPECS, flags_to_agree_on
from tests.support.outputs import check_line

pytestmark = pytest.mark.unit

CLUSTER = Cluster(('a:1',), ('a:2', 'a:3'), 'worker', 0, 'the flags')


def test_the_first_difference_names_the_flag_both_values_and_both_tasks() -> None:
    same = {'num_batches': 100, 'model': 'lenet'}
    assert find_difference({}) is None
    assert find_difference({'worker 0': same, 'worker 1': dict(same)}) is None
    line = find_difference({'worker 0': same, 'worker 1': {**same, 'num_batches': 90}})
    assert line
    check_line(line, '--num_batches=100 in worker 0', '--num_batches=90 in worker 1')
    line = find_difference({'worker 0': {'num_epochs': None}, 'worker 1': {'num_epochs': 1.5}})
    assert line
    check_line(line, 'no --num_epochs in worker 0', '--num_epochs=1.5 in worker 1')
    line = find_difference({'worker 0': {'training images': 8}, 'worker 1': {'training images': 7}})
    assert line
    check_line(line, '8 training images in worker 0', '7 training images in worker 1')


def test_a_server_compares_only_what_it_has() -> None:
    worker = flags_to_agree_on(make_params(model='lenet', num_batches=7), serves=False)
    server = flags_to_agree_on(make_params(), serves=True)
    assert find_difference({'ps 0': server, 'worker 0': worker}) is None
    apart = flags_to_agree_on(make_params(cross_replica_sync=False), serves=True)
    assert find_difference({'ps 0': apart, 'worker 0': worker})


def test_hosts_are_compared_too() -> None:
    flags = flags_to_agree_on(make_params(), serves=False)
    longer = dataclasses.replace(CLUSTER, worker_hosts=(*CLUSTER.worker_hosts, 'b:1'))
    line = find_difference({'worker 0': settings_of(CLUSTER, flags), 'worker 1': settings_of(longer, flags)})
    assert line
    check_line(line, '--worker_hosts=a:2,a:3', '--worker_hosts=a:2,a:3,b:1')


def test_what_concerns_one_process_may_differ() -> None:
    compared = flags_to_agree_on(make_params(), serves=False)
    assert {'model', 'batch_size', 'num_gpus', 'num_batches', 'optimizer', 'momentum', 'variable_update'} <= set(
        compared
    )
    assert {'precision', 'all_reduce_spec', 'num_eval_batches', 'forward_only'} <= set(compared)
    own = ('job_name', 'task_index', 'train_dir', 'data_dir', 'device', 'num_intra_threads', 'verbose', 'display_every')
    assert not set(own) & set(compared)
    assert set(own) | set(compared) <= set(SPECS)
