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
    variant names the network in models.networks where it is not the one that has the model's name.
    """

    name: str
    data_set: str
    image_size: int
    batch_size: int
    learning_rate: float
    variant: str | None = None

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
        ModelFacts(f'resnet{depth}{suffix}', 'cifar10', 32, 128, 0.1)
        for depth in (20, 32, 44, 56, 110)
        for suffix in ('', '_v2')
    ),
    ModelFacts('densenet40_k12', 'cifar10', 32, 64, 0.1),
    ModelFacts('densenet100_k12', 'cifar10', 32, 64, 0.1),
    ModelFacts('densenet100_k24', 'cifar10', 32, 64, 0.1),
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
    sets = ' or '.join(facts.data_set for facts in of_name)
    raise UsageError(f'--model={name}: it is not defined for --data_name={data_set}; write --data_name={sets}')
