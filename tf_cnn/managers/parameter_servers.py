"""Variables on parameter servers: places and reads them, and sends gradients to the servers."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.variables import Variable, create_variable, num_bytes
from tf_cnn.managers.all_reduce import Packer, even_sizes, group_indices
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.training.checkpoints import Slice, join_slices, split_value

Tensor = Any
Pairs = list[tuple[Tensor, Variable]]

# Larger variables are split into slices (--slice_variables), one for each server, so that servers
# hold about the same number of bytes.
_SLICE_BYTES = 512 << 10
# Gradients are sent in segments, two at a time: enough to fill a link of 10 Gbit/s for 3 ms. A
# small network has about 32 smaller ones, so that most transfers overlap: no value returns before
# the first segments of all workers have arrived. Where workers read updates, a large network has
# larger ones, since a busy server takes some time to sum a segment; and its variables have more
# slices, about as large as a segment. Their first values return while their last gradients are on
# their way, but each slice costs time.
_SEGMENT_BYTES, _MIN_SEGMENT_BYTES, NUM_SEGMENTS = 2 << 20, 256 << 10, 32


class TransferQueue:
    """Orders the transfers to one process. Without an order all tensors would share the link, and
    all would arrive late.

    Consecutive tensors form segments. At most two segments are on their way: segment n starts when
    segment n - 2 has arrived.
    """

    def __init__(self, most_bytes: int = _SEGMENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._segment_ends: list[tf.Operation] = []
        self._segment: list[Any] = []
        self._bytes = 0

    def ops_to_wait_for(self, size: int) -> list[tf.Operation]:
        """Returns the op that must run before the next transfer, of this many bytes, if any."""
        if self._segment and self._bytes + size > self._most_bytes:
            self._segment_ends.append(tf.group(*self._segment))
            self._segment, self._bytes = [], 0
        self._bytes += size
        return self._segment_ends[-2:-1]

    def add(self, transfers: Sequence[Any]) -> None:
        self._segment += transfers


@dataclass(frozen=True)
class Bucket:
    """Packed gradients on the host of this worker, and the variables (or slices) of one server that
    they update.

    is_received: whether the gradients are on the server already, as float32.
    """

    device: str
    tensors: list[Tensor]
    packer: Packer
    variables: Sequence[Variable]
    is_received: bool = False

    @property
    def name(self) -> str:
        return self.variables[0].name

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(variable.shape) for variable in self.variables)

    def send(self, ops_to_wait_for: Sequence[tf.Operation] = ()) -> list[Tensor]:
        """Sends the gradients after these ops of the server, and returns them there, as float32."""
        tensors = self.tensors
        if self.is_received:
            return tensors
        if ops_to_wait_for:
            with tf.device(HOST_DEVICE), tf.control_dependencies(ops_to_wait_for):
                tensors = [tf.identity(tensor) for tensor in tensors]
        with tf.device(self.device):
            return [tf.identity(tf.cast(tensor, tf.float32)) for tensor in tensors]

    def unpack(self, tensors: Sequence[Tensor]) -> Pairs:
        with tf.device(self.device):
            return list(zip(self.packer.unpack(tensors), self.variables, strict=True))


class ParameterServerVariables:
    """The variables on the parameter servers, by name, each in one or more slices.

    A variable is placed on the server with the fewest bytes so far; a large variable is first
    split along its first axis with several indices, or its longest.

    Args:
      keeps_compact: whether refresh() casts each trainable variable to config.transfer once for
        all workers; otherwise it is cast for each worker that reads it.
      num_segments: into how many segments of about equal size the gradients are divided, for
        workers that read the variables in the step that updates them; None for other workers.
    """

    def __init__(
        self,
        config: ManagerConfig,
        scope: str = 'v',
        *,
        keeps_compact: bool = False,
        num_segments: int | None = None,
    ) -> None:
        self.slices: dict[str, list[Slice]] = {}
        # The cast value of each slice, by a reference to the slice's handle; refresh() writes it.
        self._compact_values: dict[Any, Variable] = {}
        self._keeps_compact = keeps_compact
        self._num_segments = num_segments
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
            values = split_value(slices, make_value())
            return tf.group(
                *(
                    variable_slice.variable.assign(value)
                    for variable_slice, value in zip(slices, values, strict=True)
                )
            )

    def _plan_slices(self, shape: list[int]) -> list[tuple[str, list[int], list[int]]]:
        """Returns the device, offset and shape of each slice."""
        emptiest_first = sorted(self.server_bytes, key=self.server_bytes.__getitem__)
        total, num_servers = num_bytes(shape), len(emptiest_first)
        num_slices = min(-(-total // _SLICE_BYTES), num_servers)
        if self._num_segments:
            segment_bytes = -(-(sum(self.server_bytes.values()) + total) // self._num_segments)
            num_slices = max(num_slices, -(-total // max(_MIN_SEGMENT_BYTES, segment_bytes)))
        if num_slices < 2 or not self._config.flags.slice_variables:
            return [(emptiest_first[0], [0] * len(shape), shape)]
        # Each server gets the same number of slices.
        num_slices = -(-num_slices // num_servers) * num_servers
        axis, placements, start = _axis_to_split(shape, num_slices), [], 0
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
        """Reads the current value, float32, onto a device of this worker; all its towers copy it
        from there.

        A read waits for the update of its slice in `updated`, and for its turn in the server's
        queue.
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

        Returns `updates`, with the cast of a variable in place of its update.
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
        """Returns a queue for each server, with segments that fit the size of its variables."""
        queues = {}
        for device, size in self.server_bytes.items():
            most_bytes = max(_MIN_SEGMENT_BYTES, size // NUM_SEGMENTS)
            queues[device] = TransferQueue(
                most_bytes if self._num_segments else min(_SEGMENT_BYTES, most_bytes)
            )
        return queues

    def pack(self, gradients: Sequence[tuple[str, Tensor]]) -> list[Bucket]:
        """Packs (name, gradient) pairs on the host of this worker, in sending order."""
        by_device: dict[str, Pairs] = {}
        for name, gradient in gradients:
            # Cast on the gradient's device: a GPU then sends half as many bytes to its host.
            with tf.device(gradient.device):
                compact_gradient = self._compact(gradient)
            slices = self.slices[name]
            with tf.device(HOST_DEVICE):
                slice_gradients = split_value(slices, compact_gradient)
            for variable_slice, slice_gradient in zip(slices, slice_gradients, strict=True):
                by_device.setdefault(variable_slice.variable.device, []).append(
                    (slice_gradient, variable_slice.variable)
                )
        buckets = []
        for device, pairs in by_device.items():
            for group in group_indices(
                [variable.shape for _, variable in pairs], self._config.flags
            ):
                tensors, variables = zip(*(pairs[number] for number in group), strict=True)
                packer = Packer([variable.shape for variable in variables], self._config.flags)
                with tf.device(HOST_DEVICE):
                    buckets.append(Bucket(device, packer.pack(tensors), packer, variables))
        return buckets

    def group_by_variable(self, pairs: Pairs) -> list[Pairs]:
        """Groups (gradient, slice) pairs by variable."""
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
        # Casting a compact value again changes nothing.
        return tensor if self._config.transfer is None else tf.cast(tensor, self._config.transfer)


def _axis_to_split(shape: Sequence[int], num_slices: int) -> int:
    """Returns the first axis with several indices if slices along it are about equally large, as
    they are contiguous, and need no copy; otherwise the longest axis.
    """
    axis = next(number for number, length in enumerate(shape) if length > 1)
    is_even = shape[axis] % num_slices == 0 or shape[axis] >= 8 * num_slices
    return axis if is_even else int(np.argmax(shape))
