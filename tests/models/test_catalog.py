"""Models are found by name, pattern and data set, and the catalog refuses to hold one twice."""

import pytest
from refusals import refused

from data_sets import DATA_SETS
from models.catalog import ModelFacts, find_model, list_models, model_table

pytestmark = pytest.mark.unit


def test_every_model_has_facts_for_a_known_data_set() -> None:
    for name in list_models():
        facts = find_model(name)
        assert facts.name == name
        assert facts.data_set in DATA_SETS
        assert min(facts.image_size, facts.batch_size, facts.learning_rate) > 0
        assert find_model(name, facts.data_set) == facts


def test_a_pattern_lists_the_models_that_it_matches() -> None:
    assert list_models('resnet50*') == ['resnet50', 'resnet50_v1.5', 'resnet50_v2']
    assert list_models('*3') == ['inception3']
    assert list_models('ResNet*') == []


def test_an_unknown_model_is_refused_with_the_nearest_name_and_all_names() -> None:
    with refused('--model=resnett50', *list_models()) as error:
        find_model('resnett50')
    # The nearest one comes before the list.
    assert str(error.value).index('resnet50') < str(error.value).index('alexnet')


def test_an_empty_name_is_refused_with_all_names() -> None:
    with refused('--model=', *list_models()):
        find_model('')


def test_a_model_that_is_not_for_the_data_set_is_refused_with_those_it_is_for() -> None:
    with refused('--model=mnist', '--data_name=imagenet', '--data_name=mnist'):
        find_model('mnist', 'imagenet')


def test_a_model_may_be_another_network_for_another_data_set() -> None:
    assert find_model('alexnet', 'imagenet').network == find_model('alexnet').network == 'alexnet'
    assert find_model('alexnet', 'cifar10').network == 'alexnet_cifar'
    assert find_model('trivial', 'cifar10').network == 'trivial'


def test_a_model_twice_for_one_data_set_is_refused() -> None:
    row = ModelFacts('lenet', 'mnist', 28, 32, 0.1)
    same_model = ModelFacts('lenet', 'mnist', 32, 64, 0.2)
    for_another_data_set = ModelFacts('lenet', 'imagenet', 28, 32, 0.1)
    assert model_table(row, for_another_data_set) == (row, for_another_data_set)
    with pytest.raises(ValueError, match=r'lenet.*mnist.* 2 '):
        model_table(row, for_another_data_set, same_model)


@pytest.mark.parametrize('name', ['ssd300', 'ncf', 'deepspeech2'])
def test_a_model_of_the_original_that_is_no_classifier_is_refused_without_a_nearest_name(name: str) -> None:
    with refused(f'--model={name}') as error:
        find_model(name)
    assert not [model for model in list_models() if model in str(error.value)]
