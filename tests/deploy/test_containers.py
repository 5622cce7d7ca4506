"""deploy/: the Dockerfile fits the program, and the manifests fit the operators of Kubeflow and the flags."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import smaller

from cluster.discovery import find_cluster
from params import Params, parse_argv

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / 'deploy'
DOCKERFILE = (DEPLOY / 'Dockerfile').read_text()
MANIFESTS = sorted(path.name for path in DEPLOY.glob('*.yaml'))


def load(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip('yaml', reason='it reads the manifests; the dev extra installs it')
    job: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return job


def replicas_of(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    specs: dict[str, dict[str, Any]] = job['spec'].get('tfReplicaSpecs') or job['spec']['mpiReplicaSpecs']
    return specs


def settings_of(container: dict[str, Any]) -> Params | None:
    """The flags of the program in a container; None if it runs something else."""
    line = smaller.split(' '.join([*container['command'], *container['args']]))
    if line is None:
        return None
    parsed = parse_argv(line.argv)
    assert not parsed.warnings
    return parsed.params


@pytest.mark.parametrize('name', MANIFESTS)
def test_each_manifest_fits_the_resource_definition(name: str) -> None:
    jsonschema = pytest.importorskip('jsonschema', reason='it checks the manifests; the dev extra installs it')
    schema = json.loads(Path(__file__).with_name('jobs.schema.json').read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(load(name))] == []
    spoilt = load(name)
    next(iter(replicas_of(spoilt).values()))['replica'] = 1
    assert not validator.is_valid(spoilt)


def test_the_tfjobs_are_the_clusters_that_the_operator_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, num_ps in (('tfjob.yaml', 2), ('tfjob-collective.yaml', 0)):
        job = load(name)
        title = job['metadata']['name']
        hosts = {
            kind.lower(): [f'{title}-{kind.lower()}-{index}.default.svc:2222' for index in range(spec['replicas'])]
            for kind, spec in replicas_of(job).items()
        }
        roles = []
        for kind, spec in replicas_of(job).items():
            (container,) = spec['template']['spec']['containers']
            assert container['name'] == 'tensorflow', 'the operator sets TF_CONFIG in this container only'
            params = settings_of(container)
            assert params
            for index in range(spec['replicas']):
                task = {'type': kind.lower(), 'index': index}
                config = json.dumps({'cluster': hosts, 'task': task, 'environment': 'cloud'})
                monkeypatch.setenv('TF_CONFIG', config)
                cluster = find_cluster(params, {'TF_CONFIG': config})
                assert cluster
                roles.append((cluster.job, cluster.index))
        assert sorted(roles) == [*(('ps', i) for i in range(num_ps)), *(('worker', i) for i in range(4))]


@pytest.mark.parametrize('name', MANIFESTS)
def test_the_image_of_a_job_is_a_target_that_its_devices_need(name: str) -> None:
    for spec in replicas_of(load(name)).values():
        for container in spec['template']['spec']['containers']:
            assert container['image'].rpartition(':')[2] == ('horovod' if name == 'mpijob.yaml' else 'cuda')


def test_the_mpijob_starts_a_process_of_horovod_in_each_slot() -> None:
    job = load('mpijob.yaml')
    launcher, worker = (replicas_of(job)[kind]['template']['spec'] for kind in ('Launcher', 'Worker'))
    (container,) = launcher['containers']
    params = settings_of(container)
    assert params
    assert params.variable_update == 'horovod'
    slots = job['spec']['slotsPerWorker'] * replicas_of(job)['Worker']['replicas']
    assert container['args'][container['args'].index('-np') + 1] == str(slots)
    # sshd runs as the user of the image, from the files that the Dockerfile makes for it.
    assert settings_of(worker['containers'][0]) is None
    assert worker['securityContext'] == launcher['securityContext'] == {'runAsNonRoot': True, 'runAsUser': 1000}
    assert '--uid=1000 benchmark' in DOCKERFILE
    assert worker['containers'][0]['args'][-1] == '/home/benchmark/.sshd_config'
    assert 'WORKDIR /home/benchmark' in DOCKERFILE
    assert '> .sshd_config' in DOCKERFILE
    assert job['spec']['sshAuthMountPath'] == '/home/benchmark/.ssh'
    assert f'HostKey {job["spec"]["sshAuthMountPath"]}/id_rsa' in DOCKERFILE


def test_the_images_run_the_command_and_not_as_root() -> None:
    stages = re.split(r'^FROM ', DOCKERFILE, flags=re.MULTILINE)[1:]
    names = [re.match(r'\S+ AS (\w+)', stage)[1] for stage in stages]  # type: ignore[index]
    assert names == ['wheel', 'base', 'cpu', 'cuda', 'horovod']
    assert 'ENTRYPOINT ["tf_cnn_benchmarks"]' in stages[1]
    for stage in stages[2:]:
        assert re.findall(r'^USER (\S+)$', stage, flags=re.MULTILINE)[-1] == '1000'
    extras = {name for group in re.findall(r'\.whl\)\[(.+?)\]', DOCKERFILE) for name in group.split(',')}
    known = set(re.findall(r"^        '(\w+)': ", (ROOT / 'setup.py').read_text(), flags=re.MULTILINE))
    assert extras == {'cuda', 'records', 'report'} <= known


def test_what_is_sent_to_docker_is_what_the_wheel_is_made_of() -> None:
    lines = (DEPLOY / 'Dockerfile.dockerignore').read_text().splitlines()
    kept = [line.removeprefix('!') for line in lines if line.startswith('!')]
    assert '*' in lines
    at_the_top = {path.name for path in ROOT.iterdir() if any(fnmatch(path.name, pattern) for pattern in kept)}
    needed = {path.parent.name for path in ROOT.glob('*/__init__.py')} - {'benchmarks'}
    needed |= {path.name for path in ROOT.glob('*.py')} | {'LICENSE', 'README.md', 'pyproject.toml'}
    assert at_the_top == needed
