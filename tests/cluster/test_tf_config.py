"""TF_CONFIG, as the training operator of Kubeflow sets it, names the cluster and the task of this process."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from cluster.discovery import as_evaluator, find_cluster
from params import Params, make_params
from tests.support.machines import COLLECTIVE, FLAGS, HOSTS, TF_JOB, find, found, replicas, tf_config
from tests.support.outputs import check_line, refused

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ('job', 'index', 'own'),
    [
        ('chief', 0, 'worker 0 (cnn-chief-0.train.svc:2222)'),
        ('worker', 0, 'worker 1 (cnn-worker-0.train.svc:2222)'),
        ('worker', '1', 'worker 2 (cnn-worker-1.train.svc:2222)'),
        ('ps', 0, 'ps 0 (cnn-ps-0.train.svc:2222)'),
    ],
)
def test_in_tf_config_the_chief_is_the_first_worker(job: str, index: int | str, own: str) -> None:
    cluster = found(tf_config(job, index, **TF_JOB))
    assert str(cluster.own) == own
    assert cluster.source == 'TF_CONFIG'
    assert cluster.worker_hosts == (*TF_JOB['chief'], *TF_JOB['worker'])
    assert cluster.ps_hosts == tuple(TF_JOB['ps'])
    # An evaluator beside them changes nothing.
    assert found(tf_config(job, index, **TF_JOB, evaluator=['e:1'])) == cluster


def test_a_master_is_a_chief_and_workers_without_one_begin_at_0() -> None:
    assert found(tf_config('worker', 0, master=['m:1'], worker=['w:1'], ps=['p:1'])).index == 1
    assert found(tf_config('worker', 0, worker=['w:1', 'w:2'], ps=['p:1'])).is_chief


@pytest.mark.parametrize(
    ('flags', 'facts'),
    [
        ({}, ['--variable_update=parameter_server']),
        ({'variable_update': 'distributed_all_reduce', 'controller_host': 'a:1'}, ['--controller_host=']),
    ],
)
def test_a_tf_job_without_ps_is_for_collectives(flags: dict[str, Any], facts: list[str]) -> None:
    environ = tf_config('worker', 1, worker=replicas('worker', 2))
    assert found(environ, **COLLECTIVE).num_ps == 0
    with refused('2 workers', 'TF_CONFIG', '--variable_update=collective_all_reduce', *facts):
        find(environ, **flags)


@pytest.mark.parametrize(
    'environ',
    [
        {'TF_CONFIG': ''},
        {'TF_CONFIG': '{"cluster": {}, "task": {"type": "worker", "index": 0}}'},
        {'TF_CONFIG': '{"cluster": {"worker": []}}'},
        {'TF_CONFIG': '{"task": {"type": "master", "index": "0"}, "environment": "cloud"}'},
        tf_config('chief', 0, chief=['a:1']),
        tf_config('worker', 0, worker=['a:1'], ps=[]),
    ],
)
def test_a_tf_config_of_one_process_is_no_cluster(environ: dict[str, str]) -> None:
    assert find(environ) is None


@pytest.mark.parametrize('text', ['{"cluster": {}}', '{"task": {"type": "ps", "index": 0}}', '{"sparseCluster": [1]}'])
def test_a_tf_config_without_a_cluster_leaves_the_flags_alone(text: str) -> None:
    assert found({'TF_CONFIG': text}, **HOSTS, job_name='ps').source == FLAGS


WORKER_0, PS_0 = (f'"task": {{"type": "{job}", "index": 0}}}}' for job in ('worker', 'ps'))
STATIC = 'enableDynamicWorker: false'


@pytest.mark.parametrize(
    ('text', 'facts'),
    [
        ('{"cluster":', ['JSON', 'column 12']),
        ('[1]', ['JSON']),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "' + '9' * 5000 + '"}}', ['"task"']),
        ('{"cluster": ["a:1"]}', ['"cluster"']),
        ('{"cluster": {"worker": "a:1"}}', ['worker', 'HOST:PORT', STATIC]),
        ('{"cluster": {"worker": {"0": "a:1"}, "ps": ["b:1"]}}', ['worker', STATIC]),
        # With enableDynamicWorker, a ps gets a TF_CONFIG that lists itself alone, and a worker no cluster.
        ('{"cluster": {"worker": {}, "ps": ["b:1"]}, ' + PS_0, ['ps', 'worker', STATIC]),
        ('{"sparseCluster": {"worker": {"0": "a:1"}}, ' + WORKER_0, ['sparseCluster', STATIC]),
        ('{"cluster": {"worker": ["a"]}}', ['cluster', 'worker', "'a'", 'HOST:PORT']),
        ('{' + PS_0, ['ps 0', '"cluster"']),
        ('{"cluster": {}, "task": {"type": "worker", "index": 1}}', ['worker 1', '"cluster"']),
        ('{"Cluster": {"worker": ["a:1", "b:1"]}, ' + WORKER_0, ['"Cluster"']),
        ('{"cluster": {"tpu": ["a:1"]}}', ['tpu', 'chief', 'master', 'worker', 'ps']),
        ('{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}', ['chief', 'a:1', 'b:1']),
        ('{"cluster": {"worker": ["a:1"]}}', ['"task"']),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}', ['"task"']),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', ['worker 1']),
        ('{"cluster": {"worker": ["a:1"]}, ' + PS_0, ['ps 0']),
        ('{"cluster": {"worker": ["a:1", "a:1"], "ps": ["b:1"]}, ' + PS_0, ['worker 0', 'worker 1', 'a:1']),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else '',
)
def test_a_malformed_tf_config_is_refused(text: str, facts: list[str]) -> None:
    with refused('TF_CONFIG') as error:
        find({'TF_CONFIG': text})
    # The example of a valid one, which has every key, says nothing about the fault.
    check_line(re.sub(r'\{.*\}', '', str(error.value)), *facts)


@pytest.mark.parametrize('mode', ['parameter_server', 'distributed_replicated', 'collective_all_reduce'])
def test_an_evaluator_is_in_no_cluster_and_evaluates_until_training_ends(mode: str) -> None:
    environ = tf_config('evaluator', 0, **TF_JOB)
    given: dict[str, Any] = {'train_dir': '/train', 'variable_update': mode}
    training = make_params(eval_during_training_every_n_steps=5, stop_at_top_1_accuracy=0.9, num_epochs=90, **given)
    params = as_evaluator(training, environ)
    # The length of the training is not how much is evaluated.
    assert params.num_epochs is None
    assert (params.eval, params.eval_interval_secs > 0, params.evaluates_in_training) == (True, True, False)
    assert find_cluster(params, environ) is None
    assert as_evaluator(make_params(eval=True, eval_interval_secs=3, **given), environ).eval_interval_secs == 3
    with refused('TF_CONFIG', '--train_dir'):
        as_evaluator(Params(), environ)


@pytest.mark.parametrize('flags', [{'job_name': 'worker', **HOSTS}, HOSTS, {'job_name': 'ps'}])
def test_an_evaluator_cannot_have_the_role_of_another_task(flags: dict[str, Any]) -> None:
    with refused('TF_CONFIG', 'evaluator', *(f'--{name}={value}' for name, value in flags.items())):
        as_evaluator(make_params(train_dir='/train', **flags), tf_config('evaluator', 0, **TF_JOB))


@pytest.mark.parametrize('environ', [{}, tf_config('worker', 0, **TF_JOB), {'TF_CONFIG': '[1]'}, {'TF_CONFIG': '{'}])
def test_only_an_evaluator_has_its_flags_changed(environ: Mapping[str, str]) -> None:
    assert as_evaluator(Params(), environ) == Params()
