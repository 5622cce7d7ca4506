"""How the tasks of a cluster find out that they are on one host, and make memory that all of them share."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from training.shared_memory import NoMemoryError, SharedMemory, create_memory, open_memory

# Processes can open each other's files if they run on one kernel and know each other under the same numbers.
_BOOT, _PROCESSES = Path('/proc/sys/kernel/random/boot_id'), Path('/proc/self/ns/pid')
Gather = Callable[[str, Any], list[Any]]


def find_host() -> list[Any] | None:
    """What the processes that can share memory have in common; None where there is no such memory."""
    try:
        return [_BOOT.read_text().strip(), _PROCESSES.stat().st_ino]
    except OSError:
        return None


class SharedHost:
    """The host of all tasks of a cluster.

    Args:
      is_chief: whether this worker makes the memory.
      gather: returns what all workers passed under a name, in their order.
      tokens: those of each parameter server, see serve_memory().
      warn: prints a warning; called by the chief.
    """

    def __init__(
        self, *, is_chief: bool, gather: Gather, tokens: Sequence[tuple[str, str]], warn: Callable[[str], None]
    ) -> None:
        self._is_chief = is_chief
        self._gather = gather
        self._tokens = tuple(tokens)
        self._warn = warn

    def allocate(self, num_floats: int) -> SharedMemory | None:
        """Returns memory that all workers have open. Every worker must call it; either all get it, or none does.

        It has no name, so nothing is left behind however the processes end.

        Raises:
          LostError: another task was lost meanwhile.
        """
        memory, fault, offer = None, None, None
        try:
            if self._is_chief:
                memory = create_memory(num_floats)
                offer = {**asdict(memory), 'file': -1}
        except NoMemoryError as error:
            fault = str(error)
        offer = self._gather('shared_memory/offer', offer)[0]
        try:
            if offer and not memory:
                memory = open_memory(offer['path'], offer['nonce'], num_floats)
        except NoMemoryError as error:
            fault = str(error)
        fault = next(filter(None, self._gather('shared_memory/fault', fault)), None)
        if fault is None and memory:
            return replace(memory, tokens=self._tokens)
        if self._is_chief:
            self._warn(f'gradients go over the network, although all tasks are on one host: {fault}')
        return None
