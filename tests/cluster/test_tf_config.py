"""TF_CONFIG, as the training operator of Kubeflow sets it, names the cluster and the task of this
process.
"""

import json

import pytest

from tests.support.machines import COLLECTIVE, TF_JOB, cluster_of, find, replicas, tf_config
from tests.support.outputs import refused
from tf_cnn.plan.discovery import evaluator_params, find_cluster
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import make_params

pytestmark = pytest.mark.unit

HOSTS = {'ps_hosts': '10.0.0.1:2222', 'worker_hosts': '10.0.0.2:2222,10.0.0.3:2222'}

EVALUATOR = tf_config('evaluator', 0, **TF_JOB)


@pytest.mark.parametrize(
    ('job', 'index', 'task'),
    [
        ('chief', 0, 'worker 0 (cnn-chief-0.train.svc:2222)'),
        ('worker', 0, 'worker 1 (cnn-worker-0.train.svc:2222)'),
        ('worker', '1', 'worker 2 (cnn-worker-1.train.svc:2222)'),
        ('ps', 0, 'ps 0 (cnn-ps-0.train.svc:2222)'),
    ],
)
def test_in_tf_config_the_chief_is_the_first_worker(job, index, task):
    cluster = cluster_of(tf_config(job, index, **TF_JOB))
    assert (str(cluster.own_task), cluster.source) == (task, 'TF_CONFIG')
    assert cluster.worker_hosts == (*TF_JOB['chief'], *TF_JOB['worker'])
    assert cluster.ps_hosts == tuple(TF_JOB['ps'])
    # An evaluator beside them changes nothing.
    assert cluster_of(tf_config(job, index, **TF_JOB, evaluator=['e:1'])) == cluster


def test_a_protocol_that_tensorflow_no_longer_has_is_refused():
    def with_protocol(name: str) -> dict[str, str]:
        text = tf_config('worker', 0, worker=['w:1', 'w:2'], ps=['p:1'])['TF_CONFIG']
        return {'TF_CONFIG': json.dumps({**json.loads(text), 'rpc_layer': name})}

    assert cluster_of(with_protocol('grpc')).is_chief
    with refused('TF_CONFIG', "rpc_layer is 'grpc+verbs'"):
        find(with_protocol('grpc+verbs'))


def test_a_master_is_a_chief_and_workers_without_one_begin_at_0():
    assert cluster_of(tf_config('worker', 0, master=['m:1'], worker=['w:1'], ps=['p:1'])).index == 1
    assert cluster_of(tf_config('worker', 0, worker=['w:1', 'w:2'], ps=['p:1'])).is_chief


@pytest.mark.parametrize(
    ('flags', 'fact'),
    [
        ({}, '--variable_update=parameter_server'),
        (
            {'variable_update': 'distributed_all_reduce', 'controller_host': 'a:1'},
            '--controller_host=',
        ),
    ],
)
def test_a_tf_job_without_ps_is_for_collectives(flags, fact):
    environ = tf_config('worker', 1, worker=replicas('worker', 2))
    assert cluster_of(environ, **COLLECTIVE).num_ps == 0
    with refused('2 workers', 'TF_CONFIG', '--variable_update=collective_all_reduce', fact):
        find(environ, **flags)


def test_a_tf_config_of_one_process_is_no_cluster():
    for environ in (
        {'TF_CONFIG': ''},
        {'TF_CONFIG': '{"cluster": {}, "task": {"type": "worker", "index": 0}}'},
        {'TF_CONFIG': '{"cluster": {"worker": []}}'},
        {'TF_CONFIG': '{"task": {"type": "master", "index": "0"}, "environment": "cloud"}'},
        tf_config('chief', 0, chief=['a:1']),
        tf_config('worker', 0, worker=['a:1'], ps=[]),
    ):
        assert find(environ) is None, environ


def test_a_malformed_tf_config_is_refused():
    ps_0 = '"task": {"type": "ps", "index": 0}}'
    huge = '9' * 5000
    for text, facts in (
        ('{"cluster":', ''),
        ('[1]', 'object'),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"index": "' + huge + '", "type": "worker"}}',
            '$.task.index',
        ),
        ('{"cluster": {"worker": "a:1"}}', '$.cluster[...], array'),
        # With enableDynamicWorker, a ps gets a TF_CONFIG that lists itself alone, and a worker no
        # cluster.
        ('{"cluster": {"worker": {}, "ps": ["b:1"]}, ' + ps_0, '$.cluster[...], array'),
        ('{"cluster": {"ps": ["b:1"]}, ' + ps_0, 'ps 0, 0 workers'),
        ('{"cluster": {"worker": ["a"]}}', "cluster, worker, 'a', HOST:PORT"),
        ('{' + ps_0, 'ps 0, 0 ps hosts, enableDynamicWorker: false'),
        ('{"cluster": {}, "task": {"type": "worker", "index": 1}}', 'worker 1, 0 worker hosts'),
        ('{"cluster": {"worker": ["a:1"]}}', '"task"'),
        ('{"clusters": {"worker": ["a:1", "b:1"]}}', '"clusters"'),
        ('{"cluster": {"workers": ["a:1", "b:1"]}}', 'workers, unknown'),
        ('{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}', '2 chiefs'),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            'worker 1, 1 worker host',
        ),
        ('{"cluster": {"worker": ["a:1"]}, ' + ps_0, 'ps 0'),
    ):
        with refused('TF_CONFIG', *facts.split(', ')):
            cluster = find({'TF_CONFIG': text})
            pytest.fail(f'{text} makes {cluster}')


@pytest.mark.parametrize(
    'mode', ['parameter_server', 'distributed_replicated', 'collective_all_reduce']
)
def test_an_evaluator_is_in_no_cluster_and_evaluates_until_training_ends(mode):
    training = make_params(
        train_dir='/train',
        variable_update=mode,
        eval_during_training_every_n_steps=5,
        stop_at_top_1_accuracy=0.9,
        num_epochs=90,
    )
    params = evaluator_params(training, EVALUATOR)
    assert find_cluster(params, EVALUATOR) is None
    assert params.evaluation.eval
    assert params.evaluation.eval_interval_secs > 0
    assert not params.evaluates_in_training
    # An evaluation is not as long as the training.
    assert params.run.num_epochs is None


def test_an_evaluator_keeps_its_interval_and_needs_a_train_dir():
    params = make_params(train_dir='/train', eval=True, eval_interval_secs=3)
    assert evaluator_params(params, EVALUATOR).evaluation.eval_interval_secs == 3
    with refused('TF_CONFIG', '--train_dir'):
        evaluator_params(Params(), EVALUATOR)


@pytest.mark.parametrize('flags', [{'job_name': 'worker', **HOSTS}, HOSTS, {'job_name': 'ps'}])
def test_an_evaluator_cannot_have_the_role_of_another_task(flags):
    with refused('TF_CONFIG', 'evaluator', *(f'--{name}={value}' for name, value in flags.items())):
        evaluator_params(make_params(train_dir='/train', **flags), EVALUATOR)
