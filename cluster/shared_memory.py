"""Memory that all workers of a cluster share, if they are on one host."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardware.surroundings import ROOT, free_memory
from training.memory_files import (
    FLOAT_BYTES,
    NoMemoryError,
    SharedMemory,
    create_memory,
    open_memory,
)

# Processes can open each other's files in /proc if they run on the same kernel, in the same namespace of processes.
_BOOT, _PROCESSES = Path('/proc/sys/kernel/random/boot_id'), Path('/proc/self/ns/pid')
Gather = Callable[[str, Any], list[Any]]


def find_host() -> list[Any] | None:
    """Returns a value that is equal in processes that can share memory; None if this host does not support it."""
    try:
        return [_BOOT.read_text().strip(), _PROCESSES.stat().st_ino]
    except OSError:
        return None


class SharedHost:
    """The host of all workers of a cluster.

    Args:
      is_chief: whether this worker allocates the memory.
      gather: returns the values that all workers passed under a name, in their order.
      warn: prints a warning; called by the chief.
      root: the root of the file system, whose proc/ and sys/ tell how much memory is free.
    """

    def __init__(
        self,
        *,
        is_chief: bool,
        gather: Gather,
        warn: Callable[[str], None],
        root: Path = ROOT,
    ) -> None:
        self._is_chief = is_chief
        self._gather = gather
        self._warn = warn
        self._root = root
        self._memory: SharedMemory | None = None

    def allocate(self, num_floats: int) -> SharedMemory | None:
        """Returns memory that all workers have open, or None. Every worker must call it; either all get it, or none.

        It has no name in a file system, so nothing is left behind, however the processes end.

        Raises:
          LostError: another task was lost in the meantime.
        """
        memory, fault, offer = None, None, None
        try:
            if self._is_chief:
                _check_free(FLOAT_BYTES * num_floats, self._root)
                memory = create_memory(num_floats)
                offer = {'path': memory.path, 'nonce': memory.nonce}
        except NoMemoryError as error:
            fault = str(error)
        offer = self._gather('shared_memory/offer', offer)[0]
        try:
            if offer and not memory:
                memory = open_memory(**offer, num_floats=num_floats)
        except NoMemoryError as error:
            fault = str(error)
        fault = next(filter(None, self._gather('shared_memory/fault', fault)), None)
        self._memory = memory
        if fault is None and memory:
            return memory
        self.close()
        if self._is_chief:
            self._warn(f'gradients go over the network, although all workers are on one host: {fault}')
        return None

    def close(self) -> None:
        """Closes the file, which no worker opens any more. Existing mappings stay valid."""
        if self._memory:
            os.close(self._memory.file)
            self._memory = None


def _check_free(num_bytes: int, root: Path) -> None:
    free = free_memory(root)
    if free is not None and num_bytes > free:
        raise NoMemoryError(f'it takes {num_bytes / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free')
