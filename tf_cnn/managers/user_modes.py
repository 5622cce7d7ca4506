"""Modes that users add with register_variable_mgr, from Python or in a --variable_mgr_file.

A variable manager needs TensorFlow, but flags are checked before TensorFlow starts. Therefore the
calls of register_variable_mgr are first read from the text of the file. This is enough for --help,
`sweep`, `cluster` and parameter servers. A run executes the file after TensorFlow has started. This
module does not import TensorFlow.
"""

import ast
import functools
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tf_cnn.managers.modes import MODES, Mode, Topology
from tf_cnn.system.errors import BenchmarkError, UsageError, format_flag, join_with_or
from tf_cnn.system.user_file import UserFile, check_type, find_line, user_code

ManagerT = TypeVar('ManagerT', bound=type)

_TOPOLOGIES = {
    'alone': Topology.LOCAL,
    'parameter_servers': Topology.PARAMETER_SERVERS,
    'peers': Topology.PEERS,
}
_PARAMETER_DEVICES = (None, 'variables', 'sums')
_NAME = re.compile(r'[A-Za-z]\w*', re.ASCII)
_DECORATOR = 'register_variable_mgr'


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

    The arguments set the topologies of the mode, and the flags that have an effect in it. In a
    --variable_mgr_file all arguments must be literals.

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

    Raises:
      ValueError: a mode of this name exists already, or an argument is invalid.
      TypeError: an argument has the wrong type; raised by the decorator: the class is not a
        VariableMgr, or lacks a method.
    """
    switches: dict[str, Any] = {
        'always_synchronous': always_synchronous,
        'shares_model': shares_model,
        'sums_towers': sums_towers,
        'takes_all_reduce_spec': takes_all_reduce_spec,
        'takes_hierarchy': takes_hierarchy,
        'sums_in_fixed_order': sums_in_fixed_order,
    }
    for switch, value in switches.items():
        check_type(switch, value, bool)
    check_type('name', name, str)
    check_type('summary', summary, str)
    check_type('topologies', topologies, Sequence)
    if not _NAME.fullmatch(name):
        raise ValueError(f'{name!r}: a name has letters, digits and _, and begins with a letter')
    if not summary.strip():
        raise ValueError(f'summary={summary!r}: it must be a sentence about the mode')
    names = [topologies] if isinstance(topologies, str) else [*topologies]
    if not names or any(topology not in [*_TOPOLOGIES] for topology in names):
        choices = join_with_or([*map(repr, _TOPOLOGIES)])
        raise ValueError(f'topologies={topologies!r}: each must be {choices}')
    if parameter_device not in _PARAMETER_DEVICES:
        choices = join_with_or([*map(repr, _PARAMETER_DEVICES)])
        raise ValueError(f'parameter_device={parameter_device!r}: it must be {choices}')
    if not always_synchronous and 'peers' in names:
        reason = 'asynchronous workers need parameter servers'
        raise ValueError(
            f"always_synchronous=False, topologies={topologies!r}: {reason}; remove 'peers'"
        )
    mode = Mode(
        name,
        ' '.join(summary.split()),
        dict.fromkeys(_TOPOLOGIES[topology] for topology in names),
        # Workers alone have nothing to exchange in a forward step.
        forward_only_in_cluster='parameter_servers' in names,
        parameter_device=parameter_device,
        registration=format_flag('variable_update', name),
        **switches,
    )
    return functools.partial(_register, mode)


def _register(mode: Mode, manager: ManagerT) -> ManagerT:
    """Sets the variable manager of a mode, and adds the mode if no file has defined it."""
    # variable_mgr imports TensorFlow; the caller has imported it to derive a class.
    from variable_mgr import VariableMgr

    if not isinstance(manager, type) or not issubclass(manager, VariableMgr):
        name = getattr(manager, '__name__', repr(manager))
        raise TypeError(f'{name} is not a subclass of VariableMgr; derive it from a manager')
    if missing := sorted(getattr(manager, '__abstractmethods__', ())):
        raise TypeError(f'{manager.__name__} lacks {", ".join(missing)}; define these methods')
    file, _ = find_line(traceback.extract_stack())
    earlier_mode = MODES.get(mode.name)
    is_read = earlier_mode and earlier_mode.file and file and earlier_mode.file.path == file.path
    if earlier_mode and is_read and earlier_mode.user_manager is None:
        _set_manager(earlier_mode, manager)
    else:
        _check_name(mode, MODES.values())
        _set_manager(mode, manager)
    return manager


def read_modes(path: str) -> None:
    """Adds the modes of a --variable_mgr_file to MODES without running the file.

    They replace the modes of an earlier version of the file, and modes of the same names in other
    files, since a run has one file. Raises UsageError, with the line of the file, if the file is
    not Python, registers no mode, or has a wrong registration; then no mode is added.
    """
    file, modes = UserFile.read('variable_mgr_file', path), list[Mode]()
    with user_code(file.flag_text):
        tree = ast.parse(file.source, file.path)
    builtin_modes = [mode for mode in MODES.values() if mode.file is None]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_decorator(node.func):
            line = f'{file.flag_text}, line {node.lineno}'
            with user_code(line):
                mode = replace(_read_call(node), file=file, registration=line)
                _check_name(mode, [*builtin_modes, *modes])
            modes.append(mode)
    if not modes:
        raise UsageError(f'{file.flag_text}: it has no mode; decorate a class with @{_DECORATOR}')
    for earlier_mode in [*MODES.values()]:
        if (
            earlier_mode.file
            and earlier_mode.file != file
            and (earlier_mode.file.path == file.path or _has_name_of(earlier_mode, modes))
        ):
            del MODES[earlier_mode.name]
    for mode in modes:
        MODES.setdefault(mode.name, mode)


def run_file_of(mode: Mode) -> None:
    """Runs the --variable_mgr_file that defines a mode, unless it has run. Needs TensorFlow.

    Raises UsageError if the file fails, or does not register the mode.
    """
    if mode.file is None or mode.user_manager:
        return
    try:
        mode.file.run()
    except BenchmarkError:
        for file_mode in [*MODES.values()]:
            if file_mode.file == mode.file:
                _set_manager(file_mode, None)
        raise
    if MODES[mode.name].user_manager is None:
        reason = f'it ran without registering {mode.name}'
        raise UsageError(f'{mode.file.flag_text}: {reason}; use @{_DECORATOR} without a condition')


def _is_decorator(function: ast.expr) -> bool:
    name = getattr(function, 'attr', None) or getattr(function, 'id', None)
    return name == _DECORATOR


def _read_call(node: ast.Call) -> Mode:
    try:
        arguments = [ast.literal_eval(argument) for argument in node.args]
        facts = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except ValueError:
        reason = 'its arguments must be literals, since flags are checked before the file runs'
        raise ValueError(f'{_DECORATOR}: {reason}') from None
    decorator: Any = register_variable_mgr(*arguments, **facts)
    mode: Mode = decorator.args[0]
    return mode


def _check_name(mode: Mode, other_modes: Iterable[Mode]) -> None:
    if _has_name_of(mode, other_modes):
        raise ValueError(f'{mode.name}: a mode of this name exists already; choose another name')


def _has_name_of(mode: Mode, other_modes: Iterable[Mode]) -> bool:
    # Values of flags are case-insensitive.
    return mode.name.lower() in {other.name.lower() for other in other_modes}


def _set_manager(mode: Mode, manager: type | None) -> None:
    MODES[mode.name] = replace(mode, managers=dict.fromkeys(mode.managers, manager))
