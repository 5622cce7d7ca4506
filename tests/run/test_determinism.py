"""--deterministic: the same seed gives the same losses bit for bit, in one process and in two fresh ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from errors import UsageError
from params import make_params
from params.all_rules import check_run
from params.rules import RunFacts
from tests.run import deterministic_runs
from tests.support.images import write_cifar, write_noise
from tests.support.outputs import check_line, refused

pytestmark = [pytest.mark.graph, pytest.mark.long]

IN_A_CLUSTER = RunFacts(alone=False, residual=False)


@pytest.mark.parametrize('modes', ['few', pytest.param('all', marks=pytest.mark.all_modes)])
def test_two_processes_compute_the_same_losses_bit_for_bit(tmp_path: Path, modes: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, [64, 32, 32, 3], np.uint8)
    write_cifar(tmp_path / 'cifar', images, np.arange(64) % 10)
    (tmp_path / 'records').mkdir()
    write_noise(tmp_path / 'records', 12)
    script = Path(deterministic_runs.__file__)
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(script.parents[2]), *sys.path])}
    processes = [
        subprocess.Popen(
            [sys.executable, script, tmp_path, modes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        for _ in range(2)
    ]
    found = []
    for process in processes:
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err.decode()[-3000:]
        found.append(json.loads(out))
    assert found[0] == found[1]
    (first,) = {tuple(found[0][row]) for row in (str({'model': 'network_of_cifar10', 'num_gpus': 3}), 'again')}
    assert first != tuple(found[0]['another seed'])
    assert all(len(set(losses)) == len(losses) == 4 for row, losses in found[0].items() if row != 'without')
    # TensorFlow keeps it until the process ends.
    for line in found[0]['without']:
        check_line(line, '--deterministic=False', '--deterministic=True')


@pytest.mark.parametrize('mode', ['parameter_server', 'distributed_replicated', 'horovod'])
def test_sums_in_the_order_in_which_they_arrive_are_refused(mode: str) -> None:
    params = make_params(deterministic=True, variable_update=mode)
    with refused('--deterministic', f'--variable_update={mode}', '--variable_update=collective_all_reduce'):
        check_run(params, IN_A_CLUSTER)


def test_a_cluster_that_sums_in_one_order_is_deterministic() -> None:
    for mode in ('collective_all_reduce', 'distributed_all_reduce'):
        check_run(make_params(deterministic=True, variable_update=mode), IN_A_CLUSTER)
    # Nothing is summed.
    check_run(make_params(deterministic=True, forward_only=True), IN_A_CLUSTER)
    with pytest.raises(UsageError):
        check_run(make_params(deterministic=True), IN_A_CLUSTER)
