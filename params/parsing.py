"""Reads the settings of a run from a command line or from Python, and checks them. Does not import TensorFlow.

The result depends on the words alone, not on the environment or on files (but those of --flagfile).
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags

from errors import UsageError, nearest, spelled
from params import original
from params.checks import check
from params.flag_files import check_flag_files
from params.older_names import OLDER_NAMES, replace_older_names
from params.spec import Value
from params.table import SPECS, Given, Params


@dataclass(frozen=True)
class Parsed:
    """The settings, and one warning for each flag of the original that was given and has no effect here."""

    params: Params
    warnings: tuple[str, ...]


def parse_argv(argv: Sequence[str]) -> Parsed:
    """Reads the flags of a command line.

    Args:
      argv: the words after the name of the program.

    Raises:
      UsageError: a flag is unknown, has no value or a wrong one, or clashes with another one; or a word is not a flag.
    """
    return _build(split_argv(argv).items())


def split_argv(argv: Sequence[str]) -> dict[str, object]:
    """The flags of a command line by name, each with its text, not read yet; flags of a --flagfile included.

    Raises:
      UsageError: a flag is unknown or has no value, or a word is not a flag.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    switches = {name for name, spec in {**SPECS, **OLDER_NAMES}.items() if spec.type is bool}
    switches |= original.SWITCHES
    for name in _all_names():
        flags.DEFINE_flag(
            flags.Flag(flags.ArgumentParser(), None, name, None, '', boolean=name in switches), flag_values=values
        )
    check_flag_files(argv)
    try:
        stray = values(['tf_cnn_benchmarks', *argv])[1:]
    except flags.UnrecognizedFlagError as error:
        raise _unknown(error.flagname) from None
    except ValueError as error:
        # --noSWITCH with a value.
        raise UsageError(f'{" ".join(str(error).split())}; see --help') from None
    except flags.Error:
        # The only other error is a last flag without a value.
        raise UsageError(f'{argv[-1]}: it has no value; write {argv[-1]}=VALUE, see --help') from None
    if stray:
        raise UsageError(_stray_message(stray[0], argv, switches))
    return {name: values[name].value for name in _all_names() if values[name].present}


def make_params(**overrides: Any) -> Params:
    """The defaults with these flags changed, checked as a command line is. parse_argv's warnings become UserWarnings.

    Raises:
      UsageError: as parse_argv.
    """
    parsed = _build(overrides.items())
    for line in parsed.warnings:
        warnings.warn(line, stacklevel=2)
    return parsed.params


def _build(given: Iterable[tuple[str, object]]) -> Parsed:
    """Params and warnings from pairs (name, text or Python value)."""
    values: dict[str, Value] = {}
    older: dict[str, Value] = {}
    asked = []
    for name, value in given:
        if name in SPECS:
            values[name] = SPECS[name].read(value)
        elif name in OLDER_NAMES:
            older[name] = OLDER_NAMES[name].read(value)
        elif name in original.NAMES:
            asked.append(original.read(name, value))
        else:
            raise _unknown(name)
    as_written = {name: spelled(name, value) for name, value in values.items() if value is not None}
    as_written |= replace_older_names(older, values)
    # Each value was read by the spec of its field, which mypy cannot see.
    params = Params(**values, given=Given(tuple(as_written.items())))  # type: ignore[arg-type]
    check(params)
    return Parsed(params, tuple(original.warnings_about(filter(None, asked), params)))


def _all_names() -> list[str]:
    return [*SPECS, *OLDER_NAMES, *original.NAMES]


def _unknown(name: str) -> UsageError:
    near = nearest(name, [*SPECS, *OLDER_NAMES])
    return UsageError(f'--{name}: there is no such flag; {f"did you mean --{near}?" if near else "see --help"}')


def _stray_message(word: str, argv: Sequence[str], switches: set[str]) -> str:
    # A word from a --flagfile is not in argv.
    position = argv.index(word) if word in argv else 0
    before = argv[position - 1].lstrip('-') if position else ''
    if before in switches:
        return f'{word!r} is not a flag; the value of a switch follows an equal sign: {spelled(before, word)}'
    return f'{word!r} is not a flag; flags look like --batch_size=64, see --help'
