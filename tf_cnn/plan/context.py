"""What the flags of a run cannot know. Does not import TensorFlow."""

from dataclasses import dataclass, field

from models.model_spec import ModelSpec
from tf_cnn.cluster.topology import topology_of
from tf_cnn.managers.modes import Topology
from tf_cnn.plan.cluster_role import ClusterRole
from tf_cnn.plan.data import Data
from tf_cnn.plan.params import Params


@dataclass(frozen=True)
class Context:
    """The processes, the model and the images of a run.

    unresolved: the flags before they are resolved; warnings: the lines that resolving adds. The
    methods need resolved flags.
    """

    unresolved: Params
    cluster_role: ClusterRole
    model: ModelSpec
    data: Data
    warnings: list[str] = field(default_factory=list)

    @property
    def topology(self) -> Topology:
        return topology_of(self.cluster_role.cluster)

    def num_towers(self, params: Params) -> int:
        """The number of devices that this process drives."""
        return params.devices.num_gpus * self.cluster_role.num_hosts

    def images_of_task(self, params: Params) -> int:
        """The images per step on all devices that this process drives."""
        return params.run.batch_size * self.num_towers(params)

    def global_batch_size(self, params: Params) -> int:
        """The images per step on all devices of all workers."""
        return self.images_of_task(params) * self.cluster_role.num_training_tasks

    def images_per_global_step(self, params: Params) -> int:
        """The images of all workers in synchronous modes, else of one worker."""
        if self.cluster_role.is_synchronous:
            return self.global_batch_size(params)
        return self.images_of_task(params)

    def num_epoch_images(self, params: Params) -> int:
        """The images of an epoch: one pass over the images that this run reads; synthetic images
        have as many as the data set.
        """
        images = self.data.images
        return self.data.num_examples(
            validates=params.evaluation.eval
            or (images is not None and images.subset == 'validation')
        )
