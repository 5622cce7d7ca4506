"""The settings of a small training step."""

from typing import Any

from models.model_facts import Build, Network
from run.step_graph import StepSettings
from training.schedules import LearningRate


def training_step(
    network: Network | Build, num_classes: int, *, seed: int, learning_rate: float, **more: Any
) -> StepSettings:
    """Settings of a step that trains the network, which may be given as a build function. more overrides settings."""
    settings = {
        'data_format': 'NHWC',
        'forward_only': False,
        'with_accuracy': False,
        'loss_type_to_report': 'total_loss',
        'weight_decay': 0.01,
        'gradient_clip': None,
        'learning_rate': LearningRate((learning_rate,)),
        'seed': seed,
    }
    if not isinstance(network, Network):
        network = Network(network)
    return StepSettings(network=network, num_classes=num_classes, **{**settings, **more})
