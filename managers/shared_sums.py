"""Sums the gradients of workers in memory that they share, without sending any."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from managers.buckets import even_sizes
from training.shared_memory import PAGE_FLOATS, SharedMemory
from training.variables import HOST_DEVICE, Variable

Tensor = Any
# (number of floats) -> memory of that size, the same for all workers, who must all call it; None if it cannot be had.
ShareMemory = Callable[[int], SharedMemory | None]

# In how many calls a worker writes, and adds: they run in parallel, since NumPy copies and adds without Python's lock.
_CALLS = 4
# Sums are made block by block, so that each is still in the cache when weight decay is added to it.
_FLOATS_OF_BLOCK = 1 << 16


@dataclass(frozen=True)
class Decay:
    """Weight decay, which is part of each sum: factor * value.

    Attributes:
      factor: scalar float32 tensor.
      values: for each gradient the value of its variable, float32 on the host, or None if it does not decay.
    """

    factor: Tensor
    values: Sequence[Tensor | None]

    @classmethod
    def of(cls, factor: Tensor | None, variables: Sequence[Variable]) -> 'Decay | None':
        """Weight decay for the gradients of variables; None if there is none."""
        if factor is None:
            return None
        return cls(factor, [variable.value if variable.decays else None for variable in variables])

    def added_to(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients with weight decay, where no sums are shared."""
        return [
            gradient if value is None else gradient + self.factor * value
            for gradient, value in zip(gradients, self.values, strict=True)
        ]


class SharedSums:
    """Reduces and scatters, then gathers, through memory instead of messages; each worker adds one slice.

        worker 0: write g0, slice 1 ---+        +-- slice 0 of the sum = g0 + g1 --+        +-- read the sum
                                       barrier                                    barrier
        worker 1: write g1, slice 0 ---+        +-- slice 1 of the sum = g0 + g1 --+        +-- read the sum

    The memory has room for the sum, and after it for the gradients of each worker. Workers overwrite what they wrote
    for a step only in the next one, after it was added, and the sum after the first barrier of the next step, which no
    worker reaches before its own step is over. Sums are float32, added in the order of the workers.

    Args:
      shapes: of the gradients.
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
        decay: Decay | None = None,
    ) -> list[tf.Operation]:
        """Returns the ops that add this worker's slice of the sums.

        Args:
          gradients: those of this worker, float32.
          barrier: returns an op that runs once every worker has run the ops given.
          decay: what each worker adds to its slice. The values may lie where the sums are written.
        """
        areas = memory.all().reshape(1 + self._num_workers, -1)
        first, last = self._bounds[self._worker : self._worker + 2]
        with tf.device(HOST_DEVICE), tf.name_scope('shared_sums'):
            written = self._call(_writer(areas, self._worker), gradients, [(0, first), (last, self._size)])
            with tf.control_dependencies([barrier(written)]):
                return self._call(_adder(areas, self._worker), gradients, [(first, last)], decay)

    def read(self, memory: SharedMemory) -> list[Tensor]:
        """Returns the sums, on the host; to be built under a control dependency on all that was added.

        They are the memory itself, which the next step overwrites.
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

    def _call(
        self,
        act: 'Act',
        gradients: Sequence[Tensor],
        slices: Sequence[tuple[int, int]],
        decay: Decay | None = None,
    ) -> list[tf.Operation]:
        """Returns ops that call act for all parts of gradients in the slices, each op for about as many bytes."""
        values = decay.values if decay else [None] * len(gradients)
        ops = []
        for start, stop in slices:
            bounds = itertools.accumulate(even_sizes(stop - start, _CALLS), initial=start)
            for begin, end in itertools.pairwise(bounds):
                parts = list(self._overlaps(begin, end))
                if parts:
                    inputs = [gradients[number] for number, _, _ in parts]
                    inputs += [values[number] for number, _, _ in parts if values[number] is not None]
                    inputs += [decay.factor] if decay else []
                    places = [(inside, where, values[number] is not None) for number, inside, where in parts]
                    ops.append(tf.numpy_function(_over(act, places), inputs, tf.int32).op)
        return ops

    def _overlaps(self, begin: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Yields the numbers of the tensors in a range, which part of each is in it, and where in an area that is."""
        for number, (start, stop) in enumerate(self._ranges):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                yield number, slice(low - start, high - start), slice(low, high)


# (part of a gradient, flat; where in an area it is; then, if it decays, the same part of the value, and the factor)
Act = Callable[..., None]


def _writer(areas: Any, worker: int) -> Act:
    area = areas[1 + worker]

    def write(part: Any, where: slice) -> None:
        np.copyto(area[where], part)

    return write


def _adder(areas: Any, worker: int) -> Act:
    total, received = areas[0], areas[1:]

    def add(part: Any, where: slice, value: Any = None, factor: Any = None) -> None:
        terms = [part if index == worker else area[where] for index, area in enumerate(received)]
        out = total[where]
        # Gradients may overflow: the loss scale then skips the step.
        with np.errstate(all='ignore'):
            if value is None:
                _sum(terms, out)
                return
            decay = np.empty(min(part.size, _FLOATS_OF_BLOCK), np.float32)
            for start in range(0, part.size, _FLOATS_OF_BLOCK):
                block = slice(start, start + _FLOATS_OF_BLOCK)
                # First, since the value may lie where the sum is written.
                decayed = np.multiply(value[block], factor, out=decay[: value[block].size])
                _sum([*(term[block] for term in terms), decayed], out[block])

    return add


def _sum(terms: Sequence[Any], out: Any) -> None:
    first, *others = terms
    if not others:
        np.copyto(out, first)
    for other in others:
        first = np.add(first, other, out=out)


def _over(act: Act, places: Sequence[tuple[slice, slice, bool]]) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        gradients, more = arrays[: len(places)], arrays[len(places) :]
        values = iter(more[:-1])
        for gradient, (inside, where, is_decayed) in zip(gradients, places, strict=True):
            decay = (next(values).reshape(-1)[inside], more[-1]) if is_decayed else ()
            act(gradient.reshape(-1)[inside], where, *decay)
        return np.int32(0)

    return call
