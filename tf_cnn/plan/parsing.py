"""Reads and checks the flags of a run, from a command line or from Python. Does not import
TensorFlow.

They depend only on the arguments, on the files of --flagfile and --variable_mgr_file, and on
the home directory if a path contains ~.
"""

import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_cnn.flags.command_line import split_command_line
from tf_cnn.flags.spec import Value
from tf_cnn.machine.config import ALL_GPUS
from tf_cnn.machine.gpus import count_visible_gpus
from tf_cnn.managers.user_modes import read_modes
from tf_cnn.plan.original_flags import (
    ELSEWHERE,
    FLAGS,
    REMOVED,
    find_flag_with_choice,
    original_flag_warnings,
    replace_older_names,
    replace_older_values,
)
from tf_cnn.plan.params import SPECS, Params, make_groups
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag, nearest

_SEE, MODES_FILE = 'see --help', 'variable_mgr_file'


@dataclass(frozen=True)
class ParsedFlags:
    """The settings, and a warning for each given flag of the original that has no effect here.

    checks_only: whether the command shall end before the run.
    absl_verbosity: the level of absl's log messages, if given: -1 for warnings, 0 for information.
    """

    params: Params
    warnings: tuple[str, ...]
    checks_only: bool = False
    absl_verbosity: int | None = None


def parse_argv(argv: Sequence[str]) -> ParsedFlags:
    """Reads the flags of a command line without the program's name.

    Raises UsageError with a line for each mistake.
    """
    refusals = ErrorCollector()
    return _build(_split(argv, refusals).items(), refusals)


def split_argv(argv: Sequence[str]) -> Mapping[str, object]:
    """Returns the unparsed text of each flag of a command line, by name, including the flags of a
    --flagfile.
    """
    refusals = ErrorCollector()
    texts = _split(argv, refusals)
    refusals.raise_all()
    return texts


def read_modes_of(argv: Sequence[str]) -> None:
    """Adds the modes of the --variable_mgr_file in a command line, and ignores other mistakes."""
    if path := split_command_line(argv, FLAGS, _SEE).texts.get(MODES_FILE):
        _read_modes(path)


def _read_modes(value: object) -> None:
    if path := FLAGS[MODES_FILE].read(value):
        read_modes(str(path))


def _split(argv: Sequence[str], refusals: ErrorCollector) -> Mapping[str, object]:
    words = split_command_line(argv, FLAGS, _SEE)
    refusals.add(*words.mistakes, *map(_unknown, words.unknown))
    form = f'flags look like --batch_size=64 and --forward_only=True, {_SEE}'
    refusals.add(*(f'{word!r} is not a flag; {form}' for word in words.arguments))
    return words.texts


def make_params(**overrides: Any) -> Params:
    """Returns the defaults with these flags changed, checked like a command line.

    Warnings become UserWarnings.

    Raises:
      UsageError: a flag is unknown, has a wrong value, or conflicts with another one.
    """
    parsed = _build(overrides.items(), ErrorCollector())
    for line in parsed.warnings:
        warnings.warn(line, stacklevel=2)
    return parsed.params


def _build(named_values: Iterable[tuple[str, object]], refusals: ErrorCollector) -> ParsedFlags:
    """Makes Params and warnings from pairs (name, text or Python value).

    Rules between flags are checked only if all flags can be read.
    """
    arguments = dict(named_values)
    values_of, read = {**arguments}, dict[str, Value]()
    if MODES_FILE in values_of:
        try:
            _read_modes(values_of[MODES_FILE])
        except UsageError as error:
            # Stop here: --variable_update may name a mode of this file.
            refusals.add(*error.lines)
            refusals.raise_all()
    lines = replace_older_values(values_of)
    has_all_gpus = format_flag('num_gpus', values_of.get('num_gpus')) == ALL_GPUS
    if has_all_gpus:
        with refusals.collecting():
            values_of['num_gpus'] = _count_gpus()
    for name, value in values_of.items():
        with refusals.collecting():
            if name in FLAGS:
                read[name] = FLAGS[name].read(value)
            else:
                refusals.add(_unknown(name))
    refusals.raise_all()
    values = {name: value for name, value in read.items() if name in SPECS}
    as_written = {
        name: format_flag(name, value) for name, value in values.items() if value is not None
    }
    if has_all_gpus:
        as_written['num_gpus'] = ALL_GPUS
    as_written |= replace_older_names(read, values)
    params = Params(**make_groups(values), given_flags=as_written, arguments=arguments)
    with refusals.collecting():
        params.check()
    for name, value in read.items():
        with refusals.collecting():
            lines += original_flag_warnings(name, value)
    refusals.raise_all()
    level = read.get('verbosity', read.get('v'))
    return ParsedFlags(
        params,
        tuple(lines),
        checks_only=read.get('only_check_args') is True,
        absl_verbosity=None if level is None else int(level),
    )


def _count_gpus() -> int:
    """Returns the number of visible GPUs; 1 without one, which choose_devices refuses."""
    count = count_visible_gpus(os.environ)
    if count is None:
        raise UsageError(f'{ALL_GPUS}: the driver does not tell how many there are; use a number')
    return max(count, 1)


def _unknown(name: str) -> str:
    owner = find_flag_with_choice(name)
    near = ELSEWHERE.get(name) or (owner and f'{owner}={name}') or nearest(name, FLAGS)
    hint = REMOVED.get(name) or (f'did you mean --{near}?' if near else _SEE)
    return f'--{name}: unknown flag; {hint}'


def seconds_since_start() -> float:
    """Returns the seconds since this process started, to a hundredth; 0 if unknown."""
    try:
        with open('/proc/self/stat', encoding='utf-8') as file:
            # starttime is field 22, counted from 1. Field 2, the program's name, may contain
            # blanks. See proc(5).
            ticks = int(file.read().rpartition(')')[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf('SC_CLK_TCK'))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
