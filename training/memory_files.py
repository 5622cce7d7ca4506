"""Shared memory of the processes of one host: an anonymous file, freed when the last process that opened it ends."""

import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOAT_BYTES = 4
# Memory is mapped in pages, which also gives the alignment of 64 bytes that TensorFlow needs to read arrays in place.
PAGE_FLOATS = mmap.PAGESIZE // FLOAT_BYTES
_NONCE_BYTES = 16


class NoMemoryError(Exception):
    """The memory cannot be created or opened; the message says why."""


@dataclass(frozen=True)
class SharedMemory:
    """Float32 numbers that several processes read and write.

    Attributes:
      file: the descriptor of the file in this process.
      path: the path by which other processes of this host open it, while the process that created it is alive.
      nonce: a random text at the end of the file, by which they recognise the file.
      num_floats: the number of floats, without the nonce.
    """

    file: int
    path: str
    nonce: str
    num_floats: int

    def all(self) -> Any:
        """Returns the whole memory as a writable array [num_floats]."""
        return np.frombuffer(mmap.mmap(self.file, FLOAT_BYTES * self.num_floats), np.float32)

    def view(self, num_floats: int) -> Any:
        """Returns the first part as a read-only array [num_floats]. Writing to it ends the process.

        TensorFlow takes such an array as a tensor without a copy, and never reuses its memory for the results of ops.
        """
        return np.frombuffer(mmap.mmap(self.file, FLOAT_BYTES * num_floats, access=mmap.ACCESS_READ), np.float32)


def create_memory(num_floats: int) -> SharedMemory:
    """Creates memory that other processes can open.

    Raises:
      NoMemoryError: the memory is not available.
    """
    nonce, size = secrets.token_bytes(_NONCE_BYTES), FLOAT_BYTES * num_floats
    file = -1
    try:
        file = os.memfd_create('tf_cnn_benchmarks')
        # Allocate all pages now: a page that is not available later would kill the process.
        os.posix_fallocate(file, 0, size + _NONCE_BYTES)
        os.pwrite(file, nonce, size)
    except (OSError, AttributeError) as error:  # a Python built for an older system lacks the function
        if file >= 0:
            os.close(file)
        raise NoMemoryError(f'{size / 1e6:.0f} MB of it cannot be had ({_reason(error)})') from error
    return SharedMemory(file, f'/proc/{os.getpid()}/fd/{file}', nonce.hex(), num_floats)


def open_memory(path: str, nonce: str, num_floats: int) -> SharedMemory:
    """Opens memory that another process of this host created.

    Raises:
      NoMemoryError: the file cannot be opened, or is a different one.
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
