"""The built-in models: a row for each model and data set. Does not import TensorFlow.

The functions that build their networks are in models/builders.py.
"""

from typing import Any

from models.model_spec import BatchNorm, ModelSpec, Network, RateSchedule

_BATCH_NORM = BatchNorm()

# The default schedules of the original program.
# Goyal et al. 2017 (arXiv:1706.02677): the rate is proportional to the batch (section 2.1), rises
# for 5 epochs (section 2.2), and is divided by 10 after 30, 60 and 80 of 90 epochs (section 5.1).
_IMAGENET_FACTORS = ((30.0, 0.1), (60.0, 0.01), (80.0, 0.001), (90.0, 0.0001))
RESNET_SCHEDULE = RateSchedule(_IMAGENET_FACTORS, reference_batch_size=256, warmup_epochs=5.0)
# The rate drops after about 32,000 and 48,000 steps of 128 images: He et al. 2015
# (arXiv:1512.03385), section 4.2.
RESNET_CIFAR_SCHEDULE = RateSchedule(
    ((82.0, 0.1), (123.0, 0.01), (300.0, 0.002)), rounds_epochs_down=True
)
# The rate drops after half and three quarters of 300 epochs: Huang et al. 2017 (arXiv:1608.06993),
# section 4.2.
_DENSENET_CIFAR_SCHEDULE = RateSchedule(
    ((150.0, 0.1), (225.0, 0.01), (300.0, 0.001)), rounds_epochs_down=True
)
_ALEXNET_CIFAR_SCHEDULE = RateSchedule(decay_epochs=100.0)


def _network(builder: str, batch_norm: BatchNorm = _BATCH_NORM, **options: Any) -> Network:
    return Network(builder, options, batch_norm)


def _resnet(depth: int, version: str) -> Network:
    return _network('resnet', depth=depth, version=version)


def _official_resnet(depth: int, version: str) -> Network:
    # As in github.com/tensorflow/models, official/resnet/resnet_model.py.
    batch_norm = BatchNorm(decay=0.997)
    return _network('resnet', batch_norm, depth=depth, version=version, pool_padding='SAME')


def _resnet_cifar(depth: int, version: str) -> Network:
    return _network('resnet_cifar', depth=depth, version=version)


def _densenet_cifar(depth: int, growth_rate: int, *, as_in_paper: bool) -> Network:
    """A DenseNet for CIFAR-10: as in the paper, or as in the original program, where a transition
    has 2 * growth_rate channels.
    """
    return _network(
        'densenet',
        blocks=[(depth - 4) // 3] * 3,
        growth_rate=growth_rate,
        bottleneck=False,
        compression=1.0,
        stem_filters=16,
        small_images=True,
        transition_filters=None if as_in_paper else 2 * growth_rate,
        use_bias=not as_in_paper,
    )


def _nasnet(
    num_cells: int, penultimate_filters: int, stem_filters: int, *, skip_reduction: bool
) -> Network:
    return _network(
        'nasnet',
        # As in the authors' code (TF-Slim) and keras.applications.
        BatchNorm(decay=0.9997, epsilon=1e-3),
        num_cells=num_cells,
        penultimate_filters=penultimate_filters,
        stem_filters=stem_filters,
        skip_reduction=skip_reduction,
    )


_TRIVIAL = _network('trivial')
_LENET = _network('lenet', units=512)
# As in keras.applications: without a learned factor (gamma).
_INCEPTION_BATCH_NORM = BatchNorm(epsilon=1e-3, scale=False)
_DENSENET121 = _network(
    'densenet',
    blocks=(6, 12, 24, 16),
    growth_rate=32,
    bottleneck=True,
    compression=0.5,
    stem_filters=64,
    small_images=False,
)
# As in keras.applications; the paper gives neither value.
_MOBILENET = _network('mobilenet_v2', BatchNorm(decay=0.999, epsilon=1e-3))
# decay: section 5.2 of the paper; epsilon: the authors' code.
_EFFICIENTNET_B0 = _network('efficientnet_b0', BatchNorm(decay=0.99, epsilon=1e-3))

# Image sizes, batch sizes and learning rates come from published results of the original program,
# unless a comment names another source. The first data set of a model is its default.
# Columns: name, data set, image size, batch size, learning rate, network.
CATALOG = (
    ModelSpec('trivial', 'imagenet', 227, 32, 0.005, _TRIVIAL),
    ModelSpec('trivial', 'cifar10', 32, 32, 0.005, _TRIVIAL),
    ModelSpec('lenet', 'imagenet', 28, 32, 0.005, _LENET),
    ModelSpec('lenet', 'mnist', 28, 32, 0.005, _LENET),
    ModelSpec('mnist', 'mnist', 28, 128, 0.001, _network('lenet', units=1024)),
    ModelSpec('alexnet', 'imagenet', 227, 512, 0.005, _network('alexnet')),
    ModelSpec(
        'alexnet',
        'cifar10',
        32,
        128,
        0.1,
        _network('alexnet_cifar'),
        schedule=_ALEXNET_CIFAR_SCHEDULE,
    ),
    ModelSpec('overfeat', 'imagenet', 231, 32, 0.005, _network('overfeat')),
    *(
        ModelSpec(f'vgg{depth}', 'imagenet', 224, 64, 0.005, _network('vgg', depth=depth))
        for depth in (11, 16, 19)
    ),
    ModelSpec('googlenet', 'imagenet', 224, 32, 0.005, _network('googlenet')),
    *(
        ModelSpec(name, 'imagenet', 299, 32, 0.005, _network(name, _INCEPTION_BATCH_NORM))
        for name in ('inception3', 'inception3_aux', 'inception4')
    ),
    *(
        ModelSpec(
            f'resnet{name}',
            'imagenet',
            224,
            64 if depth == 50 else 32,
            0.128,
            _resnet(depth, version),
            is_residual=True,
            schedule=RESNET_SCHEDULE,
        )
        for name, depth, version in (
            *(
                (f'{depth}{suffix}', depth, version)
                for depth in (50, 101, 152)
                for suffix, version in (('', 'v1'), ('_v2', 'v2'), ('_v2.5', 'v2.5'))
            ),
            ('50_v1.5', 50, 'v1.5'),
        )
    ),
    # Learning rates of 0.1 for 256 images: He et al. 2015, section 3.4.
    *(
        ModelSpec(
            f'official_resnet{depth}{suffix}',
            'imagenet',
            224,
            batch_size,
            0.1 * batch_size / 256,
            _official_resnet(depth, version),
            is_residual=True,
            schedule=RateSchedule(_IMAGENET_FACTORS, reference_batch_size=batch_size),
        )
        for depth, batch_size in ((18, 32), (34, 32), (50, 128), (101, 32), (152, 32), (200, 32))
        for suffix, version in (('', 'v1.5'), ('_v2', 'v2.5'))
    ),
    *(
        ModelSpec(
            f'resnet{depth}{suffix}',
            'cifar10',
            32,
            128,
            0.1,
            _resnet_cifar(depth, version),
            any_size=True,
            is_residual=True,
            schedule=RESNET_CIFAR_SCHEDULE,
        )
        for depth in (20, 32, 44, 56, 110)
        for suffix, version in (('', 'v1'), ('_v2', 'v2'))
    ),
    *(
        ModelSpec(
            f'densenet{depth}_k{growth_rate}{suffix}',
            'cifar10',
            32,
            64,
            0.1,
            _densenet_cifar(depth, growth_rate, as_in_paper=bool(suffix)),
            any_size=True,
            schedule=_DENSENET_CIFAR_SCHEDULE,
        )
        for depth, growth_rate in ((40, 12), (100, 12), (100, 24))
        for suffix in ('', '_paper')
    ),
    ModelSpec('mobilenet', 'imagenet', 224, 32, 0.005, _MOBILENET),
    ModelSpec('nasnet', 'imagenet', 224, 32, 0.005, _nasnet(4, 1056, 32, skip_reduction=False)),
    ModelSpec('nasnetlarge', 'imagenet', 331, 16, 0.005, _nasnet(6, 4032, 96, skip_reduction=True)),
    # The original program has no published results of these models. Their learning rates are the
    # papers', scaled linearly to the batch size (Goyal et al. 2017, arXiv:1706.02677). DenseNet
    # (section 4.2): 0.1 for 256 images with SGD. EfficientNet: 0.256 (section 5.2) for 4096 images
    # (the authors' code) with RMSProp. ConvNeXt (table 5): 0.004 for 4096 images with AdamW.
    ModelSpec('densenet121', 'imagenet', 224, 32, 0.0125, _DENSENET121),
    ModelSpec('efficientnet_b0', 'imagenet', 224, 32, 0.002, _EFFICIENTNET_B0),
    ModelSpec('convnext_tiny', 'imagenet', 224, 32, 0.004 * 32 / 4096, _network('convnext_tiny')),
)

# Models of the original program that this program leaves out: they do not classify images.
NOT_CLASSIFIERS = {
    'ssd300': 'it detects objects',
    'ncf': 'it recommends',
    'deepspeech2': 'it recognises speech',
}
