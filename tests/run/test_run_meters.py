"""The meters of a run watch the devices of its plan."""

import os
from typing import Any
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from tests.support.machines import use_pynvml
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import Plan, make_plan
from tf_cnn.results.sections import NoiseSection, Phase
from tf_cnn.run.run_meters import RunMeters

pytestmark = pytest.mark.graph


def measure_noise(**flags: Any) -> NoiseSection:
    """Returns the noise of a run without steps, on a machine with two GPUs."""
    devices, memory = [object()] * 2, {'peak': 0}
    experimental = tf.compat.v2.config.experimental
    with (
        mock.patch.object(tf.config, 'list_physical_devices', return_value=devices),
        mock.patch.object(experimental, 'get_memory_info', return_value=memory),
        # The plan sets the variables that TensorFlow reads.
        mock.patch.dict(os.environ),
    ):
        plan = make_plan(make_params(model='trivial', **flags), ProcessEnvironment({}))
        assert isinstance(plan, Plan)
        meters = RunMeters(plan, start_time=0.0)
        meters.begin(Phase.TIMED)
        meters.end()
    return meters.noise


def test_only_a_run_on_gpus_measures_their_noise(tmp_path, monkeypatch):
    use_pynvml(monkeypatch, tmp_path, 2)
    assert measure_noise(device='gpu', num_gpus=2)['gpus_lost'] == 0
    assert not [name for name in measure_noise(device='cpu') if name.startswith('gpu')]
