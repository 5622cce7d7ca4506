"""deploy/: the Dockerfile fits the program, and the manifests fit the operators of Kubeflow and the
flags.
"""

import importlib
import json
import re
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.documents import split_line
from tests.support.programs import ROOT
from tf_cnn.cluster.topology import Cluster
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import parse_argv

pytestmark = pytest.mark.unit

DEPLOY = ROOT / 'deploy'


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def job_in(name: str) -> dict[str, Any]:
    """Returns the object of a manifest that starts pods."""
    [job] = [item for item in load(name) if item['kind'] != 'PersistentVolumeClaim']
    return job


def container_in(spec: dict[str, Any]) -> dict[str, Any]:
    [container] = spec['template']['spec']['containers']
    return container


def params_of(container: dict[str, Any], index: int = 0) -> Params:
    """Returns the flags of the program in a container of the pod with this index."""
    words = ' '.join([*container['command'], *container['args']])
    argv = split_line(words.replace('$(JOB_COMPLETION_INDEX)', str(index)))
    assert argv
    parsed = parse_argv(argv)
    assert not parsed.warnings
    return parsed.params


def mistakes_of(model: str, document: dict[str, Any]) -> list[str]:
    """Returns the fields and values that a published model does not have; fails if it lacks one
    that it must have.
    """
    published = getattr(importlib.import_module('kubeflow_trainer_api.models'), model, None)
    if published:
        return [*lost(document, published.from_dict(document).to_dict(), model)]
    client = importlib.import_module('kubeflow.training').ApiClient()
    item = client.deserialize(SimpleNamespace(data=json.dumps(document)), model)
    return [*lost(document, client.sanitize_for_serialization(item), model)]


def lost(document: Any, copy: Any, where: str) -> Iterator[str]:
    """Yields the places of values in a document that its copy lacks."""
    if isinstance(document, list):
        document = dict(enumerate(document))
        copy = dict(enumerate(copy)) if isinstance(copy, list) else None
    if isinstance(document, dict):
        if not isinstance(copy, dict):
            yield where
            return
        for key, value in document.items():
            yield from lost(value, copy.get(key), f'{where}.{key}')
    # A quantity may be a number.
    elif str(copy) != str(document):
        yield where


@pytest.mark.parametrize('name', sorted(path.name for path in DEPLOY.glob('*.yaml')))
def test_each_manifest_fits_the_published_models(name):
    # The models of kubeflow-trainer-api and kubeflow-training, which are made from the published
    # schemas.
    published = {
        'Job': 'IoK8sApiBatchV1Job',
        'JobSet': 'JobsetV1alpha2JobSet',
        'PersistentVolumeClaim': 'IoK8sApiCoreV1PersistentVolumeClaim',
        'TFJob': 'KubeflowOrgV1TFJob',
    }
    # No Python models of MPIJob v2beta1 are published. It has the replicas and policies of TFJob.
    mpijob_fields = {
        'slotsPerWorker',
        'runLauncherAsWorker',
        'runPolicy',
        'mpiReplicaSpecs',
        'sshAuthMountPath',
        'launcherCreationPolicy',
        'mpiImplementation',
    }
    for document in load(name):
        if document['kind'] != 'MPIJob':
            assert mistakes_of(published[document['kind']], document) == []
            continue
        spec = document['spec']
        assert document['apiVersion'] == 'kubeflow.org/v2beta1'
        assert spec.keys() <= mpijob_fields
        assert mistakes_of('KubeflowOrgV1RunPolicy', spec['runPolicy']) == []
        for replica in spec['mpiReplicaSpecs'].values():
            assert mistakes_of('KubeflowOrgV1ReplicaSpec', replica) == []


@pytest.mark.parametrize(('name', 'num_ps'), [('tfjob.yaml', 2), ('tfjob-collective.yaml', 0)])
def test_the_tfjobs_are_the_clusters_that_the_operator_describes(name, num_ps, monkeypatch):
    job = job_in(name)
    replicas = {kind.lower(): spec for kind, spec in job['spec']['tfReplicaSpecs'].items()}
    title = job['metadata']['name']
    hosts = {
        kind: [f'{title}-{kind}-{index}.default.svc:2222' for index in range(spec['replicas'])]
        for kind, spec in replicas.items()
    }
    roles = []
    for kind in hosts:
        container = container_in(replicas[kind])
        assert container['name'] == 'tensorflow', 'the operator sets TF_CONFIG in this one only'
        for index in range(len(hosts[kind])):
            task = {'type': kind, 'index': index}
            config = json.dumps({'cluster': hosts, 'task': task, 'environment': 'cloud'})
            monkeypatch.setenv('TF_CONFIG', config)
            cluster = find_cluster(params_of(container), {'TF_CONFIG': config})
            assert cluster
            roles.append((cluster.job, cluster.index))
    expected = [('ps', index) for index in range(num_ps)]
    assert sorted(roles) == expected + [('worker', index) for index in range(4)]


@pytest.mark.parametrize(('name', 'num_tasks'), [('jobset.yaml', 3), ('jobset-collective.yaml', 4)])
def test_the_pods_of_a_jobset_are_one_cluster_under_their_names(name, num_tasks):
    job = job_in(name)
    title = job['metadata']['name']
    clusters: list[Cluster] = []
    for replicated in job['spec']['replicatedJobs']:
        spec = replicated['template']['spec']
        assert (replicated['replicas'], spec['completionMode']) == (1, 'Indexed')
        assert spec['completions'] == spec['parallelism']
        for index in range(spec['completions']):
            cluster = find_cluster(params_of(container_in(spec), index), {})
            assert cluster
            # JobSet: <jobset>-<replicated job>-<job>-<pod>.<subdomain>, which is by default the
            # name of the JobSet.
            host = f'{title}-{replicated["name"]}-0-{index}.{title}'
            assert cluster.own_task.host.split(':')[0] == host
            clusters.append(cluster)
    assert len({(cluster.ps_hosts, cluster.worker_hosts) for cluster in clusters}) == 1
    assert len(clusters) == len(clusters[0].tasks) == num_tasks


def test_each_container_with_gpus_has_memory_for_nccl():
    for name in sorted(path.name for path in DEPLOY.glob('*.yaml')):
        for pod in pods_in(job_in(name)):
            [container] = pod['containers']
            volumes = {volume['name']: volume for volume in pod.get('volumes', ())}
            shared = [
                volumes[mount['name']]['emptyDir']['medium']
                for mount in container.get('volumeMounts', ())
                if mount['mountPath'] == '/dev/shm'
            ]
            has_gpus = 'nvidia.com/gpu' in container['resources']['limits']
            assert shared == ['Memory'] * has_gpus, name
            assert container['image'].endswith(':cuda') is has_gpus


def pods_in(item: Any) -> Iterator[dict[str, Any]]:
    """Yields the specification of each pod in an object of a manifest."""
    if isinstance(item, dict):
        if 'containers' in item:
            yield item
        item = list(item.values())
    for part in item if isinstance(item, list) else ():
        yield from pods_in(part)


def stages() -> dict[str, list[str]]:
    """Returns the instructions of each stage of the Dockerfile, its FROM first, by its name."""
    text = re.sub(r'^#.*\n', '', (DEPLOY / 'Dockerfile').read_text(), flags=re.MULTILINE)
    lines = re.sub(r' *\\\n *', ' ', text).splitlines()
    instructions: dict[str, list[str]] = {}
    for line in filter(None, lines):
        if match := re.fullmatch(r'FROM \S+ AS (\w+)', line):
            name = match[1]
        if line.startswith('FROM') or instructions:
            instructions.setdefault(name, []).append(line)
    return instructions


def test_the_images_have_the_python_that_the_lock_files_are_for():
    [python] = re.findall(r'^ARG PYTHON=(.+)$', (DEPLOY / 'Dockerfile').read_text(), re.MULTILINE)
    for image in ('cpu', 'cuda'):
        lock = (DEPLOY / f'requirements-{image}.txt').read_text()
        assert f'--python-version={python} ' in lock


def test_the_images_copy_only_files_that_exist():
    copies = [
        line.split()[1]
        for lines in stages().values()
        for line in lines
        if line.startswith('COPY') and '--from=' not in line
    ]
    assert len(copies) == 4
    assert [path for path in copies if not (ROOT / path).exists()] == []


def test_every_image_starts_the_command_as_a_user_other_than_root():
    instructions = stages()
    images = {name: lines for name, lines in instructions.items() if name not in ('wheel', 'base')}
    page = (ROOT / 'docs' / 'launchers.md').read_text()
    assert [*images] == re.findall(r'^\| `(\w+)` \| ', page, re.MULTILINE)
    for lines in images.values():
        parent = instructions.get(lines[0].split()[1], [])
        assert 'ENTRYPOINT ["tf_cnn_benchmarks"]' in [*parent, *lines]
        assert [line for line in lines if line.startswith('USER')][-1] == 'USER 1000'


@pytest.mark.parametrize(('image', 'extras'), [('cpu', ()), ('cuda', ('cuda',))])
def test_the_lock_files_have_what_the_program_declares(image, extras):
    lock = (DEPLOY / f'requirements-{image}.txt').read_text()
    assert '://' not in lock
    pin = re.compile(r'^([\w.-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}', re.MULTILINE)
    pins = dict(pin.findall(lock))
    needed = [
        requirement
        for requirement in map(Requirement, metadata.requires('tf_cnn_benchmarks') or [])
        if not requirement.marker
        or any(
            requirement.marker.evaluate({'extra': extra})
            for extra in ('', 'records', 'report', *extras)
        )
    ]
    assert len(needed) >= 9
    for requirement in needed:
        version = Version(pins[requirement.name.lower().removesuffix('-cpu')])
        assert requirement.specifier.contains(version), requirement
    assert any(name.startswith('nvidia-cudnn') for name in pins) is bool(extras)


def test_the_mpijob_starts_a_process_of_horovod_in_each_slot():
    spec = job_in('mpijob.yaml')['spec']
    replicas = spec['mpiReplicaSpecs']
    container = container_in(replicas['Launcher'])
    assert params_of(container).variables.variable_update == 'horovod'
    num_slots = spec['slotsPerWorker'] * replicas['Worker']['replicas']
    assert container['args'][container['args'].index('-np') + 1] == str(num_slots)
