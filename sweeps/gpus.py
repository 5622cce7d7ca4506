"""Whether this machine has a GPU, found out without TensorFlow, which takes seconds to start."""

from collections.abc import Mapping
from pathlib import Path

# What the drivers of NVIDIA and AMD make.
_DEVICES = ('dev/nvidia0', 'dev/nvidiactl', 'dev/dxg', 'dev/kfd')
_NONE = ('', '-1', 'NoDevFiles')


def has_gpu(environment: Mapping[str, str], root: Path = Path('/')) -> bool:
    """Whether there is a GPU that CUDA_VISIBLE_DEVICES does not hide.

    Args:
      root: the root of the file system, which has the device files.
    """
    if environment.get('CUDA_VISIBLE_DEVICES', '0') in _NONE:
        return False
    return any((root / device).exists() for device in _DEVICES)
