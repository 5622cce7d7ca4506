"""The scripts of benchmarks/: each has help, and peers have the network of this program."""

import runpy
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.catalog import read_costs
from models.registry import MODELS
from tests.support.programs import ROOT
from tf_cnn.inputs.data_sets import DATA_SETS

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
