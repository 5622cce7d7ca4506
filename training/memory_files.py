"""Memory that processes of one host share: an anonymous file, freed when the last process that has it open ends."""

import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOAT_BYTES = 4
# Memory is mapped by pages. TensorFlow reads arrays in place only if they begin at a multiple of 64 bytes.
PAGE_FLOATS = mmap.PAGESIZE // FLOAT_BYTES
_NONCE_BYTES = 16


class NoMemoryError(Exception):
    """The memory cannot be made, or not be opened; the message says why."""


@dataclass(frozen=True)
class SharedMemory:
    """Float32 numbers that several processes read and write.

    Attributes:
      file: the descriptor of the file in this process.
      path: by which the other processes of this host open it, while the process that made it is alive.
      nonce: at its end, by which they know that it is this file.
      num_floats: its size without the nonce.
    """

    file: int
    path: str
    nonce: str
    num_floats: int

    def all(self) -> Any:
        """All of it, to read and write: an array [num_floats]."""
        return np.frombuffer(mmap.mmap(self.file, FLOAT_BYTES * self.num_floats), np.float32)

    def view(self, num_floats: int) -> Any:
        """The first part, only to be read: an array [num_floats]. Writing there ends the process.

        TensorFlow takes such an array as a tensor without a copy, and never reuses its memory for what ops compute.
        """
        return np.frombuffer(mmap.mmap(self.file, FLOAT_BYTES * num_floats, access=mmap.ACCESS_READ), np.float32)


def create_memory(num_floats: int) -> SharedMemory:
    """Makes memory for other processes to open.

    Raises:
      NoMemoryError: the memory cannot be had.
    """
    nonce, size = secrets.token_bytes(_NONCE_BYTES), FLOAT_BYTES * num_floats
    file = -1
    try:
        file = os.memfd_create('tf_cnn_benchmarks')
        # Now, since a page that cannot be had later kills the process.
        os.posix_fallocate(file, 0, size + _NONCE_BYTES)
        os.pwrite(file, nonce, size)
    except (OSError, AttributeError) as error:  # a Python built for an older system lacks the function
        if file >= 0:
            os.close(file)
        raise NoMemoryError(f'{size / 1e6:.0f} MB of it cannot be had ({_reason(error)})') from error
    return SharedMemory(file, f'/proc/{os.getpid()}/fd/{file}', nonce.hex(), num_floats)


def open_memory(path: str, nonce: str, num_floats: int) -> SharedMemory:
    """Opens memory that another process of this host has made.

    Raises:
      NoMemoryError: it cannot be opened, or is another file.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NoMemoryError(f'process {os.getpid()} cannot open {path} ({_reason(error)})') from error
    if os.pread(file, _NONCE_BYTES, FLOAT_BYTES * num_floats).hex() != nonce:
        os.close(file)
        raise NoMemoryError(f'{path} is another file for process {os.getpid()}')
    return SharedMemory(file, path, nonce, num_floats)


def _reason(error: OSError | AttributeError) -> str:
    return os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
