"""Where a run is planned: the environment variables, what earlier runs of the process have set, and the system's files.

Nothing else in this room reads os.environ, so that a test hands in an Environment of its own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from machine.gpus import has_nvidia_gpu
from machine.kernel_files import ROOT
from planning.this_process import THIS_PROCESS, ThisProcess

# What the drivers of AMD, and Windows for its Linux, make where there is a GPU.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')


class Environment:
    """The process in which a run is planned, and its host.

    Args:
      variables: the environment variables; by default those of the process, as the user set them.
      root: the folder that holds dev/, proc/ and sys/.
    """

    def __init__(
        self, variables: Mapping[str, str] | None = None, process: ThisProcess = THIS_PROCESS, root: Path = ROOT
    ) -> None:
        self.variables = process.environment if variables is None else variables
        self.process = process
        self.root = root

    def has_no_gpus(self, device: str | None) -> bool:
        """Whether a run with this --device surely finds no GPU. Avoids importing TensorFlow, which takes seconds.

        Once TensorFlow is imported, asking TensorFlow itself costs nothing, so the answer is False.
        """
        return device == 'cpu' or not ('tensorflow' in sys.modules or may_have_gpu(self.root))


def may_have_gpu(root: Path = ROOT) -> bool:
    """Whether TensorFlow may see a GPU on this machine; root is the folder that holds proc/ and dev/."""
    is_known = sys.platform == 'linux'
    return not is_known or has_nvidia_gpu(root=root) or any((root / name).exists() for name in _OTHER_GPUS)
