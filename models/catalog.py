"""Which models there are, by data set, with their customary settings. Does not import TensorFlow."""

import difflib
import fnmatch
from collections import Counter
from dataclasses import dataclass

from errors import UsageError


@dataclass(frozen=True)
class ModelFacts:
    """One model for one data set.

    image_size is the height and width in pixels, batch_size the default per device, learning_rate the default one.
    """

    name: str
    data_set: str
    image_size: int
    batch_size: int
    learning_rate: float


def model_table(*rows: ModelFacts) -> tuple[ModelFacts, ...]:
    """The rows, if none is there twice: the second would never be found.

    Raises:
      ValueError: two rows are of the same model and data set.
    """
    for (name, data_set), times in Counter((row.name, row.data_set) for row in rows).items():
        if times > 1:
            raise ValueError(f'{name} for {data_set} is in the catalog {times} times')
    return rows


# Image sizes, batch sizes and learning rates are those that published results of these models with this command used.
# The first data set of a model is its default one.
_FACTS = model_table(
    ModelFacts('trivial', 'imagenet', 227, 32, 0.005),
    ModelFacts('lenet', 'imagenet', 28, 32, 0.005),
    ModelFacts('mnist', 'mnist', 28, 128, 0.001),
    ModelFacts('alexnet', 'imagenet', 227, 512, 0.005),
    ModelFacts('vgg16', 'imagenet', 224, 64, 0.005),
    ModelFacts('inception3', 'imagenet', 299, 32, 0.005),
    ModelFacts('inception3_aux', 'imagenet', 299, 32, 0.005),
    ModelFacts('resnet50', 'imagenet', 224, 64, 0.128),
    ModelFacts('resnet50_v1.5', 'imagenet', 224, 64, 0.128),
    ModelFacts('resnet50_v2', 'imagenet', 224, 64, 0.128),
)


# Models of the original that are something else.
_NO_CLASSIFIERS = {
    'ssd300': 'it detects objects',
    'ncf': 'it recommends',
    'deepspeech2': 'it recognises speech',
}


def list_models(pattern: str = '*') -> list[str]:
    """The names of the models that a pattern with shell wildcards matches, sorted."""
    return sorted({facts.name for facts in _FACTS if fnmatch.fnmatchcase(facts.name, pattern)})


def find_model(name: str, data_set: str | None = None) -> ModelFacts:
    """The facts of a model for a data set, or for the model's default data set.

    Raises:
      UsageError: there is no such model, or not for that data set.
    """
    of_name = [facts for facts in _FACTS if facts.name == name]
    if name in _NO_CLASSIFIERS:
        raise UsageError(f'--model={name}: {_NO_CLASSIFIERS[name]}; this program has convolutional classifiers only')
    if not of_name:
        near = difflib.get_close_matches(name, list_models(), n=1, cutoff=0)[0]
        raise UsageError(
            f'--model={name}: there is no such model; did you mean {near}? All: {", ".join(list_models())}'
        )
    for facts in of_name:
        if data_set in (None, facts.data_set):
            return facts
    sets = ' or '.join(facts.data_set for facts in of_name)
    raise UsageError(f'--model={name}: it is not defined for --data_name={data_set}; write --data_name={sets}')


def is_resnet(name: str) -> bool:
    """Whether a model is a residual network, which --resnet_base_lr has learning rates for."""
    return 'resnet' in name
