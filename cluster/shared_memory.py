"""Memory that the workers of a host share: an anonymous file, freed when the last process that has it open ends."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The processes that can open each other's files: those of one kernel that see each other under the same numbers.
_BOOT, _PROCESSES = Path('/proc/sys/kernel/random/boot_id'), Path('/proc/self/ns/pid')
_NONCE_BYTES = 16
Gather = Callable[[str, Any], list[Any]]


def share_memory(num_bytes: int, *, is_chief: bool, gather: Gather, warn: Callable[[str], None]) -> int | None:
    """Returns a file descriptor of memory that all workers have open, or None if they cannot share any.

    Every worker must call it, and all get memory or none does. The kernel frees the memory with the last process that
    has it open, however that ends: the file has no name, so nothing is left behind.

    Args:
      num_bytes: the size of the memory, the same for every worker.
      gather: returns what all workers passed under a name, in their order.
      warn: prints a warning; called by the chief, if the workers are on one host and yet share no memory.

    Raises:
      LostError: another worker was lost meanwhile.
    """
    hosts = gather('shared_memory/host', _find_host())
    if hosts[0] is None or any(host != hosts[0] for host in hosts):
        return None
    file, offer = _create(num_bytes) if is_chief else (None, None)
    offer = gather('shared_memory/offer', offer)[0]
    fault = offer['fault']
    if not fault and not is_chief:
        file, fault = _open(offer['path'], offer['nonce'])
    fault = next(filter(None, gather('shared_memory/fault', fault)), None)
    if fault is None:
        return file
    if file is not None:
        os.close(file)
    if is_chief:
        warn(f'the workers exchange gradients over the network, not in shared memory: {fault}')
    return None


def _find_host() -> list[Any] | None:
    """What the processes that can share memory have in common; None where there is no such memory."""
    try:
        return [_BOOT.read_text().strip(), _PROCESSES.stat().st_ino, hasattr(os, 'memfd_create')]
    except OSError:
        return None


def _create(num_bytes: int) -> tuple[int | None, dict[str, Any]]:
    """The descriptor of new memory, and what others need to open it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        file = os.memfd_create('tf_cnn_benchmarks')
    except OSError as error:
        return None, {'fault': str(error)}
    try:
        # Now, since a page that cannot be had later kills the process.
        os.posix_fallocate(file, 0, num_bytes + _NONCE_BYTES)
        os.pwrite(file, nonce, num_bytes)
    except OSError as error:
        os.close(file)
        return None, {'fault': f'{num_bytes / 1e6:.0f} MB of it cannot be had ({os.strerror(error.errno or 0)})'}
    return file, {'fault': None, 'path': f'/proc/{os.getpid()}/fd/{file}', 'nonce': nonce.hex()}


def _open(path: str, nonce: str) -> tuple[int | None, str | None]:
    """The descriptor of the memory behind a path of _create; None and the reason if it cannot be opened."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return None, f'process {os.getpid()} cannot open {path} ({os.strerror(error.errno or 0)})'
    if os.pread(file, _NONCE_BYTES, max(0, os.fstat(file).st_size - _NONCE_BYTES)).hex() == nonce:
        return file, None
    os.close(file)
    return None, f'{path} is another file for process {os.getpid()}'
