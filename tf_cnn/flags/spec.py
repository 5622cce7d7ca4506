"""The specification of a flag, and the conversion of its values. Does not import TensorFlow."""

import contextlib
import dataclasses
import enum
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tf_cnn.system.errors import STDIO, UsageError, format_flag, nearest

Value = int | float | str | bool | None
Number = TypeVar('Number', int, float)
# What a group of flags notes about a run: the line of a problem, or flags that have no effect, with
# the reason; the first reason for a flag counts.
Note = str | tuple[tuple[str, ...], str]

# The upper bound of flags that count epochs, so that counts of steps and examples stay finite.
MOST_EPOCHS = 1e9
# The lower bound where 0 makes no sense.
ABOVE_0 = 1e-9

_BOOLS = {
    'true': True,
    't': True,
    '1': True,
    'yes': True,
    'false': False,
    'f': False,
    '0': False,
    'no': False,
}


def _to_bool(value: Any) -> bool:
    # 0 and 1, and NumPy's types, have the texts of a command line.
    return _BOOLS[str(value).lower()]


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(_check_digits(value)) if isinstance(value, str) else operator.index(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(_check_digits(value))):
        raise ValueError
    return float(value)


def _check_digits(value: Any) -> Any:
    """Returns the value. Raises ValueError for numbers that only Python reads: 1_000, or digits of
    other scripts.
    """
    if isinstance(value, str) and (not value.isascii() or '_' in value):
        raise ValueError(value)
    return value


def _to_str(value: Any) -> str:
    # Exactly str, since results cannot hold subclasses such as NumPy's.
    text = str(os.fsdecode(value))
    if '\0' in text:
        raise ValueError(text)
    # TensorFlow cannot open files with names that are not UTF-8.
    text.encode()
    return text


_READERS: dict[type, Callable[[Any], Value]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
}
_EMPTY = ('', "''", '""')
HELP_XML = ('--helpxml', '-helpxml')
_HELP_FLAGS = ('--help', '-help', '-h', '--helpfull', '--helpshort', *HELP_XML)
_LARGEST = 2**31 - 1  # TensorFlow's int32
_NOUNS = {bool: 'true or false', int: 'an integer', float: 'a number', str: 'text'}


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether an argument is --help or another spelling of it."""
    return any(argument.split('=')[0] in _HELP_FLAGS for argument in argv)


def requested_help_topic(argv: Sequence[str]) -> str | None:
    """Returns the NAME of --help=NAME; None for --help and --help=true."""
    name = next(argument.partition('=')[2] for argument in argv if asks_for_help([argument]))
    return None if name.lower() in ('', *_BOOLS) else name


class Output(enum.Enum):
    """The kind of output at the path of a flag, and which processes write it."""

    # Every process with the flag writes the file, so only one process may have this path.
    FILE = 'a file'
    PREFIX = 'several files with this prefix'
    # Only the chief writes it.
    CHIEF_FILE = 'a file of the chief'
    # Every process may write there; a missing folder is created.
    FOLDER = 'a folder'
    # Only the chief writes there.
    CHIEF_FOLDER = 'a folder of the chief'


# Values of FlagSpec.original for flags that the original does not have.
NEW = 'has no such flag'
OTHER = 'only older versions, or versions of others, have it'
# The text before the original's default in FlagSpec.original.
ITS_DEFAULT = 'its default is '


@dataclass(frozen=True)
class FlagSpec:
    """One flag: its type, allowed values, and role in clusters and comparisons.

    Attributes:
      choices: the allowed values; if a mapping, each value of it has a `summary` for --help.
      choices_from: the flag of a file that defines more choices.
      lower_bound: the lowest allowed number.
      upper_bound: the highest allowed number.
      is_path: whether the value is the path of a file or folder; ~ is expanded.
      may_be_stdio: whether - stands for standard input or output; another path must not be -.
      repeated: whether the flag may be given several times; the value is then a tuple.
      common: whether --help without `all` lists the flag.
      original: how the flag differs in the original tf_cnn_benchmarks, or NEW or OTHER.
      shared_by_workers: whether all processes of a cluster that compute need the same value.
      shared_by_servers: whether parameter servers, which often get only a few flags, need the same
        value too.
      setting: whether the flag changes a step or the time between steps, so that runs with
        different values are different settings in comparisons.
      chosen: whether the run chooses a value if none is given, or 0 for a number of images.
      in_run_section: whether the section `run` of a result has the value that the run used, which
        comparisons then take.
      ignored: the reasons, such as IN_EVAL, for which the flag has no effect in some runs.
      target: the environment variable that TensorFlow reads instead of the flag, or the field of
        its ConfigProto.
    """

    name: str
    type: type
    optional: bool = False
    default: Value = None
    group: str = ''
    help: str = ''
    choices: Collection[str] | None = None
    choices_from: str | None = None
    lower_bound: float = 0
    upper_bound: float = math.inf
    unit: str | None = None
    is_path: bool = False
    may_be_stdio: bool = False
    repeated: bool = False
    output: Output | None = None
    common: bool = False
    original: str | None = None
    shared_by_workers: bool = False
    shared_by_servers: bool = False
    setting: bool = True
    chosen: bool = False
    in_run_section: bool = False
    ignored: tuple[str, ...] = ()
    target: str | None = None

    @property
    def expects(self) -> str:
        """The allowed values in words: 'an integer of at least 0'."""
        if self.choices:
            return f'one of {", ".join(self.choices)}'
        noun = 'a path' if self.is_path else _NOUNS[self.type]
        if self.type in (bool, str) or self.lower_bound == -math.inf:
            return noun
        if self.upper_bound == math.inf:
            return f'{noun} of at least {self.lower_bound:g}'
        return f'{noun} from {self.lower_bound:g} to {self.upper_bound:g}'

    def read(self, value: object) -> Value:
        """Converts the text of a command line, or a Python value, to the flag's type.

        Empty text becomes None. Two quotes count as empty text, since nested quoting in a script
        leaves them. A list becomes text, its items with commas between them. Raises UsageError if
        the value is not allowed.
        """
        # NumPy's arrays and numbers become Python's.
        value = value.tolist() if hasattr(value, 'tolist') else value
        if self.type is str and isinstance(value, list | tuple):
            value = ','.join(map(str, value))
        if value is None or (isinstance(value, str) and value in _EMPTY):
            if self.optional:
                return None
            raise UsageError(
                f'{format_flag(self.name, value)}: it has no value; it must be {self.expects}'
            )
        try:
            result = _READERS[self.type](value)
            if self.is_path:
                # A run leads its descriptor 1 to standard error, so the device would be that.
                text = str(result)
                result = STDIO if text == '/dev/stdout' else os.path.expanduser(text)
                if '://' in result:
                    raise UsageError(
                        f'{format_flag(self.name, value)}: it is not on this machine; use a '
                        'local path'
                    )
                if result == STDIO and not self.may_be_stdio:
                    raise UsageError(
                        f'{format_flag(self.name, value)}: it cannot be standard input or output; '
                        'use a path, such as ./- for that name'
                    )
        except UnicodeEncodeError:
            raise UsageError(
                f'{format_flag(self.name, value)}: it is not UTF-8; use another text'
            ) from None
        except (TypeError, ValueError, KeyError):
            raise self._value_error(value) from None
        if self.choices:
            # Accept cpu and CPU, nhwc and NHWC.
            result = {choice.lower(): choice for choice in self.choices}.get(str(result).lower())
            if result is None:
                raise self._value_error(value)
        if (
            not isinstance(result, str)
            and not self.lower_bound <= typing.cast(float, result) <= self.upper_bound
        ):
            raise self._value_error(value)
        if self.type is int and abs(typing.cast(int, result)) > _LARGEST:
            lowest = max(self.lower_bound, -_LARGEST)
            raise UsageError(
                f'{format_flag(self.name, value)}: it must be from {lowest} to {_LARGEST}'
            )
        return result

    def _value_error(self, value: object) -> UsageError:
        near = nearest(str(value), self.choices) if self.choices else None
        if self.type is float and self.upper_bound < 2:
            # A share: from 10 on it was probably meant in percent.
            with contextlib.suppress(ValueError):
                share = float(str(value)) / 100
                near = f'{share:g}' if 0.1 <= share <= 1 else None
        hint = f'; did you mean {format_flag(self.name, near)}?' if near else ''
        if self.choices_from:
            hint += f'; --{self.choices_from}=FILE adds yours'
        return UsageError(f'{format_flag(self.name, value)}: it must be {self.expects}{hint}')


def flag(default: Value | tuple[str, ...], help: str, **properties: Any) -> Any:
    """Returns a dataclass field for a flag. properties are the arguments of its FlagSpec."""
    return dataclasses.field(default=default, metadata={'help': help, **properties})


def specs_of(group: type) -> dict[str, FlagSpec]:
    """Returns the flags of a dataclass by name, in the order of its fields.

    Skips fields that flag() did not create. An annotation is int, float, str or bool, one of these
    `| None`, or tuple[str, ...] for a repeated flag.

    The class may have these attributes for all its flags: GROUP, their heading; PROPERTIES, their
    default properties.
    """
    specs = {}
    hints = typing.get_type_hints(group)
    for field in dataclasses.fields(group):
        if not field.metadata:
            continue
        hint = hints[field.name]
        members = typing.get_args(hint) or (hint,)
        kind = next(member for member in members if member not in (types.NoneType, ...))
        properties = {
            'is_path': 'output' in field.metadata,
            **getattr(group, 'PROPERTIES', {}),
            **field.metadata,
        }
        specs[field.name] = FlagSpec(
            field.name,
            kind,
            optional=types.NoneType in members,
            repeated=typing.get_origin(hint) is tuple,
            default=typing.cast(Value, field.default),
            group=getattr(group, 'GROUP', ''),
            **properties,
        )
    return specs


def parse_numbers(text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Returns the numbers of a comma-separated list; [] for no text.

    Raises ValueError unless all are finite and above 0.
    """
    numbers = [kind(_check_digits(item)) for item in text.split(',')] if text else []
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(text)
    return numbers


# Reasons for FlagSpec.ignored; Params.notes knows which of them hold in a run.
NO_MODEL = '--input_only runs no model'
NO_COMPUTING = '--exchange_only computes nothing'
IN_EVAL = '--eval trains nothing'
IN_FORWARD_ONLY = '--forward_only trains nothing'
SINGLE_PROCESS = 'it is for clusters, and this run has one process'
SYNTHETIC = 'images are synthetic without --data_dir'
ON_CPU = 'the run is on the CPU'
NO_FOLDER = 'checkpoints and summaries need --train_dir'
# The reasons for flags of steps, and of training.
NO_STEPS = (NO_MODEL, IN_EVAL)
NO_TRAINING = (*NO_STEPS, IN_FORWARD_ONLY)
