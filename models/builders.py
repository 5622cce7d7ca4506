"""The functions that build the networks of models/zoo.py, by the names in its rows."""

from collections.abc import Callable, Mapping
from typing import Any

from models import (
    convnext,
    densenet,
    efficientnet,
    googlenet,
    inception,
    mobilenet,
    nasnet,
    resnet,
    small,
    vgg,
)

BUILDERS: Mapping[str, Callable[..., Any]] = {
    'alexnet': small.alexnet,
    'alexnet_cifar': small.alexnet_cifar,
    'convnext_tiny': convnext.convnext_tiny,
    'densenet': densenet.densenet,
    'efficientnet_b0': efficientnet.efficientnet_b0,
    'googlenet': googlenet.googlenet,
    'inception3': inception.inception3,
    'inception3_aux': inception.inception3_aux,
    'inception4': inception.inception4,
    'lenet': small.lenet,
    'mobilenet_v2': mobilenet.mobilenet_v2,
    'nasnet': nasnet.nasnet,
    'overfeat': small.overfeat,
    'resnet': resnet.resnet,
    'resnet_cifar': resnet.resnet_cifar,
    'trivial': small.trivial,
    'vgg': vgg.vgg,
}
