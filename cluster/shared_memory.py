"""How the tasks of a cluster find out that they are on one host, and make memory that all of them share."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from cluster.key_value_store import OpenSession
from cluster.topology import Task
from hardware.surroundings import ROOT, free_memory
from training.shared_memory import (
    FLOAT_BYTES,
    NoMemoryError,
    SharedMemory,
    Tokens,
    create_memory,
    fault_at,
    open_memory,
)

# Processes can open each other's files if they run on one kernel and know each other under the same numbers.
_BOOT, _PROCESSES = Path('/proc/sys/kernel/random/boot_id'), Path('/proc/self/ns/pid')
Gather = Callable[[str, Any], list[Any]]
_ANSWER_SECS = 10.0


def find_host() -> list[Any] | None:
    """What the processes that can share memory have in common; None where there is no such memory."""
    try:
        return [_BOOT.read_text().strip(), _PROCESSES.stat().st_ino]
    except OSError:
        return None


def fault_of_servers(memory: SharedMemory, servers: Sequence[Task], target: str, config: tf.ConfigProto) -> str | None:
    """Asks the parameter servers whether they can open the memory.

    Args:
      target, config: those of the sessions of this worker.

    Returns:
      why one of them cannot; None if all can.
    """
    config = tf.ConfigProto.FromString(config.SerializeToString())
    config.operation_timeout_in_ms = int(1000 * _ANSWER_SECS)
    with tf.Graph().as_default() as graph:
        faults = []
        for index, server in enumerate(servers):
            with tf.device(f'{server.device}/cpu:0'):
                faults.append(fault_at(memory, index))
    # Left open if a server is gone, for which closing would wait.
    session = OpenSession(target, graph=graph, config=config)
    try:
        found = session.run(faults)
    except tf.errors.OpError as error:
        reason, _, _ = error.message.partition('\n')
        return f'the parameter servers do not open it ({reason})'
    session.close()
    return next((fault.decode() for fault in found if fault), None)


class SharedHost:
    """The host of all tasks of a cluster.

    Args:
      is_chief: whether this worker makes the memory.
      gather: returns what all workers passed under a name, in their order.
      tokens: those of each parameter server, see serve_memory().
      fault_of_servers: returns why a parameter server cannot open the memory; None if all can. Called by the chief.
      warn: prints a warning; called by the chief.
      root: the root of the file system, which tells how much memory is free.
    """

    def __init__(
        self,
        *,
        is_chief: bool,
        gather: Gather,
        tokens: Sequence[Tokens],
        fault_of_servers: Callable[[SharedMemory], str | None],
        warn: Callable[[str], None],
        root: Path = ROOT,
    ) -> None:
        self._is_chief = is_chief
        self._gather = gather
        self._tokens = tuple(tokens)
        self._fault_of_servers = fault_of_servers
        self._warn = warn
        self._root = root
        self._memory: SharedMemory | None = None

    def allocate(self, num_floats: int) -> SharedMemory | None:
        """Returns memory that all workers have open. Every worker must call it; either all get it, or none does.

        It has no name, so nothing is left behind however the processes end.

        Raises:
          LostError: another task was lost meanwhile.
        """
        memory, fault, offer = None, None, None
        try:
            if self._is_chief:
                _check_free(FLOAT_BYTES * num_floats, self._root)
                memory = replace(create_memory(num_floats), tokens=self._tokens)
                fault = self._fault_of_servers(memory) if self._tokens else None
                offer = {'path': memory.path, 'nonce': memory.nonce}
        except NoMemoryError as error:
            fault = str(error)
        offer = self._gather('shared_memory/offer', offer)[0]
        try:
            if offer and not memory:
                memory = replace(open_memory(**offer, num_floats=num_floats), tokens=self._tokens)
        except NoMemoryError as error:
            fault = str(error)
        fault = next(filter(None, self._gather('shared_memory/fault', fault)), None)
        self._memory = memory
        if fault is None and memory:
            return memory
        self.close()
        if self._is_chief:
            self._warn(f'gradients go over the network, although all tasks are on one host: {fault}')
        return None

    def close(self) -> None:
        """Closes the memory, which nobody opens any more; what has mapped it keeps it for so long."""
        if self._memory:
            os.close(self._memory.file)
            self._memory = None


def _check_free(num_bytes: int, root: Path) -> None:
    free = free_memory(root)
    if free is not None and num_bytes > free:
        raise NoMemoryError(f'it takes {num_bytes / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free')
