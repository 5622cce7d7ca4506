"""Loads whole data sets: the published files of CIFAR-10 and MNIST -> NumPy arrays. Does not import TensorFlow."""

import errno
import gzip
import itertools
import math
import os
import pickletools
import reprlib
import stat
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from errors import UsageError, plural, read_regular
from inputs.data_sets import DATA_SETS, list_folder, look_elsewhere
from records.file_kinds import START_BYTES, other_kind, start_of

# Krizhevsky's "binary version" of CIFAR-10 (www.cs.toronto.edu/~kriz/cifar.html): each image is one label byte, then
# its red, green and blue planes, row by row.
_CIFAR_SIZE, _CIFAR_CHANNELS = 32, 3
_CIFAR_BYTES = 1 + _CIFAR_CHANNELS * _CIFAR_SIZE**2
_CIFAR_FOLDER = 'cifar-10-batches-bin'
_CIFAR_FILES = {
    'train': tuple(f'data_batch_{number}.bin' for number in range(1, 6)),
    'validation': ('test_batch.bin',),
}
# The same images as Python 2 pickled them: a dictionary with `data`, a NumPy array [10000, 3072] uint8 whose rows are
# the planes of an image, `labels`, a list of 10000 numbers, and two entries that are not used here.
_CIFAR_PYTHON_FOLDER = 'cifar-10-batches-py'
_CIFAR_PYTHON_FILES = {
    subset: tuple(name.removesuffix('.bin') for name in names) for subset, names in _CIFAR_FILES.items()
}
# The operations of these files: those with a value, and those that build something of values.
_PICKLE_VALUES = ('BININT', 'BININT1', 'BININT2', 'LONG1', 'SHORT_BINSTRING', 'BINSTRING', 'GLOBAL', 'NONE', 'NEWFALSE')
_PICKLE_STRUCTURE = (
    *('PROTO', 'MARK', 'STOP', 'BINPUT', 'LONG_BINPUT', 'BINGET', 'LONG_BINGET', 'REDUCE', 'BUILD'),
    *('EMPTY_DICT', 'SETITEMS', 'EMPTY_LIST', 'APPENDS', 'TUPLE', 'TUPLE1', 'TUPLE2', 'TUPLE3'),
)
_PICKLE_NAMES = ('numpy.core.multiarray _reconstruct', 'numpy ndarray', 'numpy dtype')
# A file has about 30,000.
_MOST_OPERATIONS = 100_000

# The IDX format (yann.lecun.com/exdb/mnist): a magic number, whose last two bytes are the type of the values (8:
# unsigned bytes) and the number of dimensions; the dimensions as big-endian 32-bit integers; the values.
_IDX_UNSIGNED_BYTES = 0x800
# What is read of a file, whose compressed data may have no end: twenty times the largest that is published.
_MOST_IDX_BYTES = 1 << 30
_IDX_FILES = {
    'train': ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte'),
    'validation': ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte'),
}


def load_arrays(data_set: str, data_dir: str, subset: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a subset: images [N, H, W, C] uint8 and labels [N] int32, in the order of the files.

    Raises UsageError as count_images; also if a file's content does not match its header, or a label is out of range.
    """
    layout, paths = _find(data_set, data_dir, subset)
    images, labels = layout.load(paths)
    return images, labels.astype(np.int32)


def count_images(data_set: str, data_dir: str, subset: str) -> int:
    """Returns the number of images that load_arrays would load, from the sizes and headers of the files.

    Raises UsageError if a file is missing, unreadable or truncated, or its header is not that of its format.
    """
    layout, paths = _find(data_set, data_dir, subset)
    return layout.count(paths)


def has_files(data_set: str, data_dir: str, subset: str) -> bool:
    return any(any(_locate(layout, data_dir, subset).values()) for layout in _FORMATS[data_set])


def _locate(layout: '_Format', data_dir: str, subset: str) -> dict[str, str | None]:
    """Maps the name of each file of a subset to its path, or to None if the file is missing."""
    folders = [data_dir, *(os.path.join(data_dir, folder) for folder in layout.folders)]
    return {
        name: next((path for folder in folders for path in layout.paths_of(folder, name) if os.path.exists(path)), None)
        for name in layout.files[subset]
    }


def _find(data_set: str, data_dir: str, subset: str) -> tuple['_Format', list[str]]:
    """Returns the format that has the most files of a subset in the folder (the first of equals), and their paths."""
    layouts = _FORMATS[data_set]
    content = ' or '.join(layout.description for layout in layouts)
    list_folder(data_dir, content)
    located = [(layout, _locate(layout, data_dir, subset)) for layout in layouts]
    layout, paths = max(located, key=lambda pair: sum(path is not None for path in pair[1].values()))
    found = [path for path in paths.values() if path]
    if len(found) == len(paths):
        return layout, found
    missing = [name for name, path in paths.items() if not path]
    others = f' (and {len(missing) - 1} more of the {len(paths)} {subset} files)' if len(missing) > 1 else ''
    elsewhere = look_elsewhere(data_dir, '--data_dir', lambda folder: has_files(data_set, folder, subset))
    advice = ': '.join(elsewhere) if elsewhere else f'give the folder that contains {content}'
    raise UsageError(f'--data_dir={data_dir}: {missing[0]} is missing{others}; {advice}')


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(
        f'{path}: the file cannot be read ({error.strerror or error}); check the file and its permissions'
    )


def _check_kind(path: str, start: bytes, expected: str) -> None:
    if kind := other_kind(start, expected):
        raise UsageError(f'{path}: {kind}')


def _check_labels(path: str, labels: np.ndarray, num_classes: int) -> None:
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UsageError(
            f'{path}: the label of image {first} is {labels[first]}, outside 0..{num_classes - 1}; download the file '
            'again'
        )


def _count_cifar(paths: list[str]) -> int:
    count = 0
    for path in paths:
        num_images, rest = divmod(_size_of(path), _CIFAR_BYTES)
        # A file begins with a label, and no other kind does with a number so small.
        if not (start := start_of(path)) or start[0] >= DATA_SETS['cifar10'].num_classes:
            _check_kind(path, start, 'the binary version of CIFAR-10')
        if rest:
            raise UsageError(
                f'{path}: the file is truncated: its last image has {rest} of {_CIFAR_BYTES} bytes; download it again'
            )
        count += num_images
    return count


def _load_cifar(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    _count_cifar(paths)
    rows, labels = [], []
    for path in paths:
        try:
            content = np.fromfile(path, np.uint8).reshape(-1, _CIFAR_BYTES)
        except OSError as error:
            raise _unreadable(path, error) from error
        _check_labels(path, content[:, 0], DATA_SETS['cifar10'].num_classes)
        labels.append(content[:, 0])
        rows.append(content[:, 1:])
    return _images_of_planes(rows), np.concatenate(labels)


def _load_cifar_pickles(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = zip(*map(_read_pickle, paths), strict=True)
    return _images_of_planes(rows), np.concatenate(labels)


def _read_pickle(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file such as data_batch_1: rows [N, 3072] uint8, labels [N] uint8.

    Loading a pickle can call any function. So this loads none: it only picks the values, whose order in the published
    files is known.
    """
    values = _pickled_values(path)
    data, labels = (values[values.index(name) + 1 :] if name in values else [] for name in ('data', 'labels'))
    # The pixels are the 21st value of the array.
    match data[:21]:
        case [_, 'numpy ndarray', _, _, _, int(num_images), 3072, 'numpy dtype', 'u1', *_, 'NEWFALSE', str(pixels)]:
            rows = np.frombuffer(pixels.encode('latin-1'), np.uint8)
        case _:
            raise _unlike_published(path, "no array of 3072 * uint8 for each image in its entry 'data'")
    if not num_images or rows.size != 3072 * num_images:
        raise _unlike_published(path, f"{plural(rows.size, 'byte')} for {plural(num_images, 'image')} in 'data'")
    numbers = np.array([*itertools.takewhile(lambda value: isinstance(value, int), labels)])
    if len(numbers) != num_images:
        raise _unlike_published(
            path, f"{plural(len(numbers), 'number')} in its entry 'labels' for {plural(num_images, 'image')}"
        )
    _check_labels(path, numbers, DATA_SETS['cifar10'].num_classes)
    return rows.reshape(num_images, -1), numbers.astype(np.uint8)


def _pickled_values(path: str) -> list[object]:
    """Returns the values in a pickle in the order of the file; strings as latin-1, None and False by their names."""
    values: list[object] = []
    try:
        content = read_regular(path)
        if not content.startswith(b'\x80'):
            _check_kind(path, content[:START_BYTES], 'the Python version of CIFAR-10')
        for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if number == _MOST_OPERATIONS:
                raise _unlike_published(path, f'more than {number} operations')
            if operation.name not in _PICKLE_VALUES + _PICKLE_STRUCTURE:
                raise _unlike_published(path, f'the operation {operation.name}')
            if operation.name == 'GLOBAL' and argument not in _PICKLE_NAMES:
                called = reprlib.repr(str(argument).replace(' ', '.'))
                raise _unlike_published(path, f'a call of {called}, which could do anything')
            if operation.name in _PICKLE_VALUES:
                values.append(operation.name if argument is None else argument)
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise UsageError(f'{path}: the file is truncated or no pickle ({error}); download it again') from error
    return values


def _unlike_published(path: str, found: str) -> UsageError:
    return UsageError(f'{path}: the file has {found}, unlike the published ones; download it again')


def _images_of_planes(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays [N, 3072] uint8 of red, green and blue planes -> [N, 32, 32, 3] uint8."""
    planes = np.concatenate(rows).reshape(-1, _CIFAR_CHANNELS, _CIFAR_SIZE, _CIFAR_SIZE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _read_idx(path: str, num_dimensions: int, *, header_only: bool = False) -> tuple[tuple[int, ...], bytes]:
    """Returns the dimensions of an idx file of unsigned bytes, and its values (none with header_only)."""
    header_bytes = 4 * (1 + num_dimensions)
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            # Opening it would wait for a writer.
            raise OSError(errno.EINVAL, 'it is no regular file')
        with gzip.open(path) if path.endswith('.gz') else open(path, 'rb') as file:
            start = file.read(START_BYTES)
            dimensions = _dimensions_of(path, start, num_dimensions)
            content = b'' if header_only else start[header_bytes:] + file.read(_MOST_IDX_BYTES)
    except EOFError as error:
        raise UsageError(f'{path}: the file is truncated: its compressed data has no end; download it again') from error
    except (gzip.BadGzipFile, zlib.error) as error:
        if not (start := start_of(path)).startswith(b'\x1f\x8b'):
            _check_kind(path, start, 'gzip-compressed data')
        raise UsageError(f'{path}: the file cannot be decompressed ({error}); download it again') from error
    except OSError as error:
        raise _unreadable(path, error) from error
    return dimensions, content


def _dimensions_of(path: str, start: bytes, num_dimensions: int) -> tuple[int, ...]:
    magic = _IDX_UNSIGNED_BYTES + num_dimensions
    header_bytes = 4 * (1 + num_dimensions)
    header = start[:header_bytes]
    if not start.startswith(b'\0\0\x08'):
        _check_kind(path, start, 'an idx file')
    if len(header) < header_bytes:
        raise UsageError(
            f'{path}: the file is truncated: {len(header)} of {header_bytes} header bytes; download it again'
        )
    found, *dimensions = struct.unpack(f'>{1 + num_dimensions}I', header)
    if found != magic:
        are_exchanged = found in (_IDX_UNSIGNED_BYTES + 1, _IDX_UNSIGNED_BYTES + 3)
        raise UsageError(
            f'{path}: the magic number is {found:#x}, but an idx file of bytes in {num_dimensions} dimensions has '
            f'{magic:#x}; '
            + ('the names of images and labels are exchanged' if are_exchanged else 'download the file again')
        )
    if not 0 < math.prod(dimensions) <= _MOST_IDX_BYTES:
        raise _unlike_published(path, f'the dimensions {"x".join(map(str, dimensions))}')
    return tuple(dimensions)


def _shapes_of_idx(paths: list[str]) -> tuple[int, ...]:
    (images_path, labels_path) = paths
    shape, _ = _read_idx(images_path, 3, header_only=True)
    (num_labels,), _ = _read_idx(labels_path, 1, header_only=True)
    if shape[0] != num_labels:
        raise UsageError(
            f'{labels_path}: {plural(num_labels, "label")}, but {images_path} has {plural(shape[0], "image")}; '
            'download both again'
        )
    for path, num_bytes in ((images_path, 16 + math.prod(shape)), (labels_path, 8 + num_labels)):
        if not path.endswith('.gz') and _size_of(path) != num_bytes:
            raise _wrong_length(path, _size_of(path), num_bytes)
    return shape


def _wrong_length(path: str, found: int, expected: int) -> UsageError:
    fault = 'truncated' if found < expected else 'longer than its header says'
    return UsageError(f'{path}: the file is {fault}: {found} instead of {plural(expected, "byte")}; download it again')


def _load_idx(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    shape = _shapes_of_idx(paths)
    arrays = []
    for path, dimensions in zip(paths, (shape, shape[:1]), strict=True):
        _, content = _read_idx(path, len(dimensions))
        expected = math.prod(dimensions)
        if len(content) != expected:
            raise _wrong_length(path, len(content), expected)
        arrays.append(np.frombuffer(content, np.uint8).reshape(dimensions))
    images, labels = arrays
    _check_labels(paths[1], labels, DATA_SETS['mnist'].num_classes)
    return images[..., np.newaxis], labels


def _path_of(folder: str, name: str) -> list[str]:
    return [os.path.join(folder, name)]


def _idx_paths(folder: str, name: str) -> list[str]:
    # Some programs that unpack the published archives write a dot before idx.
    names = (name, name.replace('-idx', '.idx'))
    return [os.path.join(folder, f'{spelling}{suffix}') for spelling in names for suffix in ('', '.gz')]


@dataclass(frozen=True)
class _Format:
    """How a data set is stored.

    Attributes:
      description: names the format in errors.
      files: the file names of each subset.
      load: paths of a subset -> images [N, H, W, C] uint8, labels [N] uint8.
      paths_of: folder, file name -> the paths where the file may be.
      folders: the subfolders of --data_dir that may contain the files.
    """

    description: str
    files: Mapping[str, tuple[str, ...]]
    count: Callable[[list[str]], int]
    load: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
    paths_of: Callable[[str, str], list[str]]
    folders: tuple[str, ...] = ()


_FORMATS = {
    'cifar10': (
        _Format('the binary version of CIFAR-10', _CIFAR_FILES, _count_cifar, _load_cifar, _path_of, (_CIFAR_FOLDER,)),
        _Format(
            'its Python version',
            _CIFAR_PYTHON_FILES,
            lambda paths: sum(len(_read_pickle(path)[1]) for path in paths),
            _load_cifar_pickles,
            _path_of,
            (_CIFAR_PYTHON_FOLDER,),
        ),
    ),
    'mnist': (
        _Format(
            'the idx files of MNIST, plain or .gz',
            _IDX_FILES,
            lambda paths: _shapes_of_idx(paths)[0],
            _load_idx,
            _idx_paths,
        ),
    ),
}
ARRAY_DATA_SETS = tuple(_FORMATS)
