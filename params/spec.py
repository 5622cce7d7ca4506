"""What a flag is, and how its value is read from a command line or from Python. Does not import TensorFlow."""

import dataclasses
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from errors import UsageError, nearest, spelled

Value = int | float | str | bool | None
Number = TypeVar('Number', int, float)

# The upper bound of flags that count epochs; it keeps counts of steps and examples finite for every data set.
MOST_EPOCHS = 1e9

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


def expand(path: str) -> str:
    """Replaces ~ and ~user in a path by the home directory; the path of an unknown user stays as it is.

    A shell does this too, but not after an equal sign.

    Raises:
      ValueError: the path contains a zero byte.
    """
    if '\0' in path:
        raise ValueError(path)
    return os.path.expanduser(path)


_READERS: dict[type, Callable[[Any], Value]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}
_EMPTY = ('', "''", '""')
_HELP_FLAGS = ('--help', '-help', '-h', '--helpfull', '--helpshort')
_LARGEST = 2**31 - 1  # TensorFlow's int32
_NOUNS = {bool: 'true or false', int: 'an integer', float: 'a number', str: 'text'}


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether an argument is --help or another spelling of it."""
    return any(argument.split('=')[0] in _HELP_FLAGS for argument in argv)


def asked_for_help(argv: Sequence[str]) -> str | None:
    """Returns the NAME of --help=NAME or --help NAME; None if there is none, or only --help=true."""
    position = next(number for number, argument in enumerate(argv) if argument.split('=')[0] in _HELP_FLAGS)
    _, _, name = argv[position].partition('=')
    following = argv[position + 1] if '=' not in argv[position] and position + 1 < len(argv) else ''
    if not name and not following.startswith('-'):
        name = following
    return None if name.lower() in ('', *_BOOLS) else name


@dataclass(frozen=True)
class FlagSpec:
    """One flag.

    Attributes:
      name: the flag's name without dashes.
      type: int, float, str or bool.
      optional: whether the value may be None.
      default: the value if the flag is not given.
      group: the heading in --help.
      help: what the flag means.
      unit: the unit of a number.
      choices: the only values allowed, if not None.
      lower_bound, upper_bound: the smallest and the largest value allowed.
      original: the default in the original tf_cnn_benchmarks, where ours differs.
      is_path: whether the text names a file or folder, in which ~ is expanded.
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
    is_path: bool = False

    @property
    def expects(self) -> str:
        """The allowed values in words: 'an integer of at least 0'."""
        if self.choices:
            return f'one of {", ".join(self.choices)}'
        noun = 'a path' if self.is_path else _NOUNS[self.type]
        if self.lower_bound is not None and self.upper_bound is not None:
            return f'{noun} from {self.lower_bound:g} to {self.upper_bound:g}'
        return noun if self.lower_bound is None else f'{noun} of at least {self.lower_bound:g}'

    def read(self, value: object) -> Value:
        """Converts the text of a command line, or a Python value, to the flag's type. Empty text is None.

        Two quotes count as empty text, since nested quoting in a script leaves them.

        Raises:
          UsageError: the value has another type, is not one of the choices, is out of bounds, or is missing.
        """
        if value is None or value in _EMPTY:
            if self.optional:
                return None
            raise UsageError(f'{spelled(self.name, value)}: it has no value; it must be {self.expects}')
        try:
            found = _READERS[self.type](value)
            if self.is_path:
                found = expand(str(found))
                if '://' in found:
                    raise UsageError(
                        f'{spelled(self.name, value)}: only files of this machine are read and written; '
                        'write a local path'
                    )
        except (TypeError, ValueError, KeyError):
            raise self._refusal(value) from None
        if self.choices:
            # People write cpu and CPU, nhwc and NHWC.
            found = {choice.lower(): choice for choice in self.choices}.get(str(found).lower())
            if found is None:
                raise self._refusal(value)
        if not isinstance(found, str) and not self._is_in_bounds(typing.cast(float, found)):
            raise self._refusal(value)
        if self.type is int and abs(typing.cast(int, found)) > _LARGEST:
            raise UsageError(f'{spelled(self.name, value)}: it must be from -{_LARGEST} to {_LARGEST}')
        return found

    def _is_in_bounds(self, number: float) -> bool:
        above = self.lower_bound is None or number >= self.lower_bound
        return above and (self.upper_bound is None or number <= self.upper_bound)

    def _refusal(self, value: object) -> UsageError:
        near = nearest(str(value), self.choices) if self.choices else None
        hint = f'; did you mean {spelled(self.name, near)}?' if near else ''
        return UsageError(f'{spelled(self.name, value)}: it must be {self.expects}{hint}')


# The arguments are the facts of a FlagSpec that a field does not have itself.
def flag(
    default: Value,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    unit: str | None = None,
    original: str | None = None,
    is_path: bool = False,
) -> Any:
    """Makes a dataclass field that is a flag; specs_of() adds the field's name, type and group."""
    facts = {
        'help': help,
        'choices': choices,
        'lower_bound': lower_bound,
        'upper_bound': upper_bound,
        'unit': unit,
        'original': original,
        'is_path': is_path,
    }
    return dataclasses.field(default=default, metadata=facts)


def specs_of(table: type) -> dict[str, FlagSpec]:
    """Returns the flags of a dataclass by name, in the order of its fields; skips fields not made by flag().

    An annotation is int, float, str or bool, or one of these `| None`. A flag's group is the GROUP of the class that
    declares the flag, if there is one.
    """
    specs = {}
    hints = typing.get_type_hints(table)
    for field in dataclasses.fields(table):
        if not field.metadata:
            continue
        hint = hints[field.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (kind,) = (member for member in members if member is not types.NoneType)
        owner = next(cls for cls in table.__mro__ if field.name in vars(cls).get('__annotations__', {}))
        # A field cannot be named like a keyword of Python: from_ is the flag --from.
        name = field.name.removesuffix('_')
        specs[name] = FlagSpec(
            name,
            kind,
            optional=types.NoneType in members,
            default=typing.cast(Value, field.default),
            group=getattr(owner, 'GROUP', ''),
            **field.metadata,
        )
    return specs


def numbers_of(text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Returns the numbers in a comma-separated list; empty for None or empty text.

    Args:
      kind: int or float.

    Raises:
      ValueError: an item is not a number above 0.
    """
    numbers = [kind(part) for part in text.split(',')] if text else []
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(text)
    return numbers
