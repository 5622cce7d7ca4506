"""The variable manager of a mode, made for small graphs on CPUs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as tf

from managers.all_reduce import Algorithm, by_copies, compacted
from managers.buckets import Packing
from managers.parameter_servers import ParameterServers
from params.modes import MODES, Place
from tests.support.sessions import cpus
from variable_mgr import ManagerParts, VariableMgr, make_variable_mgr


def make_manager(
    mode: str,
    devices: Sequence[str],
    *,
    place: Place = Place.ALONE,
    staged: bool = False,
    relaxed: bool = False,
    variable_dtype: tf.DType = tf.float32,
    algorithm: Algorithm | None = None,
    packing: Packing | None = None,
    transfer: tf.DType | None = None,
    server_devices: Sequence[str] = (),
    worker: int = 0,
    num_workers: int = 1,
    **parts: Any,
) -> VariableMgr:
    """The variable manager of towers on these devices.

    Args:
      mode: a value of --variable_update that can run in this place.
      algorithm: how the towers of one process sum float32; by default on the first CPU.
      server_devices: one device per parameter server.
      parts: further fields of ManagerParts, instead of the defaults here.
    """
    algorithm = algorithm or by_copies(cpus(1))
    packing = packing or Packing()
    common = ManagerParts(
        devices=devices,
        seed=1,
        parameter_devices=cpus(1),
        algorithm=compacted(algorithm, devices, transfer) if transfer else algorithm,
        packing=packing,
        servers=ParameterServers(server_devices, worker, num_workers, packing, transfer),
        worker=worker,
        num_workers=num_workers,
        transfer=transfer,
        on_towers='gpu' in devices[0],
        variable_dtype=variable_dtype,
    )
    row = MODES[mode].manager(place, staged=staged, relaxed=relaxed)
    return make_variable_mgr(row, replace(common, **parts))
