"""What workers and parameter servers on one host exchange through memory instead of messages."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from managers.buckets import even_sizes
from managers.parameter_servers import Pairs, ParameterServers, ParameterServerVariables
from managers.shared_sums import Decay, SharedSums, ShareMemory
from training.shared_memory import SharedMemory, read_at, write_at
from training.variables import num_bytes

Tensor = Any

# A larger variable is written in several calls, which run in parallel.
_BYTES_OF_CALL = 32 << 20


class SharedExchange:
    """Gradients on their way to parameter servers, and variables on their way back, in memory that all tasks share.

        workers: g0, g1 -> sum (each worker adds a slice) -> ps: v <- v - r sum, v overwrites the sum -> workers read v

    Args:
      servers: the parameter servers.
      memory: as large as `sums` says.
      sums: of the gradients of the parts of variables.
      parts: the (gradient of this worker, part of a variable on its server) pairs.
      decay: what is part of the sums, for each part.
    """

    def __init__(
        self, servers: ParameterServers, memory: SharedMemory, sums: SharedSums, parts: Pairs, decay: Decay | None
    ) -> None:
        self._servers = servers
        self._memory = memory
        self._sums = sums
        self._parts = parts
        self._decay = decay

    def add(self, barrier: Callable[[Sequence[tf.Operation]], tf.Operation]) -> list[tf.Operation]:
        """Returns the ops with which this worker adds its slice of the sums; see SharedSums.add."""
        return self._sums.add(self._memory, [gradient for gradient, _ in self._parts], barrier, self._decay)

    def read_sums(self) -> Pairs:
        """Returns the (sum, variable) pairs on the servers; under a control dependency on all that was added."""
        pairs: Pairs = []
        for server, device in enumerate(self._servers.devices):
            held = [number for number, (_, variable) in enumerate(self._parts) if variable.device == device]
            if held:
                where = [(self._sums.starts[number], self._parts[number][1].shape) for number in held]
                with tf.device(device):
                    found = read_at(self._memory, server, where)
                pairs += [(total, self._parts[number][1]) for number, total in zip(held, found, strict=True)]
        return pairs

    def write_variables(self) -> list[tf.Operation]:
        """Returns the ops that write the variables over the sums; under a control dependency on the update."""
        ops = []
        for start, (_, variable) in zip(self._sums.starts, self._parts, strict=True):
            server, value = list(self._servers.devices).index(variable.device), variable.read_again()
            num_calls = -(-num_bytes(variable.shape) // _BYTES_OF_CALL)
            bounds = itertools.accumulate(even_sizes(int(np.prod(variable.shape)), num_calls), initial=0)
            with tf.device(variable.device):
                ops += [write_at(self._memory, server, value, start, part) for part in itertools.pairwise(bounds)]
        return ops

    def read_variables(self) -> dict[Any, Tensor]:
        """Returns the values by variable.handle.ref(), on the host; under a control dependency on their writes.

        They are the memory itself: the next step overwrites them once nothing reads them any more but what adds weight
        decay, see SynchronousStep.build_shared.
        """
        values = self._sums.read(self._memory)
        return {variable.handle.ref(): value for (_, variable), value in zip(self._parts, values, strict=True)}


def share_parts(
    servers: ParameterServers,
    share: ShareMemory,
    variables: ParameterServerVariables,
    gradients: Pairs,
    decay: Decay | None,
) -> SharedExchange | None:
    """Returns an exchange for these (gradient, variable) pairs, with decay for each; None if there is no memory."""
    parts = variables.cut([(variable.name, gradient) for gradient, variable in gradients])
    sums = SharedSums([variable.shape for _, variable in parts], servers.worker, servers.num_workers)
    memory = share(sums.num_floats)
    if memory is None:
        return None
    if decay:
        named = [(variable.name, value) for (_, variable), value in zip(gradients, decay.values, strict=True)]
        cut = variables.cut([(name, value) for name, value in named if value is not None])
        values = {part.handle.ref(): value for value, part in cut}
        decay = Decay(decay.factor, [values.get(part.handle.ref()) for _, part in parts])
    return SharedExchange(servers, memory, sums, parts, decay)
