"""Models are found by name, pattern and data set, and the catalog refuses to hold one twice."""

import pytest

from inputs.data_sets import DATA_SETS
from models.model_facts import ModelFacts, Network
from models.registry import MODELS, Registry
from tests.support.outputs import refused

pytestmark = pytest.mark.unit


def test_every_model_has_facts_for_a_known_data_set() -> None:
    for name in MODELS.list_models():
        facts = MODELS.find_model(name)
        assert facts.name == name
        assert facts.data_set in DATA_SETS
        assert min(facts.image_size, facts.batch_size, facts.learning_rate) > 0
        assert MODELS.find_model(name, facts.data_set) == facts


def test_a_pattern_lists_the_models_that_it_matches() -> None:
    assert MODELS.list_models('resnet50*') == ['resnet50', 'resnet50_v1.5', 'resnet50_v2', 'resnet50_v2.5']
    assert MODELS.list_models('*3') == ['inception3']
    assert MODELS.list_models('ResNet*') == []


def test_an_unknown_model_is_refused_with_the_nearest_names_first() -> None:
    with refused('--model=resnett50', 'models') as error:
        MODELS.find_model('resnett50')
    named = [
        name for name in MODELS.list_models() if name in str(error.value).replace('?', ' ').replace(',', ' ').split()
    ]
    assert 'resnet50' in named
    assert len(named) == 3


def test_an_empty_name_is_refused_and_says_who_lists_them() -> None:
    with refused('--model=', 'models', len(MODELS.list_models())):
        MODELS.find_model('')


def test_a_model_that_is_not_for_the_data_set_is_refused_with_those_it_is_for() -> None:
    with refused('--model=mnist', '--data_name=imagenet', '--data_name=mnist'):
        MODELS.find_model('mnist', 'imagenet')


def test_a_model_may_be_another_network_for_another_data_set() -> None:
    assert MODELS.find_model('alexnet', 'imagenet').network == MODELS.find_model('alexnet').network
    assert MODELS.find_model('alexnet', 'cifar10').network != MODELS.find_model('alexnet').network
    assert MODELS.find_model('trivial', 'cifar10').network == MODELS.find_model('trivial').network


def test_resnets_and_no_other_models_are_residual() -> None:
    for facts in MODELS.list_facts():
        assert facts.residual == ('resnet' in facts.name)


def test_a_model_twice_for_one_data_set_is_refused() -> None:
    network = Network(print)
    row = ModelFacts('lenet', 'mnist', 28, 32, 0.1, network)
    same_model = ModelFacts('lenet', 'mnist', 32, 64, 0.2, network)
    for_another_data_set = ModelFacts('lenet', 'imagenet', 28, 32, 0.1, network)
    registry = Registry([row, for_another_data_set])
    assert registry.list_facts() == [row, for_another_data_set]
    assert registry.find_model('lenet') == row
    with pytest.raises(ValueError, match=r'lenet.* 2 .*mnist'):
        Registry([row, for_another_data_set, same_model])


def test_a_registry_knows_its_own_models_alone() -> None:
    registry = Registry([ModelFacts('mine', 'mnist', 28, 32, 0.1, Network(print))])
    assert registry.list_models() == ['mine']
    assert 'mine' not in MODELS.list_models()
    for models, unknown in ((registry, 'lenet'), (Registry(), 'mine')):
        with refused(f'--model={unknown}'):
            models.find_model(unknown)


@pytest.mark.parametrize('name', ['ssd300', 'ncf', 'deepspeech2'])
def test_a_model_of_the_original_that_is_no_classifier_is_refused_without_a_nearest_name(name: str) -> None:
    with refused(f'--model={name}') as error:
        MODELS.find_model(name)
    assert not [model for model in MODELS.list_models() if model in str(error.value)]
