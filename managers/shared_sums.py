"""Sums the gradients of workers in memory that they share, without sending any."""

import itertools
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from managers.buckets import even_sizes
from training.variables import HOST_DEVICE

Tensor = Any
# (bytes) -> a file descriptor of so much memory, which all workers have open; None if they share none.
ShareMemory = Callable[[int], int | None]
# Returns the op that runs once every worker has run the ops given; number distinguishes the barriers of a step.
Barrier = Callable[[int, Sequence[tf.Operation]], tf.Operation]

_FLOAT_BYTES = 4
# Tensors start at multiples of so many floats, a page: TensorFlow reads tensors in place only if they are aligned, and
# memory is mapped by pages.
_ALIGNMENT = mmap.PAGESIZE // _FLOAT_BYTES
# In how many calls a worker writes, and adds: they run in parallel, since NumPy copies and adds without Python's lock.
_CALLS = 4


def share_none(num_bytes: int) -> int | None:
    """Where no memory is shared."""
    del num_bytes
    return None


class SharedSums:
    """Reduces and scatters, then gathers, through memory instead of messages; each worker adds one slice.

        worker 0: write g0, slice 1 ---+        +-- slice 0 of the sum = g0 + g1 --+        +-- read the sum
                                       barrier 0                                  barrier 1
        worker 1: write g1, slice 0 ---+        +-- slice 1 of the sum = g0 + g1 --+        +-- read the sum

    The memory has room for the sum, and after it for the gradients of each worker. Workers overwrite what they wrote
    for a step only in the next one, when barrier 1 shows that it was added, and the sum after barrier 0 of the next
    step, which no worker reaches before its own step is over. Sums are float32, added in the order of the workers.

    Args:
      shapes: of the gradients.
      worker: the index of this worker.
      num_workers: the number of workers.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], worker: int, num_workers: int) -> None:
        self._shapes = [tuple(shape) for shape in shapes]
        self._worker = worker
        self._num_workers = num_workers
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        starts = list(itertools.accumulate(padded, initial=0))
        self._size = starts.pop()
        self._ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self._bounds = list(itertools.accumulate(even_sizes(self._size, num_workers), initial=0))

    @property
    def num_bytes(self) -> int:
        """The bytes of memory that it takes."""
        return _FLOAT_BYTES * self._size * (1 + self._num_workers)

    def build(self, file: int, gradients: Sequence[Tensor], barrier: Barrier) -> list[Tensor]:
        """Returns the sums of the gradients of all workers, float32, on the host.

        Args:
          file: a file descriptor of the memory, which this takes over.
          gradients: those of this worker, float32.
        """
        areas = np.frombuffer(mmap.mmap(file, self.num_bytes), np.float32).reshape(1 + self._num_workers, -1)
        first, last = self._bounds[self._worker : self._worker + 2]
        with tf.device(HOST_DEVICE), tf.name_scope('shared_sums'):
            own = [(first, last)]
            others = [(0, first), (last, self._size)]
            written = barrier(0, self._call(_writer(areas, self._worker), gradients, others))
            with tf.control_dependencies([written]):
                added = self._call(_adder(areas, self._worker), gradients, own)
            with tf.control_dependencies([barrier(1, added)]):
                return self._read(file)

    def _call(self, act: 'Act', gradients: Sequence[Tensor], slices: Sequence[tuple[int, int]]) -> list[tf.Operation]:
        """Returns ops that call act for all parts of gradients in the slices, each op for about as many bytes."""
        ops = []
        for start, stop in slices:
            bounds = itertools.accumulate(even_sizes(stop - start, _CALLS), initial=start)
            for begin, end in itertools.pairwise(bounds):
                parts = list(self._overlaps(begin, end))
                if not parts:
                    continue
                inputs = [gradients[number] for number, _, _ in parts]
                ops.append(tf.numpy_function(_over(act, [part[1:] for part in parts]), inputs, tf.int32).op)
        return ops

    def _overlaps(self, begin: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Yields the numbers of the tensors in a range, which part of each is in it, and where in an area that is."""
        for number, (start, stop) in enumerate(self._ranges):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                yield number, slice(low - start, high - start), slice(low, high)

    def _read(self, file: int) -> list[Tensor]:
        size, ranges, shapes = _FLOAT_BYTES * self._size, self._ranges, self._shapes

        def read() -> list[Any]:
            # A mapping of its own for each step: an op that reuses its input's memory gets private copies of the pages.
            area = np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_COPY), np.float32)
            return [area[start:stop].reshape(shape) for (start, stop), shape in zip(ranges, shapes, strict=True)]

        sums = tf.numpy_function(read, [], [tf.float32] * len(shapes))
        for total, shape in zip(sums, shapes, strict=True):
            total.set_shape(shape)
        return list(sums)


# (part of a gradient, flat; where in an area it is)
Act = Callable[[Any, slice], None]


def _writer(areas: Any, worker: int) -> Act:
    area = areas[1 + worker]

    def write(part: Any, where: slice) -> None:
        np.copyto(area[where], part)

    return write


def _adder(areas: Any, worker: int) -> Act:
    total, received = areas[0], areas[1:]

    def add(part: Any, where: slice) -> None:
        first, second, *others = [part if index == worker else area[where] for index, area in enumerate(received)]
        out = total[where]
        np.add(first, second, out=out)
        for other in others:
            np.add(out, other, out=out)

    return add


def _over(act: Act, parts: Sequence[tuple[slice, slice]]) -> Callable[..., Any]:
    def call(*gradients: Any) -> Any:
        for gradient, (inside, where) in zip(gradients, parts, strict=True):
            act(gradient.reshape(-1)[inside], where)
        return np.int32(0)

    return call
