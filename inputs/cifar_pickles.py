"""Reads CIFAR-10 as it is published for Python, without trusting its pickles. Does not import TensorFlow.

A pickle is a program: it may call any function, and may build values that take forever to hash or print. So a file is
loaded only if it contains no operations but those of the published files. Loading calls nothing: each function of
NumPy is replaced by a _Call, which only keeps its arguments.
"""

import io
import pickle
import pickletools
import reprlib
from collections import Counter
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

# The operations that Python 2 wrote, and how many of each a file may have. A published file has 10,000 labels and names
# of images; it needs fewer than 30 of every other operation.
_MANY, _FEW = 100_000, 200
_OPERATIONS = {
    **dict.fromkeys(('BININT1', 'SHORT_BINSTRING', 'BINPUT', 'LONG_BINPUT', 'BINGET', 'LONG_BINGET'), _MANY),
    **dict.fromkeys(('PROTO', 'MARK', 'STOP', 'NONE', 'NEWFALSE', 'BININT', 'BININT2', 'LONG1', 'BINSTRING'), _FEW),
    **dict.fromkeys(('EMPTY_DICT', 'SETITEMS', 'EMPTY_LIST', 'APPENDS', 'GLOBAL', 'REDUCE', 'BUILD'), _FEW),
    **dict.fromkeys(('TUPLE', 'TUPLE1', 'TUPLE2', 'TUPLE3'), _FEW),
}
_RECONSTRUCT, _DTYPE = 'numpy.core.multiarray _reconstruct', 'numpy dtype'
_NAMES = (_RECONSTRUCT, _DTYPE, 'numpy ndarray')


class _Call:
    """Stands for a function or class of NumPy, and for the result of calling it, without computing anything.

    Attributes:
      name: module and function, as in _NAMES.
      arguments: the arguments of the call; empty for the function itself.
      state: what the pickle sets on the result.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None

    def __call__(self, *arguments: Any) -> '_Call':
        return _Call(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Call:
        return _Call(f'{module} {name}')


def _check_operations(path: str, content: bytes) -> None:
    """Checks a pickle against _OPERATIONS and _NAMES without loading it.

    Raises:
      UsageError: it has an operation or asks for a name that no published file has.
      Exception: of any kind, if the pickle is damaged.
    """
    counts: Counter[str] = Counter()
    strings: set[int] = set()
    previous = ''
    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        counts[name] += 1
        most = _OPERATIONS.get(name, 0)
        if counts[name] > most:
            raise _unlike(path, f'the operation {name}' + (f' more than {most} times' if most else ''))
        if name == 'GLOBAL' and argument not in _NAMES:
            raise UsageError(
                f'{path}: the file asks to call {reprlib.repr(argument.replace(" ", "."))}, which could do anything '
                'and which no file of CIFAR-10 needs; download it again from www.cs.toronto.edu/~kriz/cifar.html'
            )
        if name in ('BINPUT', 'LONG_BINPUT'):
            if argument > _MANY:  # the unpickler would allocate that many places
                raise _unlike(path, f'a place {argument} for a value')
            (strings.add if previous == 'SHORT_BINSTRING' else strings.discard)(argument)
        # Tuples that each contain the one before twice, 40 deep, would take forever to hash or print.
        if name in ('BINGET', 'LONG_BINGET') and argument not in strings:
            raise _unlike(path, 'a value other than a short string that is used twice')
        previous = name


def read_batch(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file, such as data_batch_1.

    Returns:
      rows [N, 3072] uint8, labels [N] uint8.

    Raises:
      UsageError: the file cannot be read, is larger than 64 MiB, is not a whole pickle, has an operation or a name that
        no published file has, or does not contain images and as many labels from 0 to 9.
    """
    try:
        content = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f'{path}: the file cannot be read ({error.strerror or error}); a published file has 31 million '
            'bytes: check the file and its permissions, or download it again'
        ) from error
    try:
        _check_operations(path, content)
        batch = _Unpickler(io.BytesIO(content), encoding='bytes').load()
    except UsageError:
        raise
    except Exception as error:  # pickles of damaged files raise nearly every kind of error
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise UsageError(f'{path}: the file is truncated or no pickle ({reason}); download it again') from error
    if not isinstance(batch, dict):
        raise _unlike(path, f'a {type(batch).__name__} instead of a dictionary')
    for name in ('data', 'labels'):
        if name.encode() not in batch:
            raise _unlike(path, f'no entry {name!r}')
    rows = _rows_of(path, batch[b'data'])
    return rows, _labels_of(path, batch[b'labels'], len(rows))


def _rows_of(path: str, data: object) -> np.ndarray:
    state = data.state if isinstance(data, _Call) and data.name == _RECONSTRUCT else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise _unlike(path, "no array in its entry 'data'")
    _, shape, dtype, is_fortran, pixels = state
    kind = dtype.arguments[0] if isinstance(dtype, _Call) and dtype.name == _DTYPE and dtype.arguments else None
    if kind not in (b'u1', b'|u1'):
        raise _unlike(path, f"values of the type {reprlib.repr(kind)} instead of 'u1' (uint8) in its entry 'data'")
    sizes: tuple[Any, ...] = shape if isinstance(shape, tuple) else ()
    if len(sizes) != 2 or not isinstance(sizes[0], int) or sizes[0] < 1 or sizes[1] != _ROW_BYTES:
        raise _unlike(path, f"the shape {reprlib.repr(shape)} instead of (10000, {_ROW_BYTES}) in its entry 'data'")
    if is_fortran:
        raise _unlike(path, "an array in the order of Fortran in its entry 'data'")
    if not isinstance(pixels, bytes) or len(pixels) != sizes[0] * _ROW_BYTES:
        raise _unlike(path, f"not the {sizes[0] * _ROW_BYTES} bytes of its entry 'data'")
    return np.frombuffer(pixels, np.uint8).reshape(sizes)


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
