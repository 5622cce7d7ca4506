"""Memory that processes of one host share: an anonymous file, freed when the last process that has it open ends."""

import functools
import json
import mmap
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

Tensor = Any

FLOAT_BYTES = 4
# Memory is mapped by pages. TensorFlow reads arrays in place only if they begin at a multiple of 64 bytes.
PAGE_FLOATS = mmap.PAGESIZE // FLOAT_BYTES
_NONCE_BYTES = 16
# The graph that keeps the functions of this process alive which others call.
_SERVED = tf.Graph()
Tokens = tuple[str, str, str]


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
      tokens: the names of the functions of each parameter server, see serve_memory().
    """

    file: int
    path: str
    nonce: str
    num_floats: int
    tokens: tuple[Tokens, ...] = ()

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


def serve_memory() -> Tokens:
    """Lets the steps of other processes read and write shared memory in this one.

    Returns:
      the tokens of three functions, for read_at, write_at and fault_at.
    """
    with _SERVED.as_default():
        served = (
            tf.numpy_function(_read, [''], tf.float32),
            tf.numpy_function(_write, ['', 0.0], tf.int32),
            tf.numpy_function(_find_fault, [''], tf.string),
        )
    read, write, find_fault = (output.op.get_attr('token').decode() for output in served)
    return read, write, find_fault


def read_at(memory: SharedMemory, server: int, parts: Sequence[tuple[int, Sequence[int]]]) -> list[Tensor]:
    """Reads parts of the memory on a parameter server, the current device.

    They are the memory itself.

    Args:
      server: its index.
      parts: where each begins, in floats, and its shape.
    """
    token, _, _ = memory.tokens[server]
    values = tf.raw_ops.PyFunc(input=[_describe(memory, parts)], token=token, Tout=[tf.float32] * len(parts))
    for value, (_, shape) in zip(values, parts, strict=True):
        value.set_shape(shape)
    return list(values)


def write_at(memory: SharedMemory, server: int, value: Tensor, start: int, inside: tuple[int, int]) -> tf.Operation:
    """Writes a part of a value into the memory on a parameter server, the current device.

    Args:
      server: its index.
      start: where the value begins in the memory, in floats. inside: which part of the value, flat, is written.
    """
    _, token, _ = memory.tokens[server]
    return tf.raw_ops.PyFunc(input=[_describe(memory, (start, *inside)), value], token=token, Tout=[tf.int32])[0].op


def fault_at(memory: SharedMemory, server: int) -> Tensor:
    """Why a parameter server, the current device, cannot open the memory; empty if it can.

    Args:
      server: its index.
    """
    _, _, token = memory.tokens[server]
    return tf.raw_ops.PyFunc(input=[_describe(memory, None)], token=token, Tout=[tf.string])[0]


def _describe(memory: SharedMemory, what: Any) -> Tensor:
    return tf.constant(json.dumps([memory.path, memory.nonce, memory.num_floats, what]))


# A server takes part in one training at a time: the memory of the one before is closed.
@functools.lru_cache(maxsize=1)
def _opened(path: str, nonce: str, num_floats: int) -> Any:
    memory = open_memory(path, nonce, num_floats)
    try:
        # It has a descriptor of its own, which is closed with it.
        return memory.all()
    finally:
        os.close(memory.file)


def _read(description: bytes) -> list[Any]:
    path, nonce, num_floats, parts = json.loads(description)
    array = _opened(path, nonce, num_floats)
    return [array[start : start + int(np.prod(shape))].reshape(shape) for start, shape in parts]


def _write(description: bytes, value: Any) -> Any:
    path, nonce, num_floats, (start, begin, end) = json.loads(description)
    array = _opened(path, nonce, num_floats)
    np.copyto(array[start + begin : start + end], value.reshape(-1)[begin:end])
    return np.int32(0)


def _find_fault(description: bytes) -> bytes:
    path, nonce, num_floats, _ = json.loads(description)
    try:
        memory = open_memory(path, nonce, num_floats)
    except NoMemoryError as error:
        return str(error).encode()
    try:
        memory.all()
    except OSError as error:
        return f'process {os.getpid()} cannot map {path} ({_reason(error)})'.encode()
    finally:
        os.close(memory.file)
    return b''
