"""Each fact of a run is found out once: nobody looks for the cluster, the folders or the devices a second time."""

import functools
import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from params import make_params, parse_argv
from records.layout import LABELS_FILE
from tests.support.images import write_noise

pytestmark = [pytest.mark.graph, pytest.mark.long]

ROOT = Path(tf_cnn_benchmarks.__file__).parent
NUM_LABELS = 8
SETTINGS: dict[str, Any] = {'model': 'lenet', 'device': 'cpu', 'batch_size': 4}
SHORT: dict[str, Any] = {'num_batches': 2, 'num_warmup_batches': 1}
MODEL_FILE = """\
from models.registry import register_model

register_model('of_a_file', lambda cnn, x, num_classes: cnn.dense(cnn.flatten(x), num_classes, 'logits'))
"""


# Where facts are found, each by one function.
COUNTED = (
    ('cluster.discovery', 'as_evaluator'),
    ('cluster.discovery', 'find_cluster'),
    ('machine.processors', 'processor_facts'),
    ('inputs.data_folder', 'open_folder'),
    ('models.registry', 'load_model_file'),
    ('params.all_rules', 'check_run'),
    ('planning.counts', 'count_steps'),
    ('planning.data', 'find_data'),
    ('planning.counts', 'find_evaluations'),
    ('planning.machine', 'find_surroundings'),
    ('planning.machine', 'find_machine'),
    ('planning.environment', 'check_outputs'),
    ('planning.processes', 'find_processes'),
    ('planning.session', 'describe_session'),
    ('planning.session', 'session_config'),
    ('planning.step', 'describe_step'),
    ('planning.subject', 'find_subject'),
    ('planning.machine', 'place_variables'),
)


class Calls(Counter[str]):
    """How often functions were called, by their names and the arguments that make their facts different ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch
        for module, name in COUNTED:
            self._watch(module, name)
        self._watch('inputs.data_sets', 'find_shards', lambda folder, subset, *more: subset)
        self._watch('training.checkpoint_files', 'find_checkpoint')
        self._watch('training.checkpoint_files', 'latest_checkpoint', lambda folder: Path(folder).name)
        devices = self._counting('list_physical_devices', tf.config.list_physical_devices, lambda kind: kind)
        monkeypatch.setattr(tf.config, 'list_physical_devices', devices)

    def _watch(self, module: str, name: str, key: Callable[..., str] = lambda *args: '') -> None:
        """Counts the calls of a function in whichever module of the project they are made."""
        original = getattr(importlib.import_module(module), name)
        counting = self._counting(name, original, key)
        for user in list(sys.modules.values()):
            if Path(getattr(user, '__file__', None) or '/').is_relative_to(ROOT) and vars(user).get(name) is original:
                self._monkeypatch.setattr(user, name, counting)

    def _counting(self, name: str, original: Callable[..., Any], key: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(original)
        def counting(*args: Any, **more: Any) -> Any:
            self[f'{name} {key(*args)}'.strip()] += 1
            return original(*args, **more)

        return counting


@pytest.fixture(scope='module', params=['imagenet', 'records'])
def data_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards to train and to validate on, as those of ImageNet or as `records` makes them."""
    folder = tmp_path_factory.mktemp(request.param)
    write_noise(folder, 10, NUM_LABELS)
    if request.param == 'records':
        (folder / LABELS_FILE).write_text(''.join(f'class{number}\n' for number in range(NUM_LABELS)))
    return folder


@pytest.fixture(scope='module')
def trained(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run on that data."""
    folder = tmp_path_factory.mktemp('trained') / 'backbone'
    BenchmarkCNN(make_params(**SETTINGS, **SHORT, data_dir=str(data_dir), train_dir=str(folder))).run()
    return folder


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / 'model.py'
    path.write_text(MODEL_FILE)
    return str(path)


# What every run finds out. An ImageNet folder is opened without a look at the shards that are not used.
ALWAYS = ('find_shards validation', 'list_physical_devices GPU', *(name for _, name in COUNTED))


@pytest.mark.usefixtures('forget_models')
def test_training_finds_out_each_fact_once(
    data_dir: Path, trained: Path, model_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    params = make_params(
        **SETTINGS,
        **SHORT,
        data_dir=str(data_dir),
        train_dir=str(tmp_path / 'train'),
        backbone_model_path=str(trained),
        model_file=model_file,
        eval_during_training_every_n_steps=2,
        save_model_steps=1,
        trace_file=str(tmp_path / 'trace'),
        export_saved_model=str(tmp_path / 'model'),
    )
    result = BenchmarkCNN(params).run()
    assert (result.complete, len(result.evaluations)) == (True, 1)
    of_training = ('find_checkpoint', 'find_shards train', 'latest_checkpoint backbone', 'latest_checkpoint train')
    # Once more when the folder is kept for this run, as another one may have saved there meanwhile.
    assert calls == {**dict.fromkeys((*ALWAYS, *of_training), 1), 'latest_checkpoint train': 2}


@pytest.mark.usefixtures('forget_models')
def test_an_evaluation_finds_out_each_fact_once(
    data_dir: Path, trained: Path, model_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    params = make_params(
        **SETTINGS,
        eval=True,
        data_dir=str(data_dir),
        train_dir=str(trained),
        model_file=model_file,
        eval_dir=str(tmp_path / 'eval'),
        export_saved_model=str(tmp_path / 'model'),
    )
    assert len(BenchmarkCNN(params).run().evaluations) == 1
    # What records are there decides on the facts of a folder of `records`.
    of_records = ('find_shards train',) if (data_dir / LABELS_FILE).exists() else ()
    assert calls == dict.fromkeys((*ALWAYS, *of_records, 'latest_checkpoint backbone'), 1)


@pytest.mark.unit
def test_the_settings_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    argv = ['--batch_size=4', '--peer_timeout_secs=9', '--model=mine', f'--model_file={tmp_path}/nowhere.py']
    before = parse_argv(argv)
    assert before.warnings == ()
    for name in ('TF_CONFIG', 'SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE', 'PMIX_RANK'):
        monkeypatch.setenv(name, 'garbage')
    assert parse_argv(argv) == before
    assert make_params(**{name: getattr(before.params, name) for name in before.params.given}) == before.params


class Unread(dict[str, str]):
    """An environment that fails whoever looks into it."""

    def fail(self, *args: object) -> NoReturn:
        raise AssertionError(args)

    __getitem__ = get = __contains__ = __iter__ = keys = items = copy = fail


@pytest.mark.unit
def test_the_settings_are_read_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, 'environ', Unread())
        parsed = parse_argv(['--batch_size=4', '--ps_hosts=a:1', '--worker_hosts=b:1,c:1', '--nocross_replica_sync'])
        params = make_params(batch_size=4, ps_hosts='a:1', worker_hosts='b:1,c:1', cross_replica_sync=False)
    assert parsed.params == params
