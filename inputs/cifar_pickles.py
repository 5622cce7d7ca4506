"""Reads CIFAR-10 as it is published for Python, without trusting its pickles. Does not import TensorFlow.

A pickle is a program that may call any function. The published files need five functions of NumPy and of the codecs;
here other objects take their places, which keep what they are given and call nothing. See https://docs.python.org/3/
library/pickle.html#restricting-globals.
"""

import io
import os
import pickle
import pickletools
import reprlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from errors import UsageError
from inputs.data_sets import DATA_SETS

# www.cs.toronto.edu/~kriz/cifar.html: a dictionary with `data`, [10000, 3072] uint8, whose rows are the red, green and
# blue planes of an image, and `labels`, a list of 10000 numbers from 0 to 9; and two entries that are not used here.
_ROW_BYTES = 3072
_NUM_CLASSES = DATA_SETS['cifar10'].num_classes
# Twice the size of a published file.
_MOST_BYTES = 64 * 2**20

# The operations of pickles that make dictionaries, lists, tuples, text, bytes and small numbers, call what find_class
# finds, and end. Of them, those that read a number from text or ask the program for objects are left out.
_OPERATIONS = """
    PROTO FRAME STOP MARK POP POP_MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3
    SETITEM SETITEMS APPEND APPENDS NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    GLOBAL STACK_GLOBAL REDUCE BUILD BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
"""
_MEMO = ('BINPUT', 'LONG_BINPUT')


class _Array:
    """Stands for numpy.ndarray: keeps the state (version, shape, dtype, is_fortran, bytes) that the pickle sets."""

    state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _DType:
    """Stands for numpy.dtype: keeps its name, and ignores the state, which for bytes says nothing more."""

    def __init__(self, name: object, *more: object) -> None:
        del more
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


def _reconstruct(*arguments: object) -> _Array:
    """Stands for the function with which NumPy begins to read an array; its state follows."""
    del arguments
    return _Array()


def _from_buffer(buffer: object, dtype: object, shape: object, order: object) -> _Array:
    """Stands for the function with which NumPy reads an array from a pickle of protocol 5."""
    array = _Array()
    array.state = (1, shape, dtype, order == 'F', buffer)
    return array


def _encode(text: object, encoding: object = 'latin1') -> bytes:
    """Stands for _codecs.encode, with which Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise ValueError(f'bytes are encoded as {reprlib.repr(encoding)}')
    return text.encode('latin1')


# By module and name as NumPy 1 and 2 write them.
_KNOWN: dict[tuple[str, str], Callable[..., object]] = {
    ('numpy', 'ndarray'): _Array,
    ('numpy', 'dtype'): _DType,
    ('_codecs', 'encode'): _encode,
    **{(f'numpy.{core}.multiarray', '_reconstruct'): _reconstruct for core in ('core', '_core')},
    **{(f'numpy.{core}.numeric', '_frombuffer'): _from_buffer for core in ('core', '_core')},
}


class _Unpickler(pickle.Unpickler):
    """Finds nothing but the objects above."""

    def __init__(self, path: str, content: bytes) -> None:
        # What Python 2 wrote as str are the pixels, too.
        super().__init__(io.BytesIO(content), encoding='bytes')
        self._path = path

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _KNOWN:
            asked = reprlib.repr(f'{module_name}.{global_name}')
            raise UsageError(
                f'{self._path}: the file asks to call {asked}, which could do anything and which no file of CIFAR-10 '
                'needs; download it again from www.cs.toronto.edu/~kriz/cifar.html'
            )
        return _KNOWN[module_name, global_name]


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
        _check_operations(content)
        batch = _Unpickler(path, content).load()
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
        size = os.stat(path).st_size
        if size > _MOST_BYTES:
            raise UsageError(
                f'{path}: the file has {size} bytes, more than the {_MOST_BYTES} that are read; a published file has '
                '31 million: download it again'
            )
        with open(path, 'rb') as file:
            return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f'{path}: the file cannot be read ({error.strerror or error}); check the file and its permissions'
        ) from error


def _check_operations(content: bytes) -> None:
    """Reads the operations of a pickle without doing them.

    Raises:
      ValueError: the pickle is not complete, or has operations that no file of CIFAR-10 needs. Lengths beyond the end
        of the file and numbers of objects beyond its size are errors, too; they would take memory without end.
    """
    known = frozenset(_OPERATIONS.split())
    for operation, argument, _ in pickletools.genops(content):
        if operation.name not in known:
            raise ValueError(f'it has the operation {operation.name}, which no file of CIFAR-10 needs')
        if operation.name in _MEMO and cast(int, argument) > len(content):
            raise ValueError(f'it numbers an object {argument}')


def _entry(path: str, batch: dict[object, object], name: str) -> object:
    for key in (name.encode(), name):
        if key in batch:
            return batch[key]
    raise _unlike(path, f'no entry {name!r}')


def _rows_of(path: str, data: object) -> np.ndarray:
    state = data.state if isinstance(data, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise _unlike(path, "no array in its entry 'data'")
    _, shape, dtype, is_fortran, pixels = state
    name = dtype.name if isinstance(dtype, _DType) else None
    if name not in (b'u1', 'u1', b'|u1', '|u1'):
        raise _unlike(path, f"values of the type {reprlib.repr(name)} instead of 'u1' (uint8) in its entry 'data'")
    sizes: tuple[Any, ...] = shape if isinstance(shape, tuple) else ()
    if len(sizes) != 2 or not isinstance(sizes[0], int) or sizes[0] < 1 or sizes[1] != _ROW_BYTES:
        raise _unlike(path, f"the shape {reprlib.repr(shape)} instead of (10000, {_ROW_BYTES}) in its entry 'data'")
    if not isinstance(pixels, bytes | bytearray) or len(pixels) != sizes[0] * _ROW_BYTES:
        raise _unlike(path, f"not the {sizes[0] * _ROW_BYTES} bytes of its entry 'data'")
    return np.frombuffer(pixels, np.uint8).reshape(sizes, order='F' if is_fortran else 'C')


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
