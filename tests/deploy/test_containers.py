"""deploy/: the Dockerfile fits the program, and the manifests fit the published schemas and the
flags.
"""

import importlib
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.documents import split_line
from tests.support.programs import ROOT
from tf_cnn.cli.compare import DECLARATION
from tf_cnn.cluster.topology import Cluster
from tf_cnn.plan.discovery import find_cluster
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.results.ratios import MIN_RUNS

pytestmark = pytest.mark.unit

DEPLOY = ROOT / 'deploy'
MANIFESTS = sorted(path.name for path in DEPLOY.glob('*.yaml'))
# Resources of Kubernetes, with the API that has them in the models of kubeflow-trainer-api.
KUBERNETES = {'Job': 'BatchV1', 'PersistentVolumeClaim': 'CoreV1'}


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def job_in(name: str) -> dict[str, Any]:
    """Returns the object of a manifest that has pods."""
    [job] = [item for item in load(name) if [*pods_in(item)]]
    return job


def params_of(container: dict[str, Any], index: int = 0) -> Params:
    """Returns the flags of the program in a container of the pod with this index."""
    words = ' '.join([*container['command'], *container['args']])
    argv = split_line(words.replace('$(JOB_COMPLETION_INDEX)', str(index)))
    assert argv
    parsed = parse_argv(argv)
    assert not parsed.warnings
    return parsed.params


def mistakes_of(model: str, document: dict[str, Any]) -> list[str]:
    """Returns the fields and values that a published model of Kubernetes does not have; fails if it
    lacks one that it must have.
    """
    published = getattr(importlib.import_module('kubeflow_trainer_api.models'), f'IoK8sApi{model}')
    return [*lost(document, published.from_dict(document).to_dict(), model)]


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


@pytest.mark.parametrize('name', MANIFESTS)
def test_each_manifest_fits_the_published_schemas(name):
    schemas = yaml.safe_load((ROOT / 'tests' / 'data' / 'custom_resources.yaml').read_text())
    for document in load(name):
        kind = document['kind']
        if kind in KUBERNETES:
            assert mistakes_of(f'{KUBERNETES[kind]}{kind}', document) == []
            continue
        jsonschema.validate(document, schemas[kind])
        for pod in pods_in(document):
            assert mistakes_of('CoreV1PodSpec', pod) == []


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
            [container] = spec['template']['spec']['containers']
            cluster = find_cluster(params_of(container, index), {})
            assert cluster
            # JobSet: <jobset>-<replicated job>-<job>-<pod>.<subdomain>, which is by default the
            # name of the JobSet.
            host = f'{title}-{replicated["name"]}-0-{index}.{title}'
            assert cluster.own_task.host.split(':')[0] == host
            clusters.append(cluster)
    assert len({(cluster.ps_hosts, cluster.worker_hosts) for cluster in clusters}) == 1
    assert len(clusters) == len(clusters[0].tasks) == num_tasks


@pytest.mark.parametrize('name', ['jobset-each-node.yaml', 'trainjob-each-node.yaml'])
def test_an_acceptance_runs_the_same_on_each_node_and_compares_the_nodes(name):
    nodes, compare = pods_in(job_in(name))
    [runs], [table] = nodes['containers'], compare['containers']
    # A TrainJob has the flags of its runtime's container, which Trainer finds by these names.
    for job in (item for item in load(name) if item['kind'] == 'TrainJob'):
        runtime = job_in(name)
        assert job['spec']['runtimeRef']['name'] == runtime['metadata']['name']
        [replicated] = [
            replicated
            for replicated in runtime['spec']['template']['spec']['replicatedJobs']
            if replicated['template'].get('metadata')
        ]
        assert replicated['name'] == runs['name'] == 'node'
        runs = {**runs, 'args': job['spec']['trainer']['args']}
    params = params_of(runs)
    assert params.results.repeat >= MIN_RUNS
    assert params.results.result_file == '/results/$(NODE_NAME)/{run}.json'
    assert runs['env'] == [
        {'name': 'NODE_NAME', 'valueFrom': {'fieldRef': {'fieldPath': 'spec.nodeName'}}}
    ]
    folders = [
        mount['mountPath']
        for container in (runs, table)
        for mount in container['volumeMounts']
        if mount['name'] == 'acceptance'
    ]
    assert folders == ['/results', '/results']
    assert table['args'][0] == 'compare'
    assert DECLARATION.parse(table['args'][1:]).positional == ('/results',)


def test_each_container_with_gpus_has_memory_for_nccl():
    for name in MANIFESTS:
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
