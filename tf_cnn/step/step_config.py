"""What a step computes."""

from dataclasses import dataclass

from models.model_spec import Network
from tf_cnn.plan.params import Params
from tf_cnn.training.precision import FP32, Precision
from tf_cnn.training.schedules import LearningRate


@dataclass(frozen=True)
class StepConfig:
    """What a step computes.

    Attributes:
      params: the resolved flags.
      seed: of dropout.
      first_tower: the index of this process's first tower among the towers of all processes.
    """

    params: Params
    network: Network
    num_classes: int
    learning_rate: LearningRate
    seed: int
    precision: Precision = FP32
    first_tower: int = 0
