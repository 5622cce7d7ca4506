"""A single tower, with random images and weights for it."""

import zlib
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.support.oracles import Weights
from tests.support.sessions import cpus
from variable_mgr import VariableMgr, VariableMgrIndependent

BATCH = 2


def random_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights that keep activations from vanishing or exploding, so that every layer affects the logits."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith('kernel'):
        is_depthwise = len(shape) == 4 and shape[-1] == 1
        scale = np.sqrt(2 / np.prod(shape[: 2 if is_depthwise else -1]))
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    if name.endswith(('gamma', 'moving_variance')):
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return random.normal(0, 0.2, shape).astype(np.float32)


def random_images(shape: tuple[int, ...]) -> np.ndarray:
    """[BATCH, H, W, C] float32 of small patches, since networks that average cannot distinguish plain noise."""
    height, width, channels = shape
    patches = np.random.default_rng(0).normal(size=(BATCH, height // 14 + 1, width // 14 + 1, channels))
    return patches.repeat(14, 1).repeat(14, 2)[:, :height, :width].astype(np.float32)


def one_tower() -> VariableMgr:
    return VariableMgrIndependent(cpus(1), seed=1)


def load(session: Any, manager: VariableMgr, weights: Weights) -> None:
    variables = manager.savable_variables()
    values = {name: tf.placeholder(tf.float32, variable.shape) for name, variable in variables.items()}
    assigned = [variable.assign(values[name]) for name, variable in variables.items()]
    session.run(assigned, {value: weights[name] for name, value in values.items()})


def relative_error(values: np.ndarray, expected: np.ndarray) -> float:
    assert values.shape == expected.shape
    return float(np.abs(values - expected).max() / np.abs(expected).max())
