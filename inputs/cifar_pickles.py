"""Reads CIFAR-10 as it is published for Python, without trusting its pickles. Does not import TensorFlow.

A pickle is a program that may call any function, and whose values may be built so that comparing or hashing them takes
for ever. So its operations are read one by one (pickletools), and only those are done that the published files need: on
values that nothing looks into before their type is known. Functions are never called; NumPy's are kept by their names.
"""

import pickletools
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from errors import UsageError, read_regular
from inputs.data_sets import DATA_SETS

# www.cs.toronto.edu/~kriz/cifar.html: a dictionary with `data`, [10000, 3072] uint8, whose rows are the red, green and
# blue planes of an image, and `labels`, a list of 10000 numbers from 0 to 9; and two entries that are not used here.
_ROW_BYTES = 3072
_NUM_CLASSES = DATA_SETS['cifar10'].num_classes
# Twice the size of a published file.
_MOST_BYTES = 64 * 2**20

_CONSTANTS = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False}
_LITERALS = (
    *('BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT', 'BINUNICODE', 'SHORT_BINUNICODE', 'BINUNICODE8'),
    *('BINBYTES', 'SHORT_BINBYTES', 'BINBYTES8', 'BYTEARRAY8'),
)
_TUPLES = {'EMPTY_TUPLE': 0, 'TUPLE1': 1, 'TUPLE2': 2, 'TUPLE3': 3}
# What NumPy 1 and 2 ask for to read an array, and Python 3 for bytes that Python 2 can read.
_RECONSTRUCT = ('numpy.core.multiarray._reconstruct', 'numpy._core.multiarray._reconstruct')
_FROM_BUFFER = ('numpy.core.numeric._frombuffer', 'numpy._core.numeric._frombuffer')
_DTYPE, _ENCODE = 'numpy.dtype', '_codecs.encode'
_KNOWN = frozenset((*_RECONSTRUCT, *_FROM_BUFFER, _DTYPE, _ENCODE, 'numpy.ndarray'))


@dataclass(frozen=True)
class _Name:
    """A function or class that the pickle asks for."""

    name: str


@dataclass(eq=False, repr=False)
class _Object:
    """Stands for the result of a call: keeps what was called, its arguments, and the state that was set.

    Is neither compared nor printed by its arguments, which may be nested so that this takes for ever.
    """

    function: str
    arguments: tuple[Any, ...]
    state: Any = None


def _load(path: str, content: bytes) -> Any:
    """Returns the value of a pickle, with an _Object for each call.

    Raises:
      UsageError: it asks for a function that no array needs.
      Exception: of any kind, if the pickle is damaged or has operations that no file of CIFAR-10 needs.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    room = _MOST_BYTES

    def pop(count: int) -> list[Any]:
        if len(stack) - count < (marks[-1] if marks else 0):
            raise ValueError('it takes more values than there are')
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return values

    def pop_marked() -> list[Any]:
        return pop(len(stack) - marks.pop())

    def add(target: Any, kind: type) -> Any:
        if type(target) is not kind:
            raise ValueError(f'it adds to no {kind.__name__}')
        return target

    operation: pickletools.OpcodeInfo
    argument: Any
    # One branch for each kind of operation: they share the stack, so the loop is long rather than cut up.
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        if name == 'STOP':
            return pop(1)[0]
        if name in ('PROTO', 'FRAME'):
            continue
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in ('BINSTRING', 'SHORT_BINSTRING'):
            # What Python 2 wrote as str are the pixels, too.
            stack.append(argument.encode('latin1'))
        elif name == 'EMPTY_DICT':
            stack.append({})
        elif name == 'EMPTY_LIST':
            stack.append([])
        elif name in _TUPLES:
            stack.append(tuple(pop(_TUPLES[name])))
        elif name == 'MARK':
            marks.append(len(stack))
        elif name == 'TUPLE':
            stack.append(tuple(pop_marked()))
        elif name in ('APPEND', 'APPENDS'):
            items = pop(1) if name == 'APPEND' else pop_marked()
            add(stack[-1], list).extend(items)
        elif name in ('SETITEM', 'SETITEMS'):
            items = pop(2) if name == 'SETITEM' else pop_marked()
            # Hashing a tuple of tuples of tuples ... may take for ever.
            if not all(type(key) in (bytes, str) for key in items[::2]):
                raise ValueError('it has a dictionary with keys that are neither bytes nor text')
            add(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in ('GLOBAL', 'STACK_GLOBAL'):
            stack.append(_named(path, argument.split(' ', 1) if name == 'GLOBAL' else pop(2)))
        elif name == 'REDUCE':
            stack.append(_called(*pop(2)))
            # A call makes a copy of a text, which a few bytes of a pickle may call for again and again.
            room -= len(stack[-1]) if type(stack[-1]) is bytes else 0
            if room < 0:
                raise ValueError(f'its calls make more than {_MOST_BYTES} bytes')
        elif name == 'BUILD':
            target, state = pop(2)
            add(target, _Object).state = state
            stack.append(target)
        elif name in ('BINPUT', 'LONG_BINPUT', 'MEMOIZE'):
            memo[len(memo) if name == 'MEMOIZE' else argument] = stack[-1]
        elif name in ('BINGET', 'LONG_BINGET'):
            stack.append(memo[argument])
        else:
            raise ValueError(f'it has the operation {name}, which no file of CIFAR-10 needs')
    raise ValueError('it has no end')


def _named(path: str, parts: list[Any]) -> _Name:
    if not all(type(part) is str for part in parts):
        raise ValueError('it asks for a function by a name that is no text')
    name = '.'.join(parts)
    if name not in _KNOWN:
        raise UsageError(
            f'{path}: the file asks to call {reprlib.repr(name)}, which could do anything and which no file of '
            'CIFAR-10 needs; download it again from www.cs.toronto.edu/~kriz/cifar.html'
        )
    return _Name(name)


def _called(function: Any, arguments: Any) -> Any:
    if type(function) is not _Name or type(arguments) is not tuple:
        raise ValueError('it calls something that is no function')
    if function.name != _ENCODE:
        return _Object(function.name, arguments)
    text, *encoding = arguments
    if type(text) is not str or encoding not in ([], ['latin1']):
        raise ValueError('it encodes bytes in an unknown way')
    return text.encode('latin1')


def read_batch(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file, such as data_batch_1.

    Returns:
      rows [N, 3072] uint8, labels [N] uint8.

    Raises:
      UsageError: the file cannot be read, is larger than 64 MiB, is not a whole pickle, asks for a function that no
        array needs, or does not contain images and as many labels from 0 to 9.
    """
    content = _read_bytes(path)
    try:
        batch = _load(path, content)
    except UsageError:
        raise
    except Exception as error:  # pickles of damaged files raise nearly every kind of error
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise UsageError(f'{path}: the file is truncated or no pickle ({reason}); download it again') from error
    if not isinstance(batch, dict):
        raise _unlike(path, f'a {type(batch).__name__} instead of a dictionary')
    rows = _rows_of(path, _entry(path, batch, 'data'))
    return rows, _labels_of(path, _entry(path, batch, 'labels'), len(rows))


def _read_bytes(path: str) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f'{path}: the file cannot be read ({error.strerror or error}); a published file has 31 million '
            'bytes: check the file and its permissions, or download it again'
        ) from error


def _entry(path: str, batch: dict[object, object], name: str) -> object:
    for key in (name.encode(), name):
        if key in batch:
            return batch[key]
    raise _unlike(path, f'no entry {name!r}')


def _rows_of(path: str, data: object) -> np.ndarray:
    shape, dtype, is_fortran, pixels = _parts_of_array(path, data)
    name = dtype.arguments[0] if isinstance(dtype, _Object) and dtype.function == _DTYPE and dtype.arguments else None
    if name not in (b'u1', 'u1', b'|u1', '|u1'):
        raise _unlike(path, f"values of the type {reprlib.repr(name)} instead of 'u1' (uint8) in its entry 'data'")
    sizes: tuple[Any, ...] = shape if isinstance(shape, tuple) else ()
    if len(sizes) != 2 or not isinstance(sizes[0], int) or sizes[0] < 1 or sizes[1] != _ROW_BYTES:
        raise _unlike(path, f"the shape {reprlib.repr(shape)} instead of (10000, {_ROW_BYTES}) in its entry 'data'")
    if not isinstance(pixels, bytes | bytearray) or len(pixels) != sizes[0] * _ROW_BYTES:
        raise _unlike(path, f"not the {sizes[0] * _ROW_BYTES} bytes of its entry 'data'")
    return np.frombuffer(pixels, np.uint8).reshape(sizes, order='F' if is_fortran else 'C')


def _parts_of_array(path: str, data: object) -> tuple[Any, Any, bool, Any]:
    """Its shape, dtype, whether its order is that of Fortran, and its bytes, as NumPy writes them."""
    if isinstance(data, _Object):
        state, arguments = data.state, data.arguments
        if data.function in _RECONSTRUCT and type(state) is tuple and len(state) == 5:
            _, shape, dtype, is_fortran, pixels = state
            return shape, dtype, is_fortran is True, pixels
        if data.function in _FROM_BUFFER and len(arguments) == 4:
            pixels, dtype, shape, order = arguments
            return shape, dtype, order in ('F', b'F'), pixels
    raise _unlike(path, "no array in its entry 'data'")


def _labels_of(path: str, labels: object, num_images: int) -> np.ndarray:
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise _unlike(path, "no list of integers in its entry 'labels'")
    if len(labels) != num_images:
        raise _unlike(path, f"{len(labels)} labels in its entry 'labels' for {num_images} images")
    for number, label in enumerate(labels):
        if not 0 <= label < _NUM_CLASSES:
            raise UsageError(
                f'{path}: the label of image {number} is {label}, outside 0..{_NUM_CLASSES - 1}; download it again'
            )
    return np.array(labels, np.uint8)


def _unlike(path: str, found: str) -> UsageError:
    return UsageError(f'{path}: the file has {found}, unlike the published ones; download it again')
