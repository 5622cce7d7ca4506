"""The chief of a cluster starts from a backbone, profiles its steps, and exports what all have trained."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from params import make_params
from tests.distributed.processes import DEADLINE_SECS, make_cluster

pytestmark = pytest.mark.distributed

SETTINGS = {'model': 'lenet', 'device': 'cpu', 'batch_size': 4, 'init_learning_rate': 0.01}


def weights_in(prefix: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != 'global_step'}


def test_the_chief_starts_from_a_backbone_profiles_and_exports(tmp_path: Path) -> None:
    """Two parameter servers, so that the largest variable is in parts, and 16 bits."""
    backbone, trained, model, profile = (tmp_path / name for name in ('backbone', 'trained', 'model', 'profile'))
    run = {'num_batches': 1, 'num_warmup_batches': 0, 'tf_random_seed': 5}
    BenchmarkCNN(make_params(**SETTINGS, **run, train_dir=str(backbone))).run()
    flags = [
        *(f'--{name}={value}' for name, value in SETTINGS.items()),
        *('--num_batches=3', '--num_warmup_batches=1', '--precision=bf16', '--profile_steps=1,2'),
        *(f'--train_dir={trained}', f'--export_saved_model={model}'),
        *(f'--backbone_model_path={backbone}', f'--profile_dir={profile}'),
    ]
    with make_cluster(flags, tmp_path, num_ps=2, num_workers=2) as processes:
        processes.start()
        assert not processes.still_running(DEADLINE_SECS)
    assert [task.exit_code for task in processes.tasks.values()] == [0] * 4
    # The chief alone reports it, with the numbers of variables that it took and that the model has.
    report = rf'^(?=.*{re.escape(str(backbone))})(?=.*\b8\b.*\b8\b).*$'
    assert [len(re.findall(report, task.err, re.MULTILINE)) for task in processes.of('worker')] == [1, 0]
    start, expected = weights_in(trained / 'model.ckpt-0'), weights_in(backbone / 'model.ckpt-1')
    for name, value in expected.items():
        np.testing.assert_array_equal(start[name], value)
    assert len(list(profile.glob('plugins/profile/*/*.xplane.pb'))) == 1
    loaded = tf.compat.v2.saved_model.load(str(model))
    exported = {name: variable.numpy() for name, variable in loaded.variables_by_name.items()}
    last = weights_in(trained / 'model.ckpt-4')
    assert exported.keys() == last.keys()
    for name, value in last.items():
        np.testing.assert_array_equal(exported[name], value)
        assert np.any(value != start[name])
    images = np.random.default_rng(0).integers(0, 256, [2, 28, 28, 3], np.uint8)
    served = loaded.signatures['serving_default'](images=tf.constant(images))
    assert served['logits'].shape == [2, 1001]
    assert np.ptp(served['logits'].numpy(), axis=0).max() > 0
