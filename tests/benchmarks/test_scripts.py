"""The scripts of benchmarks/: each has help, they compare pairs of commands, and peers have the
network of this program.
"""

import runpy
import sys
import time
from argparse import Namespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.comparing import compare_pairs
from benchmarks.start_time import run_to_first_step
from models.catalog import read_costs
from models.registry import MODELS
from tests.support.outputs import check_line
from tests.support.programs import ROOT
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.results.collection import collect

pytestmark = pytest.mark.graph


BENCHMARKS = ROOT / 'benchmarks'
SCRIPTS = sorted(
    path for path in BENCHMARKS.rglob('*.py') if "if __name__ == '__main__'" in path.read_text()
)


@pytest.mark.parametrize('path', SCRIPTS, ids=lambda path: path.stem)
def test_a_script_has_help(path, monkeypatch, capsys):
    if path.stem == 'pytorch':
        pytest.importorskip('torch', reason='optional: benchmarks/requirements.txt')
    # This process imports TensorFlow once for all scripts.
    monkeypatch.setattr(sys, 'argv', [str(path), '--help'])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(path), run_name='__main__')
    assert exit_info.value.code == 0
    assert path.name in capsys.readouterr().out


@pytest.mark.parametrize('model', ['resnet50', 'lenet', 'trivial'])
def test_a_network_written_by_hand_has_the_parameters_of_the_model(model):
    from benchmarks.peers.plain_networks import NETWORKS, Layers

    network, facts = NETWORKS[model], MODELS.find_model(model)
    num_classes = DATA_SETS[facts.data_set].num_classes
    assert (network.image_size, network.num_classes) == (facts.image_size, num_classes)
    shape = [2, facts.image_size, facts.image_size, 3]
    with tf.Graph().as_default():
        layers = Layers(is_training=True)
        logits = network.build(layers, tf.placeholder(tf.bfloat16, shape), num_classes)
    assert (logits.shape.as_list(), logits.dtype) == ([2, num_classes], tf.bfloat16)
    sizes = [
        int(np.prod(variable.shape.as_list())) for variable in (*layers.kernels, *layers.vectors)
    ]
    parameters, _ = read_costs()[model, facts.data_set, facts.image_size]
    assert sum(sizes) == parameters


@pytest.mark.parametrize('model', ['resnet50', 'vit_b16', 'vit_s16'])
def test_a_network_of_pytorch_has_as_many_parameters_as_the_model(model):
    pytest.importorskip('torch', reason='optional: benchmarks/requirements.txt')
    from benchmarks.peers.pytorch_networks import NETWORKS

    parameters, _ = read_costs()[model, 'imagenet', 224]
    assert sum(parameter.numel() for parameter in NETWORKS[model]().parameters()) == parameters


@pytest.mark.usefixtures('forget_models')
def test_the_articles_network_has_the_parameters_of_its_tutorial():
    from models.counting import model_cost
    from models.registry import load_model_file

    load_model_file(str(BENCHMARKS / 'mnist_network.py'))
    facts = MODELS.find_model('mnist_network')
    assert facts.image_size == 28
    # Two convolutions of 5x5, two dense layers, with biases.
    assert model_cost(facts)[0] == 832 + 51_264 + 3_212_288 + 10_250


def test_each_pair_is_compared_also_after_one_that_fails(tmp_path, capsys):
    commands = {
        name: ['echo', f'total images/sec: {rate}'] for name, rate in (('a', 10), ('b', 25))
    }
    commands['a failure'] = ['false']
    args = Namespace(rounds=3, output=tmp_path)
    assert compare_pairs(commands, [('a failure', 'a'), ('b', 'a')], args) == 1
    captured = capsys.readouterr()
    assert 'b (B) / a (A)' in captured.out
    assert 'ratio 2.500' in captured.out
    (error,) = [line for line in captured.err.splitlines() if 'error: ' in line]
    check_line(error, '--command=false', 'exit code 1')
    runs = collect([str(tmp_path / 'b-a/results/b')]).commands
    assert [run.images_per_second for run in runs] == [25] * 3
    args.rounds = 1
    assert compare_pairs(commands, [('b', 'a'), ('a', 'b')], args) == 2
    check_line(capsys.readouterr().err, '--rounds=1', 'at least 3')


def test_a_command_ends_at_its_first_step():
    start = time.monotonic()
    assert run_to_first_step(['sh', '-c', r'printf "1\timages/sec: 5\n"; exec sleep 60']) == 0
    assert time.monotonic() - start < 30
    assert run_to_first_step(['sh', '-c', 'echo Step; exit 3']) == 3
    assert run_to_first_step(['true']) == 1
