"""Where a run is planned: the environment variables, what earlier runs of the process have set, and
the system's files.

Nothing else in this room reads os.environ, so that a test hands in an Environment of its own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.planning.this_process import THIS_PROCESS, ThisProcess
from tf_cnn.system.kernel_files import ROOT

# What the drivers of AMD, and Windows for its Linux, make where there is a GPU.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')


class ProcessEnvironment:
    """The process in which a run is planned, and its host, whose root holds dev/, proc/ and sys/.

    variables are by default those of the process, as the user set them.
    """

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        process: ThisProcess = THIS_PROCESS,
        root: Path = ROOT,
    ) -> None:
        self.variables = process.environment if variables is None else variables
        self.process = process
        self.root = root

    @property
    def has_tensorflow(self) -> bool:
        """Whether TensorFlow is imported already, by an earlier run or by other code of this
        process.
        """
        return 'tensorflow' in sys.modules

    def has_no_gpus(self, device: str | None) -> bool:
        """Whether a run with this --device surely finds no GPU. Avoids importing TensorFlow, which
        takes seconds.

        Once TensorFlow is imported, asking TensorFlow itself costs nothing, so the answer is False.
        """
        if device == 'cpu' or self.has_tensorflow or sys.platform != 'linux':
            return device == 'cpu'
        return not (
            has_nvidia_gpu(root=self.root)
            or any((self.root / name).exists() for name in _OTHER_GPUS)
        )
