"""What planners may ask about the world: environment variables, folders, the host and its devices.

Planners are functions of flags, of an Environment, and of earlier facts. Nothing else in this room reads os.environ, a
folder or a device, so that a test hands in an Environment of its own. Does not import TensorFlow until it is asked for
TensorFlow's devices.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.topology import Cluster, public_hosts
from hardware import surroundings
from hardware.cgroups import cpu_limit
from hardware.data_formats import Capability
from hardware.gpus import has_nvidia_gpu
from hardware.missing_gpu import explain_missing_gpu
from hardware.numa import gpu_nodes, nodes_of
from hardware.tensorflow_build import has_openmp
from hardware.visible_gpus import PlaceOnHost, choose_visible
from inputs.data_folder import DataFolder, open_folder, recognise
from models.registry import load_model_file
from params import Params
from params.tensorflow_flags import chosen_gpus
from planning import output_checks
from planning.this_process import THIS_PROCESS, StartSettings, ThisProcess, VisibleGpus

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

# What the drivers of AMD, and Windows for its Linux, make where there is a GPU.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')


class Environment:
    """The process in which a run is planned, its host, and the files that the flags name.

    Args:
      variables: the environment variables, which may describe a cluster; by default those of the process, as the user
        set them.
      process: what earlier runs have set for the whole process.
      root: the folder that holds dev/, proc/ and sys/.
    """

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        process: ThisProcess = THIS_PROCESS,
        root: Path = surroundings.ROOT,
    ) -> None:
        self.variables = process.environment if variables is None else variables
        self.process = process
        self._root = root

    # ---- files ----------------------------------------------------------------------------------------------------

    def load_model_file(self, path: str) -> None:
        """Runs the Python file of --model_file, which registers models."""
        load_model_file(path)

    def recognise_data(self, folder: str) -> str | None:
        """The name of the data set that a folder holds; None if it is not known."""
        return recognise(folder)

    def open_data(self, folder: str, data_set: str) -> DataFolder:
        """The data folder; data_set is the name of what it holds."""
        return open_folder(folder, data_set)

    def check_outputs(self, params: Params, *, is_chief: bool) -> None:
        """Raises UsageError if an output file cannot be written; makes missing folders."""
        output_checks.check_outputs(params, is_chief=is_chief)

    def check_file(self, flag: str, path: str) -> None:
        """Raises UsageError if the file that a flag names cannot be written; makes its folder."""
        output_checks.check_file(flag, path)

    def is_folder(self, path: str) -> bool:
        """Whether a folder is there."""
        return os.path.isdir(path)

    def has_checkpoints(self, folder: str) -> bool:
        """Whether there are checkpoints in a folder; which of them is read is told by latest_checkpoint."""
        return any(Path(folder).glob('*.index'))

    def latest_checkpoint(self, folder: str) -> str | None:
        """The prefix of the newest checkpoint in a folder; None if there is none."""
        from training.checkpoint_files import latest_checkpoint

        return latest_checkpoint(folder)

    def find_checkpoint(self, path: str, flag: str) -> str:
        """The prefix of the checkpoint that a flag names: a folder's newest one, or a prefix."""
        from training.checkpoint_files import find_checkpoint

        return find_checkpoint(path, flag)

    # ---- the host -------------------------------------------------------------------------------------------------

    def cores(self) -> tuple[int, ...]:
        """The logical cores that this process may use."""
        if hasattr(os, 'sched_getaffinity'):
            return tuple(sorted(os.sched_getaffinity(0)))
        return tuple(range(os.cpu_count() or 1))

    @property
    def can_bind(self) -> bool:
        """Whether the system binds processes to cores."""
        return hasattr(os, 'sched_setaffinity')

    def cpu_quota(self) -> float | None:
        """How many cores the control group may use at the same time; None if it has no quota."""
        return cpu_limit(self._root)

    def numa_nodes(self) -> dict[int, tuple[int, ...]]:
        """The cores of each NUMA node that has some which this process may use."""
        return nodes_of(self._root, self.cores())

    def gpu_nodes(self, visible: str | None) -> list[int | None]:
        """The NUMA node of each GPU that a CUDA_VISIBLE_DEVICES lists, without one of all; None is an unknown node."""
        return gpu_nodes(self._root, {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible})

    def free_memory(self) -> int | None:
        """The bytes that this process can still take; None where the system does not tell."""
        return surroundings.free_memory()

    def machine_facts(self, **facts: Any) -> dict[str, Any]:
        """The object "machine" of a result; the arguments are those of hardware.surroundings.machine_facts."""
        return surroundings.machine_facts(**facts)

    def git_commit(self) -> str | None:
        """The commit of this program; None if that is unknown."""
        return surroundings.git_commit()

    def has_openmp(self) -> bool:
        """Whether the installed TensorFlow brings an OpenMP library of its own."""
        return has_openmp()

    def public_hosts(self, cluster: Cluster) -> tuple[str, ...]:
        """The hosts of a cluster that have a public address."""
        return public_hosts(cluster)

    # ---- devices --------------------------------------------------------------------------------------------------

    def visible_gpus(self, params: Params, place: PlaceOnHost, *, computes: bool = True) -> VisibleGpus | None:
        """The GPUs that this process is to see; None if its host has none.

        Args:
          place: the number of the process among those of its host, and how many these are.
          computes: whether its towers are in it.

        Raises:
          UsageError: the host has fewer GPUs than are needed, or none with such a number.
        """
        needed = params.num_gpus if computes and params.device != 'cpu' else 0
        indices = chosen_gpus(params.gpu_indices) if needed else ()
        value = choose_visible(needed, place, self.variables, indices)
        return None if value is None else VisibleGpus(value, needed, is_share=bool(needed) and place[1] > 1)

    def load_horovod(self, gpus: VisibleGpus | None) -> Any:
        """The module horovod.tensorflow, started by an MPI that sees these GPUs."""
        from cluster.horovod_worker import load_horovod

        # An MPI that knows CUDA looks for GPUs when Horovod starts it.
        if gpus:
            self.process.show(StartSettings(gpus))
        return load_horovod()

    def has_no_gpus(self, device: str | None) -> bool:
        """Whether it is known without TensorFlow, which takes seconds to import, that a run will find no GPU.

        A process that has imported it already loses nothing by asking it.

        Args:
          device: the value of --device.
        """
        return device == 'cpu' or not ('tensorflow' in sys.modules or may_have_gpu(self._root))

    def start_tensorflow(self, settings: StartSettings) -> 'list[tf.config.PhysicalDevice]':
        """Imports TensorFlow with these settings; returns the GPUs that it sees."""
        return self.process.start_tensorflow(settings)

    def capabilities(self, gpus: Sequence[Any]) -> list[Capability | None]:
        """The compute capability of each of TensorFlow's GPUs; None if it does not tell. Opens no GPU."""
        import tensorflow.compat.v1 as tf

        found: list[Capability | None] = []
        for device in gpus:
            try:
                details = tf.config.experimental.get_device_details(device)
            except ValueError:
                details = {}
            found.append(details.get('compute_capability'))
        return found

    def has_nvidia_gpu(self) -> bool:
        """Whether a GPU of NVIDIA is in this machine and not hidden."""
        return has_nvidia_gpu(self.variables, self._root)

    def explain_missing_gpu(self) -> str | None:
        """Why TensorFlow sees no GPU here, and what to do; None if there is none of NVIDIA."""
        return explain_missing_gpu(self.variables, self._root)


def may_have_gpu(root: Path = surroundings.ROOT) -> bool:
    """Whether TensorFlow may see a GPU on this machine.

    Args:
      root: the folder that holds proc/ and dev/.
    """
    is_known = sys.platform == 'linux'
    return not is_known or has_nvidia_gpu(root=root) or any((root / name).exists() for name in _OTHER_GPUS)
