"""What one flag is and how its value is read, from a command line or from Python. Does not import TensorFlow."""

import dataclasses
import difflib
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags

from errors import UsageError

Value = int | float | str | bool | None

_BOOLS = {'true': True, 't': True, '1': True, 'yes': True, 'false': False, 'f': False, '0': False, 'no': False}


def _to_bool(value: Any) -> bool:
    if isinstance(value, str):
        return _BOOLS[value.lower()]
    if not isinstance(value, bool):
        raise TypeError
    return value


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) else operator.index(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _to_str(value: Any) -> str:
    return os.fspath(value)


_READERS: dict[type, Callable[[Any], Value]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}
_LARGEST = 2**31 - 1  # of TensorFlow's int32
_NOUNS = {bool: 'true or false', int: 'an integer', float: 'a number', str: 'text'}


def spelled(name: str, value: object) -> str:
    """A flag as one writes it: --batch_size=64, in one line whatever the value is."""
    text = '' if value is None else str(value)
    return f'--{name}={text if text.isprintable() else repr(text)}'


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like this one, or None if none is like it."""
    matches = difflib.get_close_matches(name.lower(), list(known), n=1)
    return matches[0] if matches else None


def read_flags(values: flags.FlagValues, word: str, argv: Sequence[str], hint: str | None = None) -> list[str]:
    """Gives the flags of a tool of the command what stands behind its word, and returns what are no flags.

    Args:
      hint: what to say of a flag that is like none.

    Raises:
      UsageError: a flag is unknown, or its value is wrong or missing.
    """
    try:
        return list(values([word, *argv])[1:])
    except flags.UnrecognizedFlagError as error:
        near = nearest(error.flagname, list(values))
        told = f'did you mean --{near}?' if near else hint or f'see {word} --help'
        raise UsageError(f'--{error.flagname}: {word} has no such flag; {told}') from None
    except flags.Error as error:
        raise UsageError(f'{" ".join(str(error).split())}; see {word} --help') from None


@dataclass(frozen=True)
class FlagSpec:
    """One flag. optional tells that it may have no value (None); a bound is included in what is allowed.

    original is the default of the program that this one replaces, where ours differs.
    """

    name: str
    type: type
    optional: bool = False
    default: Value = None
    group: str = ''
    help: str = ''
    choices: tuple[str, ...] | None = None
    lower_bound: float | None = None
    upper_bound: float | None = None
    unit: str | None = None
    original: str | None = None

    @property
    def expects(self) -> str:
        """What may be written, in words: 'an integer of at least 0'."""
        if self.choices:
            return f'one of {", ".join(self.choices)}'
        noun = _NOUNS[self.type]
        if self.lower_bound is not None and self.upper_bound is not None:
            return f'{noun} from {self.lower_bound:g} to {self.upper_bound:g}'
        return noun if self.lower_bound is None else f'{noun} of at least {self.lower_bound:g}'

    def read(self, value: object) -> Value:
        """The value of the flag's type, from the text of a command line or a Python value. Empty text is None.

        Raises:
          UsageError: it is not of the type, not one of the choices, out of bounds, or empty where a value is needed.
        """
        if value is None or value == '':
            if self.optional:
                return None
            raise UsageError(f'{spelled(self.name, value)}: it has no value; it must be {self.expects}')
        try:
            found = _READERS[self.type](value)
        except (TypeError, ValueError, KeyError):
            raise self._refusal(value) from None
        if self.choices:
            # cpu and CPU are both in use, nhwc for NHWC is too.
            found = {choice.lower(): choice for choice in self.choices}.get(str(found).lower())
            if found is None:
                raise self._refusal(value)
        if not isinstance(found, str) and not self._is_in_bounds(typing.cast(float, found)):
            raise self._refusal(value)
        if self.type is int and abs(typing.cast(int, found)) > _LARGEST:
            raise UsageError(f'{spelled(self.name, value)}: integers end at {_LARGEST}; write a smaller one')
        return found

    def _is_in_bounds(self, number: float) -> bool:
        above = self.lower_bound is None or number >= self.lower_bound
        return above and (self.upper_bound is None or number <= self.upper_bound)

    def _refusal(self, value: object) -> UsageError:
        near = nearest(str(value), self.choices) if self.choices else None
        hint = f'; did you mean {spelled(self.name, near)}?' if near else ''
        return UsageError(f'{spelled(self.name, value)}: it must be {self.expects}{hint}')


def flag(
    default: Value,
    group: str,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    unit: str | None = None,
    original: str | None = None,
) -> Any:
    """A dataclass field that is a flag; specs_of() joins this with the field's name and annotation."""
    facts = {
        'group': group,
        'help': help,
        'choices': choices,
        'lower_bound': lower_bound,
        'upper_bound': upper_bound,
        'unit': unit,
        'original': original,
    }
    return dataclasses.field(default=default, metadata=facts)


def specs_of(table: type) -> dict[str, FlagSpec]:
    """The flags of a dataclass made of flag() fields, by name, in its order.

    An annotation is int, float, str or bool, or one of these `| None`.
    """
    specs = {}
    hints = typing.get_type_hints(table)
    for field in dataclasses.fields(table):
        hint = hints[field.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (kind,) = (member for member in members if member is not types.NoneType)
        optional = types.NoneType in members
        specs[field.name] = FlagSpec(field.name, kind, optional, typing.cast(Value, field.default), **field.metadata)
    return specs
