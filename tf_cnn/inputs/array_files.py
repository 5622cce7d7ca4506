"""Loads the published files of CIFAR-10 and MNIST into NumPy arrays. Does not import TensorFlow."""

import gzip
import io
import math
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_cnn.inputs.data_sets import DATA_SETS, list_folder
from tf_cnn.system.errors import UsageError, plural, read_file

# Krizhevsky's "binary version" of CIFAR-10 (www.cs.toronto.edu/~kriz/cifar.html): each image is one
# label byte, then its red, green and blue planes, row by row.
_CIFAR_SIZE, _CIFAR_CHANNELS = 32, 3
_CIFAR_BYTES = 1 + _CIFAR_CHANNELS * _CIFAR_SIZE**2
_CIFAR_FOLDER = 'cifar-10-batches-bin'
_CIFAR_FILES = {
    'train': tuple(f'data_batch_{number}.bin' for number in range(1, 6)),
    'validation': ('test_batch.bin',),
}
# The same images as Python 2 pickled them: a dictionary with `data`, a NumPy array [10000, 3072]
# uint8 with the planes of an image in each row, `labels`, a list of 10000 numbers, and two entries
# that are not used here. Python 3 writes a part of such a dictionary in protocol 3 to 5.
_CIFAR_PYTHON_FOLDER = 'cifar-10-batches-py'
_CIFAR_PYTHON_FILES = {
    subset: tuple(name.removesuffix('.bin') for name in names)
    for subset, names in _CIFAR_FILES.items()
}
# The files of CIFAR-10 have 31 MB.
_MAX_PICKLE_BYTES = 1 << 30
# What an array is made of in a pickle.
_PICKLED_NAMES = ('ndarray', 'dtype', '_reconstruct', '_frombuffer')

# The IDX format (yann.lecun.com/exdb/mnist): a magic number (its last two bytes are the type
# of the values, 8 for unsigned bytes, and the number of dimensions); the dimensions as big-endian
# 32-bit integers; the values.
_IDX_UNSIGNED_BYTES = 0x800
_IDX_FILES = {
    'train': ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte'),
    'validation': ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte'),
}


def load_arrays(data_set: str, data_dir: str, subset: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a subset: images [N, H, W, C] uint8 and labels [N] int32, in the order of the files.

    Raises UsageError in the same cases as count_images, and if a file's content does not match its
    header or a label is out of range.
    """
    file_format, paths = _find_files(data_set, data_dir, subset)
    images, labels = file_format.load(paths)
    return images, labels.astype(np.int32)


def count_images(data_set: str, data_dir: str, subset: str) -> int:
    """Returns the number of images in a subset, from the sizes and headers of its files.

    Raises UsageError if a file is missing or unreadable, or its header does not fit its format.
    """
    file_format, paths = _find_files(data_set, data_dir, subset)
    return file_format.count(paths)


def has_files(data_set: str, data_dir: str, subset: str) -> bool:
    return any(
        any(_locate_files(file_format, data_dir, subset).values())
        for file_format in _FORMATS[data_set]
    )


def _locate_files(file_format: '_FileFormat', data_dir: str, subset: str) -> dict[str, str | None]:
    """Maps the name of each file of a subset to its path, or to None if the file is missing."""
    folders = [data_dir, *(os.path.join(data_dir, folder) for folder in file_format.folders)]
    return {
        name: next(
            (
                path
                for folder in folders
                for path in file_format.candidate_paths(folder, name)
                if os.path.exists(path)
            ),
            None,
        )
        for name in file_format.files[subset]
    }


def _find_files(data_set: str, data_dir: str, subset: str) -> tuple['_FileFormat', list[str]]:
    """Returns the format with the most files of a subset in the folder, and the paths.

    The first format wins a tie. Raises UsageError if a file of the chosen format is missing.
    """
    file_formats = _FORMATS[data_set]
    content = ' or '.join(layout.description for layout in file_formats)
    list_folder(data_dir, content)
    candidates = [(layout, _locate_files(layout, data_dir, subset)) for layout in file_formats]
    layout, paths = max(
        candidates, key=lambda pair: sum(path is not None for path in pair[1].values())
    )
    existing_paths = [path for path in paths.values() if path]
    if len(existing_paths) == len(paths):
        return layout, existing_paths
    missing = [name for name, path in paths.items() if not path]
    more_missing = (
        f' (and {len(missing) - 1} more of the {len(paths)} {subset} files)'
        if len(missing) > 1
        else ''
    )
    raise UsageError(
        f'--data_dir={data_dir}: {missing[0]} is missing{more_missing}; use the folder '
        f'that contains {content}'
    )


def _unreadable_file_error(path: str, error: OSError) -> UsageError:
    return UsageError(
        f'{path}: the file cannot be read ({error.strerror or error}); check the file and its '
        'permissions'
    )


def _check_labels(path: str, labels: np.ndarray, num_classes: int) -> None:
    is_out_of_range = (labels < 0) | (labels >= num_classes)
    if is_out_of_range.any():
        first = int(np.argmax(is_out_of_range))
        raise UsageError(
            f'{path}: the label of image {first} is {labels[first]}, outside '
            f'0..{num_classes - 1}; download the file again'
        )


def _count_cifar(paths: list[str]) -> int:
    count = 0
    for path in paths:
        num_images, remaining_bytes = divmod(os.path.getsize(path), _CIFAR_BYTES)
        if remaining_bytes or not num_images:
            raise UsageError(
                f'{path}: the file is truncated: its last image has {remaining_bytes} of '
                f'{_CIFAR_BYTES} bytes; download it again'
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
            raise _unreadable_file_error(path, error) from error
        _check_labels(path, content[:, 0], DATA_SETS['cifar10'].num_classes)
        labels.append(content[:, 0])
        rows.append(content[:, 1:])
    return _planes_to_images(rows), np.concatenate(labels)


def _load_cifar_pickles(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = zip(*map(_read_pickle, paths), strict=True)
    return _planes_to_images(rows), np.concatenate(labels)


class _Unpickler(pickle.Unpickler):
    """Makes NumPy arrays, and calls nothing else: a pickle could call any function."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition('.')[0] != 'numpy' or name not in _PICKLED_NAMES:
            raise ValueError(f'it calls {module}.{name}')
        return super().find_class(module, name)


def _read_pickle(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file such as data_batch_1: rows [N, 3072] uint8, labels [N] int64."""
    try:
        file = io.BytesIO(read_file(path, _MAX_PICKLE_BYTES))
        entries = _Unpickler(file, encoding='bytes').load()
        rows, labels = entries[b'data'], np.array(entries[b'labels'], np.int64)
        if rows.dtype != np.uint8 or rows.shape != (labels.size, _CIFAR_BYTES - 1):
            raise ValueError('its data is not an array of 3072 * uint8 for each label')
    except OSError as error:
        raise _unreadable_file_error(path, error) from error
    # A damaged pickle can raise almost any error.
    except Exception as error:
        raise UsageError(
            f'{path}: the file is not a whole one of the Python version of CIFAR-10 '
            f'({type(error).__name__}: {error}); download it again'
        ) from error
    _check_labels(path, labels, DATA_SETS['cifar10'].num_classes)
    return rows, labels


def _planes_to_images(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays [N, 3072] uint8 of red, green and blue planes -> [N, 32, 32, 3] uint8."""
    planes = np.concatenate(rows).reshape(-1, _CIFAR_CHANNELS, _CIFAR_SIZE, _CIFAR_SIZE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _read_idx(
    path: str, num_dimensions: int, *, header_only: bool = False
) -> tuple[tuple[int, ...], bytes]:
    """Returns the dimensions of an idx file of unsigned bytes, and its values.

    With header_only, the values are b''.
    """
    header_bytes = 4 * (1 + num_dimensions)
    try:
        with gzip.open(path) if path.endswith('.gz') else open(path, 'rb') as file:
            header = file.read(header_bytes)
            content = b'' if header_only else file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(
            f'{path}: the file cannot be decompressed ({error}); download it again'
        ) from error
    except OSError as error:
        raise _unreadable_file_error(path, error) from error
    magic, *dimensions = struct.unpack(f'>{1 + num_dimensions}I', header.ljust(header_bytes, b'\0'))
    if magic != _IDX_UNSIGNED_BYTES + num_dimensions or not all(dimensions):
        raise UsageError(
            f'{path}: the file does not begin as an idx file of bytes in {num_dimensions} '
            'dimensions; download it again'
        )
    return tuple(dimensions), content


def _read_idx_shape(paths: list[str]) -> tuple[int, ...]:
    (images_path, labels_path) = paths
    shape, _ = _read_idx(images_path, 3, header_only=True)
    (num_labels,), _ = _read_idx(labels_path, 1, header_only=True)
    if shape[0] != num_labels:
        raise UsageError(
            f'{labels_path}: {plural(num_labels, "label")}, but {images_path} has '
            f'{plural(shape[0], "image")}; download both again'
        )
    return shape


def _load_idx(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    shape = _read_idx_shape(paths)
    arrays = []
    for path, dimensions in zip(paths, (shape, shape[:1]), strict=True):
        _, content = _read_idx(path, len(dimensions))
        expected = math.prod(dimensions)
        if len(content) != expected:
            raise UsageError(
                f'{path}: the file has {plural(len(content), "value")} instead of {expected}; '
                f'download it again'
            )
        arrays.append(np.frombuffer(content, np.uint8).reshape(dimensions))
    images, labels = arrays
    _check_labels(paths[1], labels, DATA_SETS['mnist'].num_classes)
    return images[..., np.newaxis], labels


def _plain_paths(folder: str, name: str) -> list[str]:
    return [os.path.join(folder, name)]


def _idx_paths(folder: str, name: str) -> list[str]:
    # Some programs that unpack the published archives write a dot before idx.
    names = (name, name.replace('-idx', '.idx'))
    return [
        os.path.join(folder, f'{spelling}{suffix}') for spelling in names for suffix in ('', '.gz')
    ]


@dataclass(frozen=True)
class _FileFormat:
    """How a data set is stored.

    Attributes:
      description: names the format in errors.
      files: the file names of each subset.
      load: paths of a subset -> images [N, H, W, C] uint8, labels [N] uint8.
      candidate_paths: folder, file name -> the paths where the file may be.
      folders: the subfolders of --data_dir that may contain the files.
    """

    description: str
    files: Mapping[str, tuple[str, ...]]
    count: Callable[[list[str]], int]
    load: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
    candidate_paths: Callable[[str, str], list[str]]
    folders: tuple[str, ...] = ()


_FORMATS = {
    'cifar10': (
        _FileFormat(
            'the binary version of CIFAR-10',
            _CIFAR_FILES,
            _count_cifar,
            _load_cifar,
            _plain_paths,
            (_CIFAR_FOLDER,),
        ),
        _FileFormat(
            'its Python version',
            _CIFAR_PYTHON_FILES,
            lambda paths: sum(len(_read_pickle(path)[1]) for path in paths),
            _load_cifar_pickles,
            _plain_paths,
            (_CIFAR_PYTHON_FOLDER,),
        ),
    ),
    'mnist': (
        _FileFormat(
            'the idx files of MNIST, plain or .gz',
            _IDX_FILES,
            lambda paths: _read_idx_shape(paths)[0],
            _load_idx,
            _idx_paths,
        ),
    ),
}
ARRAY_DATA_SETS = tuple(_FORMATS)
