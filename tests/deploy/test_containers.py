"""deploy/: the Dockerfile fits the program, and the manifests fit the operators of Kubeflow and the
flags.
"""

import importlib
import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.documents import split_line
from tf_cnn.cluster.discovery import find_cluster
from tf_cnn.run.params import Params
from tf_cnn.run.parsing import parse_argv

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / 'deploy'
MANIFESTS = sorted(path.name for path in DEPLOY.glob('*.yaml'))
# The models of kubeflow-trainer-api and kubeflow-training, which are made from the published
# schemas.
PUBLISHED = {
    'Job': 'IoK8sApiBatchV1Job',
    'JobSet': 'JobsetV1alpha2JobSet',
    'PersistentVolumeClaim': 'IoK8sApiCoreV1PersistentVolumeClaim',
    'TFJob': 'KubeflowOrgV1TFJob',
}
# Of MPIJob v2beta1 no models are published for Python; replicas and policies are those of TFJob.
MPIJOB_FIELDS = {
    *('slotsPerWorker', 'runLauncherAsWorker', 'runPolicy', 'mpiReplicaSpecs', 'sshAuthMountPath'),
    *('launcherCreationPolicy', 'mpiImplementation'),
}


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def job_in(name: str) -> dict[str, Any]:
    """The object of a manifest that starts pods."""
    (job,) = (found for found in load(name) if found['kind'] != 'PersistentVolumeClaim')
    return job


def replicas_of(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    specs: dict[str, dict[str, Any]] = (
        job['spec'].get('tfReplicaSpecs') or job['spec']['mpiReplicaSpecs']
    )
    return specs


def settings_of(container: dict[str, Any]) -> Params | None:
    """The flags of the program in a container; None if it runs something else."""
    words = ' '.join([*container['command'], *container['args']])
    line = split_line(words.replace('$(JOB_COMPLETION_INDEX)', '0'))
    if line is None:
        return None
    parsed = parse_argv(line.argv)
    assert not parsed.warnings
    return parsed.params


def mistakes_of(model: str, document: dict[str, Any]) -> list[str]:
    """Returns the fields and values that a published model does not have; fails if it lacks one
    that it must have.
    """
    found = getattr(importlib.import_module('kubeflow_trainer_api.models'), model, None)
    if found:
        return [*lost(document, found.from_dict(document).to_dict(), model)]
    client = importlib.import_module('kubeflow.training').ApiClient()
    known = client.deserialize(SimpleNamespace(data=json.dumps(document)), model)
    return [*lost(document, client.sanitize_for_serialization(known), model)]


def lost(given: Any, kept: Any, where: str) -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            yield from (
                lost(value, kept.get(key), f'{where}.{key}') if isinstance(kept, dict) else [where]
            )
    elif isinstance(given, list):
        for value, other in zip(
            given, kept if isinstance(kept, list) else [None] * len(given), strict=True
        ):
            yield from lost(value, other, where)
    # A quantity may be a number.
    elif str(kept) != str(given):
        yield where


@pytest.mark.parametrize('name', MANIFESTS)
def test_each_manifest_fits_the_published_models(name: str) -> None:
    for document in load(name):
        if document['kind'] != 'MPIJob':
            assert mistakes_of(PUBLISHED[document['kind']], document) == []
            continue
        spec = document['spec']
        assert document['apiVersion'] == 'kubeflow.org/v2beta1'
        assert spec.keys() <= MPIJOB_FIELDS
        assert mistakes_of('KubeflowOrgV1RunPolicy', spec['runPolicy']) == []
        for replica in spec['mpiReplicaSpecs'].values():
            assert mistakes_of('KubeflowOrgV1ReplicaSpec', replica) == []


def test_the_tfjobs_are_the_clusters_that_the_operator_describes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, num_ps in (('tfjob.yaml', 2), ('tfjob-collective.yaml', 0)):
        job = job_in(name)
        title = job['metadata']['name']
        hosts = {
            kind.lower(): [
                f'{title}-{kind.lower()}-{index}.default.svc:2222'
                for index in range(spec['replicas'])
            ]
            for kind, spec in replicas_of(job).items()
        }
        roles = []
        for kind, spec in replicas_of(job).items():
            (container,) = spec['template']['spec']['containers']
            assert container['name'] == 'tensorflow', (
                'the operator sets TF_CONFIG in this container only'
            )
            params = settings_of(container)
            assert params
            for index in range(spec['replicas']):
                task = {'type': kind.lower(), 'index': index}
                config = json.dumps({'cluster': hosts, 'task': task, 'environment': 'cloud'})
                monkeypatch.setenv('TF_CONFIG', config)
                cluster = find_cluster(params, {'TF_CONFIG': config})
                assert cluster
                roles.append((cluster.job, cluster.index))
        assert sorted(roles) == [
            *(('ps', i) for i in range(num_ps)),
            *(('worker', i) for i in range(4)),
        ]


def test_the_pods_of_the_jobset_are_one_cluster_under_their_names() -> None:
    job = job_in('jobset.yaml')
    title = job['metadata']['name']
    found = []
    for replicated in job['spec']['replicatedJobs']:
        spec = replicated['template']['spec']
        assert (replicated['replicas'], spec['completionMode']) == (1, 'Indexed')
        assert spec['completions'] == spec['parallelism']
        (container,) = spec['template']['spec']['containers']
        for index in range(spec['completions']):
            args = [arg.replace('$(JOB_COMPLETION_INDEX)', str(index)) for arg in container['args']]
            params = settings_of({**container, 'args': args})
            assert params
            cluster = find_cluster(params, {})
            assert cluster
            # JobSet: <jobset>-<replicated job>-<job>-<pod>.<subdomain>, which is by default the
            # name of the JobSet.
            assert (
                cluster.own_task.host.split(':')[0]
                == f'{title}-{replicated["name"]}-0-{index}.{title}'
            )
            found.append(cluster)
    assert len({(cluster.ps_hosts, cluster.worker_hosts) for cluster in found}) == 1
    assert len(found) == len(found[0].tasks) == 3


@pytest.mark.parametrize(('image', 'extras'), [('cpu', ()), ('cuda', ('cuda',))])
def test_the_lock_files_have_what_the_program_declares(image: str, extras: tuple[str, ...]) -> None:
    lock = (DEPLOY / f'requirements-{image}.txt').read_text()
    pins = dict(
        re.findall(r'^([\w.-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}', lock, flags=re.MULTILINE)
    )
    assert '://' not in lock
    declared = [Requirement(line) for line in metadata.requires('tf_cnn_benchmarks') or []]
    wanted = ('', 'records', 'report', *extras)
    needed = [
        r
        for r in declared
        if not r.marker or any(r.marker.evaluate({'extra': extra}) for extra in wanted)
    ]
    assert len(needed) >= 9
    for requirement in needed:
        assert requirement.specifier.contains(
            Version(pins[requirement.name.lower().removesuffix('-cpu')])
        ), requirement
    assert any(name.startswith('nvidia-cudnn') for name in pins) is bool(extras)


def test_the_mpijob_starts_a_process_of_horovod_in_each_slot() -> None:
    job = job_in('mpijob.yaml')
    (container,) = replicas_of(job)['Launcher']['template']['spec']['containers']
    params = settings_of(container)
    assert params
    assert params.variables.variable_update == 'horovod'
    slots = job['spec']['slotsPerWorker'] * replicas_of(job)['Worker']['replicas']
    assert container['args'][container['args'].index('-np') + 1] == str(slots)
