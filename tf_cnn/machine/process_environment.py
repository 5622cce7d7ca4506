"""What a run depends on besides its flags: environment variables, settings of earlier runs of this
process, and the system's files.

Nothing else that prepares a run reads os.environ, so that tests can pass a ProcessEnvironment.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.machine.this_process import THIS_PROCESS, ThisProcess
from tf_cnn.system.kernel_files import ROOT

# Device files of a GPU with the AMD driver, or in Windows Subsystem for Linux.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')


class ProcessEnvironment:
    """The process of a run, and its host. `root` is the folder with dev/, proc/ and sys/.

    variables: by default the environment variables as the user set them.
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
        """Whether an earlier run or other code of this process has imported TensorFlow."""
        return 'tensorflow' in sys.modules

    @property
    def has_no_gpus(self) -> bool:
        """Whether this machine certainly has no GPU, without importing TensorFlow, which takes
        seconds.

        False once TensorFlow is imported: listing its GPUs then costs nothing.
        """
        if self.has_tensorflow or sys.platform != 'linux':
            return False
        return not (
            has_nvidia_gpu(root=self.root)
            or any((self.root / name).exists() for name in _OTHER_GPUS)
        )
