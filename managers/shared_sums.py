"""Sums the gradients of workers in memory that they share, without sending any."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from managers.buckets import even_sizes
from params.device_flags import HOST_DEVICE
from training.memory_files import PAGE_FLOATS, SharedMemory

Tensor = Any
# (number of floats) -> memory of that size, shared by all workers, or None if there is none. Every worker must call it.
ShareMemory = Callable[[int], SharedMemory | None]

# A worker splits its writing, and its adding, into this many calls. They run in parallel, since NumPy copies and adds
# without Python's lock.
_CALLS = 4


class SharedSums:
    """Sums gradients in memory instead of by messages: each worker adds one slice, and all read the whole sum.

        worker 0: write g0, slice 1 ---+        +-- slice 0 of the sum = g0 + g1 --+        +-- read the sum
                                       barrier                                    barrier
        worker 1: write g1, slice 0 ---+        +-- slice 1 of the sum = g0 + g1 --+        +-- read the sum

    The memory holds the sum, followed by the gradients of each worker. A worker overwrites its gradients only in the
    next step, when they have been added. The sum is overwritten only after the first barrier of the next step, which
    no worker reaches before its own step is over. Sums are float32, added in the order of the workers.

    Args:
      shapes: the shapes of the gradients.
      worker: the index of this worker.
      num_workers: the number of workers.

    Attributes:
      starts: where each sum begins in the memory, in floats.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], worker: int, num_workers: int) -> None:
        self._shapes = [tuple(shape) for shape in shapes]
        self._worker = worker
        self._num_workers = num_workers
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        *starts, self._size = itertools.accumulate((-(-size // PAGE_FLOATS) * PAGE_FLOATS for size in sizes), initial=0)
        self.starts = starts
        self._ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self._bounds = list(itertools.accumulate(even_sizes(self._size, num_workers), initial=0))

    @property
    def num_floats(self) -> int:
        """The size of the memory."""
        return self._size * (1 + self._num_workers)

    def add(
        self,
        memory: SharedMemory,
        gradients: Sequence[Tensor],
        barrier: Callable[[Sequence[tf.Operation]], tf.Operation],
    ) -> list[tf.Operation]:
        """Returns the ops that add this worker's slice of the sums.

        Args:
          gradients: the gradients of this worker, float32.
          barrier: returns an op that runs once every worker has run the given ops.
        """
        areas = memory.all().reshape(1 + self._num_workers, -1)
        first, last = self._bounds[self._worker : self._worker + 2]
        with tf.device(HOST_DEVICE), tf.name_scope('shared_sums'):
            written = self._call(_writer(areas, self._worker), gradients, [(0, first), (last, self._size)])
            with tf.control_dependencies([barrier(written)]):
                return self._call(_adder(areas, self._worker), gradients, [(first, last)])

    def read(self, memory: SharedMemory) -> list[Tensor]:
        """Returns the sums, on the host. Call it under a control dependency on the additions of all workers.

        The sums are views of the memory, which the next step overwrites.
        """
        area = memory.view(self._size)

        def read() -> list[Any]:
            return [area[start:stop].reshape(shape) for (start, stop), shape in zip(ranges, shapes, strict=True)]

        ranges, shapes = self._ranges, self._shapes
        with tf.device(HOST_DEVICE):
            sums = tf.numpy_function(read, [], [tf.float32] * len(shapes))
        for total, shape in zip(sums, shapes, strict=True):
            total.set_shape(shape)
        return list(sums)

    def _call(self, act: 'Act', gradients: Sequence[Tensor], slices: Sequence[tuple[int, int]]) -> list[tf.Operation]:
        """Returns ops that call act for all parts of gradients in the slices; all ops process about as many bytes."""
        ops = []
        for start, stop in slices:
            bounds = itertools.accumulate(even_sizes(stop - start, _CALLS), initial=start)
            for begin, end in itertools.pairwise(bounds):
                parts = list(self._overlaps(begin, end))
                if parts:
                    inputs = [gradients[number] for number, _, _ in parts]
                    ops.append(tf.numpy_function(_over(act, [part[1:] for part in parts]), inputs, tf.int32).op)
        return ops

    def _overlaps(self, begin: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Yields for each tensor in a range: its number, its slice that is in the range, and that slice's place."""
        for number, (start, stop) in enumerate(self._ranges):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                yield number, slice(low - start, high - start), slice(low, high)


# (part of a gradient, flat; the place of the part in an area)
Act = Callable[[Any, slice], None]


def _writer(areas: Any, worker: int) -> Act:
    area = areas[1 + worker]

    def write(part: Any, where: slice) -> None:
        np.copyto(area[where], part)

    return write


def _adder(areas: Any, worker: int) -> Act:
    total, received = areas[0], areas[1:]

    def add(part: Any, where: slice) -> None:
        first, *others = [part if index == worker else area[where] for index, area in enumerate(received)]
        out = total[where]
        if not others:
            np.copyto(out, first)
        # Gradients may overflow: the loss scale then skips the step.
        with np.errstate(all='ignore'):
            for other in others:
                first = np.add(first, other, out=out)

    return add


def _over(act: Act, parts: Sequence[tuple[slice, slice]]) -> Callable[..., Any]:
    def call(*gradients: Any) -> Any:
        for gradient, (inside, where) in zip(gradients, parts, strict=True):
            act(gradient.reshape(-1)[inside], where)
        return np.int32(0)

    return call
