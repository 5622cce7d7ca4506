"""Modes that users add with register_variable_mgr, from Python or in a --variable_mgr_file."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.managers.modes import MODES, Mode, Topology
from tf_cnn.system.errors import UsageError, join_with_or
from tf_cnn.system.user_file import UserFile, running_file

ManagerT = TypeVar('ManagerT', bound=type)

_TOPOLOGIES = {
    'alone': Topology.LOCAL,
    'parameter_servers': Topology.PARAMETER_SERVERS,
    'peers': Topology.PEERS,
}
_PARAMETER_DEVICES = (None, 'variables', 'sums')
_NAME = re.compile(r'[A-Za-z]\w*', re.ASCII)


def register_variable_mgr(
    name: str,
    *,
    summary: str,
    topologies: Sequence[str] = ('alone',),
    always_synchronous: bool = True,
    shares_model: bool = True,
    sums_towers: bool = False,
    takes_all_reduce_spec: bool = False,
    takes_hierarchy: bool = False,
    parameter_device: str | None = None,
    sums_in_fixed_order: bool = False,
) -> Callable[[ManagerT], ManagerT]:
    """Returns a decorator that makes a subclass of VariableMgr the manager of a new mode.

    The arguments set the topologies of the mode, and the flags that have an effect in it.

    Args:
      name: the value of --variable_update.
      summary: one sentence for --help.
      topologies: the kinds of processes: 'alone' (one process), 'parameter_servers' (workers with
        parameter servers), 'peers' (workers without).
      always_synchronous: whether all workers take each step together; if False, the manager also
        works with --nocross_replica_sync.
      shares_model: whether all towers train one model; otherwise each trains a separate model.
      sums_towers: whether the manager packs the gradients of its towers by ManagerConfig.flags,
        and sends them in ManagerConfig.transfer.
      takes_all_reduce_spec: whether it sums gradients with ManagerConfig.algorithm, which
        --all_reduce_spec chooses.
      takes_hierarchy: whether --hierarchical_copy may choose that algorithm, too.
      parameter_device: what --local_parameter_device places in one process: 'variables', 'sums' of
        gradients, or None.
      sums_in_fixed_order: whether several processes sum gradients in the same order in each run, as
        --deterministic needs.

    Raises ValueError if an argument is invalid, or the name is taken.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f'{name!r}: a name has letters, digits and _, and begins with a letter')
    for argument, values, choices in (
        ('topologies', topologies, [*_TOPOLOGIES]),
        ('parameter_device', [parameter_device], _PARAMETER_DEVICES),
    ):
        if not values or any(value not in choices for value in values):
            text = join_with_or([*map(repr, choices)])
            raise ValueError(f'{argument}: {values!r}: it must be {text}')
    if not always_synchronous and 'peers' in topologies:
        raise ValueError(
            "always_synchronous=False: asynchronous workers need parameter servers; remove 'peers'"
        )
    # Values of flags are case-insensitive.
    if name.lower() in map(str.lower, MODES):
        raise ValueError(f'{name}: a mode of this name exists already; choose another name')

    def register(manager: ManagerT) -> ManagerT:
        MODES[name] = Mode(
            name,
            ' '.join(summary.split()),
            dict.fromkeys((_TOPOLOGIES[topology] for topology in topologies), manager),
            always_synchronous=always_synchronous,
            # Workers alone have nothing to exchange in a forward step.
            forward_only_in_cluster='parameter_servers' in topologies,
            shares_model=shares_model,
            sums_towers=sums_towers,
            takes_all_reduce_spec=takes_all_reduce_spec,
            takes_hierarchy=takes_hierarchy,
            parameter_device=parameter_device,
            sums_in_fixed_order=sums_in_fixed_order,
            file=running_file(),
        )
        return manager

    return register


def read_modes(path: str) -> None:
    """Runs a --variable_mgr_file, which adds its modes to MODES, unless they are there already.

    They replace the modes of other files and of earlier versions of the file, since a run has one
    file. Raises UsageError if the file fails, or registers no mode.
    """
    file = UserFile.read('variable_mgr_file', path)
    if any(mode.file == file for mode in MODES.values()):
        return
    for mode in [*MODES.values()]:
        if mode.file:
            del MODES[mode.name]
    earlier_modes = dict(MODES)
    # A manager needs TensorFlow.
    import_tensorflow()
    try:
        file.run()
    except UsageError:
        MODES.clear()
        MODES.update(earlier_modes)
        raise
    if not any(mode.file for mode in MODES.values()):
        raise UsageError(
            f'{file.flag_text}: it has no mode; decorate a class with @register_variable_mgr'
        )
