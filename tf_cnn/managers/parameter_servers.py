"""Variables on parameter servers: their placement, reading them, and sending gradients to them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.variables import Variable, create_variable, num_bytes
from tf_cnn.managers.buckets import Packer, even_sizes, group_indices
from tf_cnn.managers.config import ManagerConfig
from tf_cnn.training.checkpoints import Slice, join_slices

Tensor = Any
Pairs = list[tuple[Tensor, Variable]]

# Larger variables are split into parts (--slice_variables), one for each server, so that these have
# about the same number of bytes. Where workers read updates, there are more, so that the first
# values of a variable return while its last gradients are on their way. Each part costs time within
# one host: with 233 of them, a step of AlexNet with staged variables took a quarter longer.
_SLICE_BYTES, _MAX_SLICES = 512 << 10, 16
# Two segments are on their way at once, enough to fill a link of 10 Gbit/s for 3 ms. A small
# network has smaller ones, about 16, so that most of it overlaps: nothing returns before the first
# segments of all workers have arrived.
_MIN_SEGMENT_BYTES, _SEGMENT_BYTES, _NUM_SEGMENTS = 256 << 10, 2 << 20, 16


class TransferQueue:
    """Orders the transfers to one process, so that the first tensors arrive first instead of all of
    them together.

    Consecutive tensors form segments. Those of one segment start when the segment before the
    previous one is done, so that two are on their way.
    """

    def __init__(self, most_bytes: int = _SEGMENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._segment_ends: list[tf.Operation] = []
        self._segment: list[Any] = []
        self._bytes = 0

    def ops_to_wait_for(self, size: int) -> list[tf.Operation]:
        """Returns the op that the next transfer, of this many bytes, waits for, if any."""
        if self._segment and self._bytes + size > self._most_bytes:
            self._segment_ends.append(tf.group(*self._segment))
            self._segment, self._bytes = [], 0
        self._bytes += size
        return self._segment_ends[-2:-1]

    def add(self, transfers: Sequence[Any]) -> None:
        self._segment += transfers


@dataclass(frozen=True)
class Bucket:
    """Gradients packed on the host of this worker, and one server's variables (or parts of them)
    that they update.
    """

    device: str
    tensors: list[Tensor]
    packer: Packer
    variables: Sequence[Variable]

    @property
    def name(self) -> str:
        return self.variables[0].name

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(variable.shape) for variable in self.variables)

    def send(self, ops_to_wait_for: Sequence[tf.Operation]) -> list[Tensor]:
        """Sends the gradients after these ops of the server, and returns them there, as float32."""
        tensors = self.tensors
        if ops_to_wait_for:
            with tf.device(HOST_DEVICE), tf.control_dependencies(ops_to_wait_for):
                tensors = [tf.identity(tensor) for tensor in tensors]
        with tf.device(self.device):
            return [tf.identity(tf.cast(tensor, tf.float32)) for tensor in tensors]

    def unpack(self, tensors: Sequence[Tensor]) -> Pairs:
        with tf.device(self.device):
            return list(zip(self.packer.unpack(tensors), self.variables, strict=True))


class ParameterServerVariables:
    """The variables on the parameter servers, by name, each in one or more parts.

    A variable is placed on the server with the fewest bytes so far; a large one is first split
    along its longest axis.

    Args:
      keeps_compact: whether each trainable variable is cast to parts.transfer once, by refresh(),
        for all workers that read it; else once for each of them.
      reads_updates: whether workers read the variables in the step that updates them.
    """

    def __init__(
        self,
        config: ManagerConfig,
        scope: str = 'v',
        *,
        keeps_compact: bool = False,
        reads_updates: bool = False,
    ) -> None:
        self.slices: dict[str, list[Slice]] = {}
        # What refresh() keeps of each part, by a reference to the handle of its variable.
        self._compact_values: dict[Any, Variable] = {}
        self._keeps_compact = keeps_compact
        self._max_slices = _MAX_SLICES if reads_updates else len(config.server_devices)
        self._scope = scope
        self.server_bytes = dict.fromkeys(config.server_devices, 0)
        self._config = config

    def create(
        self, name: str, shape: Sequence[int], trainable: bool, make_value: Callable[[], Tensor]
    ) -> tf.Operation:
        """Adds a variable and returns its initializer op."""
        slices = []
        for number, (device, offset, size) in enumerate(self._plan_slices(list(shape))):
            self.server_bytes[device] += num_bytes(size)
            slice_name = name if size == list(shape) else f'{name}/part_{number}'
            variable = create_variable(
                slice_name, size, scope=self._scope, device=device, trainable=trainable
            )
            slices.append(Slice(variable, tuple(offset), tuple(shape)))
            if trainable and self._keeps_compact and (transfer := self._config.transfer):
                self._compact_values[variable.handle.ref()] = create_variable(
                    f'{slice_name}/compact', size, scope=self._scope, device=device, dtype=transfer
                )
        self.slices[name] = slices
        if not self._config.is_chief:
            return tf.no_op()
        with tf.device(slices[0].variable.device):
            value = make_value()
            return tf.group(
                *(
                    variable_slice.variable.assign(
                        tf.slice(value, variable_slice.offset, variable_slice.variable.shape)
                    )
                    for variable_slice in slices
                )
            )

    def _plan_slices(self, shape: list[int]) -> list[tuple[str, list[int], list[int]]]:
        """Returns the device, offset and shape of each part."""
        emptiest_first = sorted(self.server_bytes, key=self.server_bytes.__getitem__)
        num_slices = min(-(-num_bytes(shape) // _SLICE_BYTES), self._max_slices)
        if num_slices < 2 or not self._config.slices_variables:
            return [(emptiest_first[0], [0] * len(shape), shape)]
        # Each server gets as many as the others.
        num_slices = -(-num_slices // len(emptiest_first)) * len(emptiest_first)
        axis, placements, start = int(np.argmax(shape)), [], 0
        lengths = even_sizes(shape[axis], min(num_slices, shape[axis]))
        for device, length in zip(itertools.cycle(emptiest_first), lengths, strict=False):
            offset, size = [0] * len(shape), list(shape)
            offset[axis], size[axis] = start, length
            placements.append((device, offset, size))
            start += length
        return placements

    def fetch(
        self,
        name: str,
        device: str,
        *,
        updated: Mapping[Any, tf.Operation] | None = None,
        queues: Mapping[str, TransferQueue] | None = None,
    ) -> Tensor:
        """Reads the current value, float32, onto a device of this worker, from which all its towers
        copy it.

        A read waits for the op that `updated` has for its variable, and for its turn in the
        server's `make_queues`.
        """
        slices = self.slices[name]
        values = []
        for variable_slice in slices:
            variable = variable_slice.variable
            ref = variable.handle.ref()
            after = [updated[ref]] if updated else []
            if queues:
                after += queues[variable.device].ops_to_wait_for(num_bytes(variable.shape))
            with tf.control_dependencies(after):
                value = self._compact_values.get(ref, variable).read_again()
            if variable.trainable:
                # Moving averages stay in float32: the worker writes them back, and their updates
                # are too small for 16 bits.
                with tf.device(variable.device):
                    value = self._compact(value)
            with tf.device(device):
                values.append(tf.cast(tf.identity(value), tf.float32))
            if queues:
                queues[variable.device].add(values[-1:])
        with tf.device(device):
            return join_slices(slices, values)

    def refresh(self, updates: Mapping[Any, tf.Operation] | None = None) -> dict[Any, tf.Operation]:
        """Casts the variables for the workers that read them next, see keeps_compact.

        Returns the updates, with the op that casts a variable in place of the op that updates it.
        """
        ops = dict(updates or {})
        for variable in (
            variable_slice.variable for slices in self.slices.values() for variable_slice in slices
        ):
            ref = variable.handle.ref()
            if compact := self._compact_values.get(ref):
                with (
                    tf.control_dependencies([updates[ref]] if updates else []),
                    tf.device(variable.device),
                ):
                    ops[ref] = compact.assign(self._compact(variable.read_again()))
        return ops

    def make_queues(self) -> dict[str, TransferQueue]:
        """Returns, for each server, an order of transfers that fits the size of its variables."""
        return {
            device: TransferQueue(
                min(_SEGMENT_BYTES, max(_MIN_SEGMENT_BYTES, size // _NUM_SEGMENTS))
            )
            for device, size in self.server_bytes.items()
        }

    def pack(self, gradients: Sequence[tuple[str, Tensor]]) -> list[Bucket]:
        """Packs (name, gradient) pairs on the host of this worker, in the order in which they are
        to be sent.
        """
        by_device: dict[str, Pairs] = {}
        for name, gradient in gradients:
            # Cast on the gradient's device: a GPU then sends half as many bytes to its host.
            with tf.device(gradient.device):
                compact_gradient = self._compact(gradient)
            for variable_slice in self.slices[name]:
                slice_gradient = compact_gradient
                if variable_slice.variable.shape != variable_slice.full_shape:
                    with tf.device(HOST_DEVICE):
                        slice_gradient = tf.slice(
                            compact_gradient, variable_slice.offset, variable_slice.variable.shape
                        )
                by_device.setdefault(variable_slice.variable.device, []).append(
                    (slice_gradient, variable_slice.variable)
                )
        buckets = []
        for device, pairs in by_device.items():
            for group in group_indices(
                [variable.shape for _, variable in pairs], self._config.packing
            ):
                tensors, variables = zip(*(pairs[number] for number in group), strict=True)
                packer = Packer([variable.shape for variable in variables], self._config.packing)
                with tf.device(HOST_DEVICE):
                    buckets.append(Bucket(device, packer.pack(tensors), packer, variables))
        return buckets

    def group_by_variable(self, pairs: Pairs) -> list[Pairs]:
        """Groups (gradient, part) pairs by variable: all parts of a variable are in one list."""
        pair_by_slice = {
            variable.handle.ref(): (gradient, variable) for gradient, variable in pairs
        }
        groups = [
            [
                pair_by_slice[ref]
                for variable_slice in slices
                if (ref := variable_slice.variable.handle.ref()) in pair_by_slice
            ]
            for slices in self.slices.values()
        ]
        return [group for group in groups if group]

    def _compact(self, tensor: Tensor) -> Tensor:
        # A value that is compact already stays as it is.
        return tensor if self._config.transfer is None else tf.cast(tensor, self._config.transfer)
