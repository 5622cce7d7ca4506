"""The properties of a model before its graph is built. Does not import TensorFlow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tf_cnn.system.user_file import UserFile

if TYPE_CHECKING:
    from models.layers import LayerBuilder

# A function of a layer builder, images in its data format, and num_classes. It returns logits, or
# (logits, auxiliary logits or None).
Build = Callable[['LayerBuilder', Any, int], Any]


@dataclass(frozen=True)
class BatchNorm:
    """The settings of a network's batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167).

    A moving average keeps `decay` of its old value at each step; scale says whether there is a
    learned factor (gamma).
    """

    decay: float = 0.9
    epsilon: float = 1e-5
    scale: bool = True


@dataclass(frozen=True)
class Network:
    """How to build a network.

    Attributes:
      builder: the function that adds the network to the graph; for a built-in network, its name
        in this package, 'module:function'.
      options: keyword arguments of the function.
      file: the --model_file that registered the network, if one did.
    """

    builder: Build | str
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    batch_norm: BatchNorm = BatchNorm()
    file: UserFile | None = None

    @property
    def is_built_in(self) -> bool:
        return isinstance(self.builder, str)


@dataclass(frozen=True)
class RateSchedule:
    """How a model's default learning rate changes.

    Attributes:
      factors: pairs (epochs, factor): after this many epochs the rate is the first rate times the
        factor.
      reference_batch_size: the images per update that the default learning rate is for; the first
        rate is proportional to the images per update. None: the first rate does not depend on them.
      warmup_epochs: for this many epochs the rate rises from 0.
      decay_epochs: the rate is multiplied by 0.1 after each period of this many epochs; 0 disables
        this.
      rounds_epochs_down: whether the number of steps in an epoch is rounded down.
    """

    factors: tuple[tuple[float, float], ...] = ()
    reference_batch_size: int | None = None
    warmup_epochs: float = 0.0
    decay_epochs: float = 0.0
    rounds_epochs_down: bool = False


CONSTANT_RATE = RateSchedule()
# The default schedules of the original program.
# Goyal et al. 2017 (arXiv:1706.02677): the rate is proportional to the batch (section 2.1), rises
# for 5 epochs (section 2.2), and is divided by 10 after 30, 60 and 80 of 90 epochs (section 5.1).
IMAGENET_FACTORS = ((30.0, 0.1), (60.0, 0.01), (80.0, 0.001), (90.0, 0.0001))
RESNET_SCHEDULE = RateSchedule(IMAGENET_FACTORS, reference_batch_size=256, warmup_epochs=5.0)
# The rate drops after about 32,000 and 48,000 steps of 128 images: He et al. 2015
# (arXiv:1512.03385), section 4.2.
RESNET_CIFAR_SCHEDULE = RateSchedule(
    ((82.0, 0.1), (123.0, 0.01), (300.0, 0.002)), rounds_epochs_down=True
)


@dataclass(frozen=True)
class ModelSpec:
    """A model for a data set. A model may have different networks for different data sets.

    Attributes:
      image_size: height and width of the images in pixels.
      batch_size: the default, for each device.
      learning_rate: the default first rate of the schedule.
      any_size: whether the network takes images of any size, so that images of a folder keep
        theirs. It must end in global pooling, and have few enough layers of stride 2 for small
        images.
    """

    name: str
    data_set: str
    image_size: int
    batch_size: int
    learning_rate: float
    network: Network
    any_size: bool = False
    schedule: RateSchedule = CONSTANT_RATE

    @property
    def is_residual(self) -> bool:
        """Whether --resnet_base_lr applies to it."""
        return 'resnet' in self.name
