"""CIFAR-10 as it is published for Python is read pixel by pixel, and nothing in its pickles is executed."""

import functools
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from inputs.array_files import count_images, has_files, load_arrays
from inputs.data_folder import recognise
from tests.support.images import python2_pickle, write_cifar, write_cifar_pickles
from tests.support.outputs import check_line, refused

pytestmark = pytest.mark.unit

RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.integers(0, 256, [20, 32, 32, 3], np.uint8)
LABELS = np.arange(20) % 10
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(20, -1)
GOOD = {b'batch_label': b'testing batch 1 of 1', b'data': ROWS, b'labels': LABELS.tolist()}


class _Python2(pickle._Pickler):
    """Writes strings and arrays as Python 2 did with protocol 2."""

    # Any: the stubs have neither write nor memoize.
    dispatch: ClassVar[Any] = {**pickle._Pickler.dispatch}

    def save_string(self: Any, text: bytes | str) -> None:
        text = text.encode() if isinstance(text, str) else text
        length = b'U' + bytes([len(text)]) if len(text) < 256 else b'T' + struct.pack('<i', len(text))
        self.write(length + text)
        self.memoize(text)

    dispatch[bytes] = save_string
    dispatch[str] = save_string

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, np.dtype):
            return np.dtype, (value.str.strip('|<'), 0, 1), (3, value.str[0], None, None, None, -1, -1, 0)
        return NotImplemented


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of the file test_batch."""
    return load_arrays('cifar10', str(folder), 'validation')


def dumps(value: object) -> bytes:
    file = io.BytesIO()
    _Python2(file, 2).dump(value)
    return file.getvalue().replace(b'cnumpy._core.', b'cnumpy.core.')


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize('below', ['', 'cifar-10-batches-py'])
def test_the_version_of_python_has_the_pixels_of_the_binary_one(tmp_path: Path, below: str, subset: str) -> None:
    write_cifar_pickles(tmp_path / 'py' / below, IMAGES, LABELS, subset)
    write_cifar(tmp_path / 'bin', IMAGES, LABELS, subset)
    assert recognise(str(tmp_path / 'py')) == 'cifar10'
    found, expected = (load_arrays('cifar10', str(tmp_path / name), subset) for name in ('py', 'bin'))
    for of_python, binary in zip(found, expected, strict=True):
        assert of_python.dtype == binary.dtype
        np.testing.assert_array_equal(of_python, binary)
    assert count_images('cifar10', str(tmp_path / 'py'), subset) == 20


@pytest.mark.parametrize('protocol', range(6))
def test_a_file_that_python_3_wrote_is_refused_by_an_operation(tmp_path: Path, protocol: int) -> None:
    (tmp_path / 'test_batch').write_bytes(pickle.dumps(GOOD, protocol))
    with refused(tmp_path / 'test_batch', 'download it again'):
        load(tmp_path)


def test_the_binary_version_is_preferred_and_each_subset_may_have_its_own(tmp_path: Path) -> None:
    write_cifar_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS)
    write_cifar_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS, 'validation')
    write_cifar(tmp_path, 255 - IMAGES, LABELS)
    np.testing.assert_array_equal(load_arrays('cifar10', str(tmp_path), 'train')[0], 255 - IMAGES)
    np.testing.assert_array_equal(load_arrays('cifar10', str(tmp_path), 'validation')[0], IMAGES)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_cifar_pickles(tmp_path, IMAGES, LABELS)
    (tmp_path / 'data_batch_3').unlink()
    assert has_files('cifar10', str(tmp_path), 'train')
    with refused(f'--data_dir={tmp_path}', 'data_batch_3', 'binary', 'Python'):
        load_arrays('cifar10', str(tmp_path), 'train')


class Calls:
    """When unpickled, calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


@pytest.mark.parametrize('dump', [dumps, *(functools.partial(pickle.dumps, protocol=number) for number in (0, 2, 5))])
@pytest.mark.parametrize('inside', [False, True])
def test_no_function_of_a_pickle_is_called(tmp_path: Path, dump: Callable[..., bytes], inside: bool) -> None:
    path, witness = tmp_path / 'test_batch', tmp_path / 'called'
    evil = Calls(os.system, f'touch {witness}')
    path.write_bytes(dump({b'data': ROWS, b'labels': evil} if inside else evil))
    with refused(path) as error:
        load(tmp_path)
    if dump is dumps:
        check_line(str(error.value), f'{os.system.__module__}.system')
    assert not witness.exists()
    pickle.loads(path.read_bytes(), encoding='bytes')
    assert witness.exists(), 'the pickle does nothing'


def _without(key: bytes) -> bytes:
    return dumps({name: value for name, value in GOOD.items() if name != key})


def _with(**entries: object) -> bytes:
    return dumps({**GOOD, **{name.encode(): value for name, value in entries.items()}})


WHOLE = python2_pickle(ROWS, LABELS)
# By what is wrong: the content, and what the error names.
FAULTS: dict[str, tuple[bytes, list[str]]] = {
    'empty': (b'', []),
    'cut in the pixels': (WHOLE[:30_000], ['truncated']),
    'cut at the end': (WHOLE[:-1], ['truncated']),
    'no pickle': (b'text', []),
    'no dictionary': (dumps([1, 2]), ["'data'"]),
    'no data': (_without(b'data'), ["'data'"]),
    'no labels': (_without(b'labels'), ['20 images', "'labels'"]),
    'data that are no array': (_with(data=[1, 2]), ["'data'"]),
    'floats': (_with(data=ROWS.astype(np.float32)), ["'data'", 'uint8']),
    'objects': (_with(data=ROWS.astype(object)), ["'data'", 'uint8']),
    'another shape': (_with(data=ROWS[:, 1:].copy()), ["'data'", '3072']),
    'no image': (_with(data=ROWS[:0]), ['0 images']),
    'fewer labels': (_with(labels=[1, 2]), ['2 numbers', '20 images']),
    'labels that are no integers': (_with(labels=[None] * 20), ["'labels'"]),
    'labels that are floats': (_with(labels=[1.5] * 20), ['BINFLOAT']),
    'a label out of range': (_with(labels=[0, 10] * 10), ['image 1', '10', '0..9']),
    'a label below': (_with(labels=[-1] * 20), ['image 0', '-1', '0..9']),
    'a huge label': (_with(labels=[2**300] * 20), ['image 0', '0..9']),
    'the order of Fortran': (WHOLE.replace(b'tb\x89T', b'tbK\x01T'), ["'data'"]),
    'more images than pixels': (WHOLE.replace(b'M\x14\0', b'M\x15\0'), ['61440 bytes', '21 images', "'data'"]),
    # A place and a length for which a loader would take 32 GB and 2 GB.
    'a huge number of objects': (WHOLE[:2] + b'}r\xff\xff\xff\xff.', ["'data'"]),
    'a huge length': (b'\x80\x02T\xff\xff\xff\x7fx.', ['truncated']),
    'an integer as text': (b'I' + b'9' * 1000 + b'\n.', ['INT']),
    'an operation without arguments': (b'\x80\x02}(' + b')' + b'\x85' * 1_000_000 + b'K\x01u.', ['EMPTY_TUPLE']),
    'too many operations of a published file': (b'\x80\x02' + b']' * 1_000_000 + b'.', ['100000']),
    # Each tuple holds the one before twice: hashing the last would take 2^39 steps, which no signal interrupts.
    'a key that takes forever to hash': (
        b'\x80\x02}(K\x01q\0' + b''.join(b'h%ch%c\x86q%c' % (n, n, n + 1) for n in range(39)) + b'u.',
        ["'data'"],
    ),
    'a shape that takes forever to print': (
        WHOLE.replace(
            b'M\x14\0M\0\x0c\x86',
            b'K\x01q\0' + b''.join(b'h%ch%c\x86q%c' % (n, n, n + 1) for n in range(39)),
        ),
        ["'data'"],
    ),
    'a call of text': (b'\x80\x02U\x01xU\x01y\x85R.', []),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, fault: str) -> None:
    content, facts = FAULTS[fault]
    path = tmp_path / 'test_batch'
    path.write_bytes(content)
    with refused(path) as error:
        load(tmp_path)
    check_line(str(error.value).replace(str(tmp_path), ''), *facts)


def test_every_cut_of_a_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / 'test_batch'
    for end in [*range(150), *range(150, len(WHOLE), 4001)]:
        path.write_bytes(WHOLE[:end])
        with refused(path):
            load(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / 'test_batch'
    with path.open('wb') as file:
        file.truncate(2**40)
    with refused(path, str(2**40)):
        load(tmp_path)
    path.unlink()
    path.mkdir()
    with refused(path, 'directory'):
        load(tmp_path)
