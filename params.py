"""The settings of a run: read from a command line or from Python, and checked. Does not import TensorFlow."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags

import flag_rules
import legacy_flags
from errors import UsageError
from flag_spec import Value, nearest, spelled
from flag_table import SPECS, Params
from idle_flags import find_idle

__all__ = ['SPECS', 'Params', 'Parsed', 'make_params', 'parse_argv']


@dataclass(frozen=True)
class Parsed:
    """The settings, and one line for each thing that was given but has no effect."""

    params: Params
    warnings: tuple[str, ...]


def parse_argv(argv: Sequence[str]) -> Parsed:
    """Reads the flags of a command line; argv is without the program's name.

    Raises:
      UsageError: a flag is unknown, lacks its value, has a wrong one or clashes with another one, or a word is stray.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    switches = {name for name, spec in {**SPECS, **legacy_flags.OLDER_NAMES}.items() if spec.type is bool}
    switches |= legacy_flags.SWITCHES
    for name in _all_names():
        flags.DEFINE_flag(
            flags.Flag(flags.ArgumentParser(), None, name, None, '', boolean=name in switches), flag_values=values
        )
    try:
        stray = values(['tf_cnn_benchmarks', *argv])[1:]
    except flags.UnrecognizedFlagError as error:
        raise _unknown(error.flagname) from None
    except flags.CantOpenFlagFileError as error:
        reason = str(error).removeprefix('ERROR:: ')
        raise UsageError(f'--flagfile: {reason}; write the name of a text file with a flag on each line') from None
    except flags.Error:
        # What remains is a flag at the end that lacks its value.
        raise UsageError(f'{argv[-1]}: it has no value; write {argv[-1]}=VALUE, see --help') from None
    if stray:
        raise UsageError(_stray_message(stray[0], argv, switches))
    return _build((name, values[name].value) for name in _all_names() if values[name].present)


def make_params(**overrides: Any) -> Params:
    """The settings with these flags changed, checked as the command line checks them.

    A flag that has no effect is told as a Python warning (UserWarning).

    Raises:
      UsageError: as parse_argv.
    """
    parsed = _build(overrides.items())
    for line in parsed.warnings:
        warnings.warn(line, stacklevel=2)
    return parsed.params


def _build(given: Iterable[tuple[str, object]]) -> Parsed:
    """Params and warnings from what was given: names, with texts or Python values."""
    values: dict[str, Value] = {}
    older: dict[str, Value] = {}
    lines = []
    for name, value in given:
        if name in SPECS:
            values[name] = SPECS[name].read(value)
        elif name in legacy_flags.OLDER_NAMES:
            older[name] = legacy_flags.OLDER_NAMES[name].read(value)
        elif name in legacy_flags.NAMES:
            lines += legacy_flags.read(name, value)
        else:
            raise _unknown(name)
    as_written = {name: spelled(name, value) for name, value in values.items() if value is not None}
    as_written |= legacy_flags.replace_older_names(older, values)
    # Each value was read by the spec of its field, which mypy cannot see.
    params = Params(**values)  # type: ignore[arg-type]
    if params.model_file:
        # Here, since only then something else than the flags decides which models there are.
        from models.registry import load_model_file

        load_model_file(params.model_file)
    flag_rules.check(params)
    return Parsed(params, (*lines, *find_idle(params, as_written)))


def _all_names() -> list[str]:
    return [*SPECS, *legacy_flags.OLDER_NAMES, *legacy_flags.NAMES]


def _unknown(name: str) -> UsageError:
    near = nearest(name, [*SPECS, *legacy_flags.OLDER_NAMES])
    return UsageError(f'--{name}: there is no such flag; {f"did you mean --{near}?" if near else "see --help"}')


def _stray_message(word: str, argv: Sequence[str], switches: set[str]) -> str:
    # It is not in argv if it was in a --flagfile.
    position = argv.index(word) if word in argv else 0
    before = argv[position - 1].lstrip('-') if position else ''
    if before in switches:
        return f'{word!r} stands alone; a switch has its value behind an equal sign: {spelled(before, word)}'
    return f'{word!r} is not a flag; flags look like --batch_size=64, see --help'
