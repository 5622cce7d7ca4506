"""Which models there are, by data set, with their customary settings. Does not import TensorFlow."""

import difflib
import fnmatch
import glob
from collections import Counter
from dataclasses import dataclass, replace

from data_sets import RECORDS
from errors import UsageError


@dataclass(frozen=True)
class ModelFacts:
    """One model for one data set.

    image_size is the height and width in pixels, batch_size the default per device, learning_rate the default one.
    variant names the network in models.networks where it is not the one that has the model's name.
    any_size tells that the images of a folder need not be resized: the network ends in a global pooling, and halves
    its images so rarely that small ones leave something to pool.
    """

    name: str
    data_set: str
    image_size: int
    batch_size: int
    learning_rate: float
    variant: str | None = None
    any_size: bool = False

    @property
    def network(self) -> str:
        """The name of its network: a model may have another one for another data set."""
        return self.variant or self.name


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
    ModelFacts('trivial', 'cifar10', 32, 32, 0.005),
    ModelFacts('lenet', 'imagenet', 28, 32, 0.005),
    ModelFacts('lenet', 'mnist', 28, 32, 0.005),
    ModelFacts('mnist', 'mnist', 28, 128, 0.001),
    ModelFacts('alexnet', 'imagenet', 227, 512, 0.005),
    ModelFacts('alexnet', 'cifar10', 32, 128, 0.1, variant='alexnet_cifar'),
    ModelFacts('overfeat', 'imagenet', 231, 32, 0.005),
    ModelFacts('vgg11', 'imagenet', 224, 64, 0.005),
    ModelFacts('vgg16', 'imagenet', 224, 64, 0.005),
    ModelFacts('vgg19', 'imagenet', 224, 64, 0.005),
    ModelFacts('googlenet', 'imagenet', 224, 32, 0.005),
    ModelFacts('inception3', 'imagenet', 299, 32, 0.005),
    ModelFacts('inception3_aux', 'imagenet', 299, 32, 0.005),
    ModelFacts('inception4', 'imagenet', 299, 32, 0.005),
    ModelFacts('resnet50', 'imagenet', 224, 64, 0.128),
    ModelFacts('resnet50_v1.5', 'imagenet', 224, 64, 0.128),
    ModelFacts('resnet50_v2', 'imagenet', 224, 64, 0.128),
    ModelFacts('resnet101', 'imagenet', 224, 32, 0.128),
    ModelFacts('resnet101_v2', 'imagenet', 224, 32, 0.128),
    ModelFacts('resnet152', 'imagenet', 224, 32, 0.128),
    ModelFacts('resnet152_v2', 'imagenet', 224, 32, 0.128),
    # Learning rates of 0.1 for 256 images: He et al. 2015, section 3.4.
    *(
        ModelFacts(f'official_resnet{depth}{suffix}', 'imagenet', 224, batch_size, 0.1 * batch_size / 256)
        for depth, batch_size in ((18, 32), (34, 32), (50, 128), (101, 32), (152, 32), (200, 32))
        for suffix in ('', '_v2')
    ),
    *(
        ModelFacts(f'resnet{depth}{suffix}', 'cifar10', 32, 128, 0.1, any_size=True)
        for depth in (20, 32, 44, 56, 110)
        for suffix in ('', '_v2')
    ),
    ModelFacts('densenet40_k12', 'cifar10', 32, 64, 0.1, any_size=True),
    ModelFacts('densenet100_k12', 'cifar10', 32, 64, 0.1, any_size=True),
    ModelFacts('densenet100_k24', 'cifar10', 32, 64, 0.1, any_size=True),
    ModelFacts('mobilenet', 'imagenet', 224, 32, 0.005),
    ModelFacts('nasnet', 'imagenet', 224, 32, 0.005),
    ModelFacts('nasnetlarge', 'imagenet', 331, 16, 0.005),
    # No published results of this command: the learning rates of the papers for batches of this size, by the linear
    # scaling rule (Goyal et al. 2017, arXiv:1706.02677). DenseNet (section 4.2): 0.1 for 256, SGD. EfficientNet: 0.256
    # (section 5.2) for 4096 (its code), RMSProp. ConvNeXt (table 5): 0.004 for 4096, AdamW.
    ModelFacts('densenet121', 'imagenet', 224, 32, 0.0125),
    ModelFacts('efficientnet_b0', 'imagenet', 224, 32, 0.002),
    ModelFacts('convnext_tiny', 'imagenet', 224, 32, 0.004 * 32 / 4096),
)


# Those of register_model.
_registered: list[ModelFacts] = []

# Models of the original that are something else.
_NO_CLASSIFIERS = {
    'ssd300': 'it detects objects',
    'ncf': 'it recommends',
    'deepspeech2': 'it recognises speech',
}


def add_model(facts: ModelFacts) -> None:
    """Adds a model to the catalog for as long as the process lasts.

    Raises:
      ValueError: there is a model of this name.
    """
    if list_facts(glob.escape(facts.name)) or facts.name in _NO_CLASSIFIERS:
        raise ValueError(f'{facts.name}: there is already a model of this name; give it another one')
    _registered.append(facts)


def remove_model(name: str) -> None:
    """Takes back what add_model added."""
    _registered[:] = [facts for facts in _registered if facts.name != name]


def list_models(pattern: str = '*') -> list[str]:
    """The names of the models that a pattern with shell wildcards matches, sorted."""
    return list(dict.fromkeys(facts.name for facts in list_facts(pattern)))


def list_facts(pattern: str = '*') -> list[ModelFacts]:
    """The rows of the models that a pattern with shell wildcards matches, those of a model together, by name."""
    rows = sorted((*_FACTS, *_registered), key=lambda row: row.name)
    return [facts for facts in rows if fnmatch.fnmatchcase(facts.name, pattern)]


def find_model(name: str, data_set: str | None = None, told_by: str | None = None) -> ModelFacts:
    """The facts of a model for a data set, or for the model's default data set.

    Every model trains on a folder made by the word records, with what is customary for its default data set.

    Args:
      told_by: what says that it is that data set, for an error; by default --data_name.

    Raises:
      UsageError: there is no such model, or not for that data set.
    """
    of_name = [facts for facts in list_facts() if facts.name == name]
    if name in _NO_CLASSIFIERS:
        raise UsageError(f'--model={name}: {_NO_CLASSIFIERS[name]}; this program has convolutional classifiers only')
    if not of_name:
        # Of names that are equally near the first of the table, where well-known ones come first.
        near = max(
            (facts.name for facts in _FACTS), key=lambda known: difflib.SequenceMatcher(None, known, name).ratio()
        )
        raise UsageError(
            f'--model={name}: there is no such model; did you mean {near}? All: {", ".join(list_models())}'
        )
    for facts in of_name:
        if data_set in (None, facts.data_set):
            return facts
    if data_set == RECORDS:
        return replace(of_name[0], data_set=RECORDS)
    if told_by:
        others = dict.fromkeys(facts.name for facts in list_facts() if facts.data_set == data_set)
        raise UsageError(f'--model={name}: it is not defined for {told_by}; models for it: {", ".join(others)}')
    sets = ' or '.join(facts.data_set for facts in of_name)
    raise UsageError(f'--model={name}: it is not defined for --data_name={data_set}; write --data_name={sets}')


def is_resnet(name: str) -> bool:
    """Whether a model is a residual network, which --resnet_base_lr has learning rates for."""
    return 'resnet' in name
