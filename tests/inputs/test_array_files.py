"""CIFAR-10 and MNIST are read from their published files as they were written, or one line names the faulty file.

Nothing in the pickles of CIFAR-10 is executed.
"""

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from errno import EISDIR
from pathlib import Path

import numpy as np
import pytest

from inputs.array_files import count_images, has_files, load_arrays
from inputs.data_folder import recognise
from tests.support.images import idx, python2_pickle, write_cifar, write_cifar_pickles, write_mnist
from tests.support.outputs import check_line, refused

pytestmark = pytest.mark.unit

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, [20, 32, 32, 3], np.uint8)
DIGITS = RANDOM.integers(0, 256, [20, 28, 28], np.uint8)
LABELS = np.arange(20) % 10
LFS_POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n'


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize('below', ['', 'cifar-10-batches-bin'])
def test_cifar10_is_read_as_it_was_written(tmp_path: Path, below: str, subset: str) -> None:
    write_cifar(tmp_path / below, IMAGES, LABELS, subset)
    images, labels = load_arrays('cifar10', str(tmp_path), subset)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert count_images('cifar10', str(tmp_path), subset) == 20


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize('suffix', ['', '.gz'])
@pytest.mark.parametrize('spelling', ['-idx', '.idx'])
def test_mnist_is_read_as_it_was_written(tmp_path: Path, subset: str, suffix: str, spelling: str) -> None:
    write_mnist(tmp_path, DIGITS, LABELS, subset, suffix)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace('-idx', spelling))
    images, labels = load_arrays('mnist', str(tmp_path), subset)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(images, DIGITS[..., np.newaxis])
    np.testing.assert_array_equal(labels, LABELS)
    assert count_images('mnist', str(tmp_path), subset) == 20


def changed(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


# By data set and file: what is done to its content, whether counting sees it, and what the error names besides.
Case = tuple[str, str, Callable[[bytes], bytes], bool, list[str]]
FAULTS: list[Case] = [
    ('cifar10', 'data_batch_2.bin', lambda c: c[:-1], True, ['3072', '3073']),
    ('cifar10', 'data_batch_2.bin', lambda c: b'', True, []),
    ('cifar10', 'data_batch_2.bin', lambda c: changed(c, 3073, 11), False, ['image 1', '11', '0..9']),
    ('cifar10', 'data_batch_1.bin', lambda c: LFS_POINTER, True, ['git lfs pull']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:-1], True, ['15695', '15696']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c + b'x', True, ['15697', '15696']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:7], True, [' 7 ', ' 16 ']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: changed(c, 3, 1), True, ['0x801', '0x803']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:8] + bytes(8), True, ['20x0x0']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: changed(c, 4, 255), True, ['4278190100x28x28']),
    ('mnist', 'train-images-idx3-ubyte', gzip.compress, True, ['gzip', '.gz']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: b'<!DOCTYPE html>', True, ['HTML']),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: LFS_POINTER, True, ['git lfs pull']),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 7, 19)[:-1], True, ['19', '20', 'train-images']),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 8, 10), False, ['image 0', '10', '0..9']),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: c[:-200], False, ['truncated']),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: idx(DIGITS), True, ['uncompressed', '.gz']),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: changed(c, -9, c[-9] ^ 1), False, ['cannot be decompressed']),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: gzip.compress(idx(DIGITS)[:-1]), False, ['15679', '15680']),
]


@pytest.mark.parametrize(('which', 'name', 'spoil', 'is_counted', 'facts'), FAULTS)
def test_a_faulty_file_is_named(
    tmp_path: Path, which: str, name: str, spoil: Callable[[bytes], bytes], is_counted: bool, facts: list[str]
) -> None:
    data_set, _, gz = which.partition('.')
    if data_set == 'cifar10':
        write_cifar(tmp_path, IMAGES, LABELS)
    else:
        write_mnist(tmp_path, DIGITS, LABELS, suffix=f'.{gz}' if gz else '')
    path = tmp_path / name
    path.write_bytes(spoil(path.read_bytes()))
    for read in [load_arrays, *([count_images] if is_counted else [])]:
        with refused() as error:
            read(data_set, str(tmp_path), 'train')
        assert str(error.value).startswith(f'{path}: ')
        # The folder's name may have numbers in it.
        check_line(str(error.value).replace(str(tmp_path), ''), *facts)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    write_cifar(tmp_path, IMAGES, LABELS)
    os.remove(tmp_path / 'data_batch_3.bin')
    with refused(f'--data_dir={tmp_path}', 'data_batch_3.bin'):
        count_images('cifar10', str(tmp_path), 'train')
    write_cifar_pickles(tmp_path / 'py', IMAGES, LABELS)
    (tmp_path / 'py' / 'data_batch_3').unlink()
    assert has_files('cifar10', str(tmp_path / 'py'), 'train')
    with refused(f'--data_dir={tmp_path}/py', 'data_batch_3', 'binary', 'Python'):
        load_arrays('cifar10', str(tmp_path / 'py'), 'train')
    # The first one, how many more, and of how many.
    with refused(f'--data_dir={tmp_path}', 't10k-images-idx3-ubyte', ' 1 ', ' 2 ', 'validation'):
        load_arrays('mnist', str(tmp_path), 'validation')
    with refused(f'--data_dir={tmp_path}/none') as error:
        load_arrays('mnist', str(tmp_path / 'none'), 'train')
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_what_is_no_regular_file_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    write_mnist(tmp_path, DIGITS, LABELS)
    path, pickled = tmp_path / 'train-images-idx3-ubyte', tmp_path / 'test_batch'
    path.unlink()
    os.mkfifo(path)
    with refused(path):
        count_images('mnist', str(tmp_path), 'train')
    path.unlink()
    path.mkdir()
    with refused(path, os.strerror(EISDIR)):
        load_arrays('mnist', str(tmp_path), 'train')
    with pickled.open('wb') as file:
        file.truncate(2**40)
    with refused(pickled, str(2**40)):
        load_pickle(tmp_path)


ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(20, -1)
WHOLE = python2_pickle(ROWS, LABELS)


def load_pickle(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of the file test_batch."""
    return load_arrays('cifar10', str(folder), 'validation')


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize('below', ['', 'cifar-10-batches-py'])
def test_the_python_version_of_cifar10_has_the_pixels_of_the_binary_one(
    tmp_path: Path, below: str, subset: str
) -> None:
    write_cifar_pickles(tmp_path / 'py' / below, IMAGES, LABELS, subset)
    write_cifar(tmp_path / 'bin', IMAGES, LABELS, subset)
    assert recognise(str(tmp_path / 'py')) == 'cifar10'
    found, expected = (load_arrays('cifar10', str(tmp_path / name), subset) for name in ('py', 'bin'))
    for of_python, binary in zip(found, expected, strict=True):
        assert of_python.dtype == binary.dtype
        np.testing.assert_array_equal(of_python, binary)
    assert count_images('cifar10', str(tmp_path / 'py'), subset) == 20


def test_the_binary_version_is_preferred_and_each_subset_may_have_its_own(tmp_path: Path) -> None:
    write_cifar_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS)
    write_cifar_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS, 'validation')
    write_cifar(tmp_path, 255 - IMAGES, LABELS)
    np.testing.assert_array_equal(load_arrays('cifar10', str(tmp_path), 'train')[0], 255 - IMAGES)
    np.testing.assert_array_equal(load_arrays('cifar10', str(tmp_path), 'validation')[0], IMAGES)


class Calls:
    """When unpickled, runs a command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, (self._command,)


def as_python_2(call: Calls) -> bytes:
    """The call in the operations of the published files."""
    argument = call.__reduce__()[1][0].encode()
    return b'\x80\x02cposix\nsystem\nT' + struct.pack('<I', len(argument)) + argument + b'\x85R.'


@pytest.mark.parametrize('protocol', ['Python 2', 0, 2, 5])
def test_no_function_of_a_pickle_is_called(tmp_path: Path, protocol: int | str) -> None:
    path, witness = tmp_path / 'test_batch', tmp_path / 'called'
    call = Calls(f'touch {witness}')
    path.write_bytes(pickle.dumps(call, protocol) if isinstance(protocol, int) else as_python_2(call))
    with refused(path, *(['posix.system'] if protocol == 'Python 2' else [])):
        load_pickle(tmp_path)
    assert not witness.exists()
    pickle.loads(path.read_bytes(), encoding='bytes')
    assert witness.exists(), 'the pickle does nothing'


# A shape or a key that holds each tuple before twice: hashing or printing it would take 2^39 steps.
NESTED = b'K\x01q\0' + b''.join(b'h%ch%c\x86q%c' % (n, n, n + 1) for n in range(39))
# By what is wrong: the content, and what the error names.
PICKLE_FAULTS: dict[str, tuple[bytes, list[str]]] = {
    'cut in the pixels': (WHOLE[:30_000], ['truncated']),
    'no pickle': (b'text', []),
    'of Python 3': (pickle.dumps({b'data': ROWS, b'labels': LABELS.tolist()}, 2), ['download it again']),
    'no data': (WHOLE.replace(b'U\x04data', b'U\x04date'), ["'data'"]),
    'no labels': (WHOLE.replace(b'U\x06labels', b'U\x06libels'), ['20 images', "'labels'"]),
    'floats': (WHOLE.replace(b'U\x02u1', b'U\x02f1'), ["'data'", 'uint8']),
    'another shape': (python2_pickle(ROWS[:, 1:], LABELS), ["'data'", '3072']),
    'no image': (python2_pickle(ROWS[:0], LABELS[:0]), ['0 images']),
    'fewer labels': (python2_pickle(ROWS, LABELS[:2]), ['2 numbers', '20 images']),
    'a label out of range': (python2_pickle(ROWS, np.array([0, 10] * 10)), ['image 1', '10', '0..9']),
    'labels that are floats': (WHOLE.replace(b'(K\0K\x01', b'(G\0\0\0\0\0\0\0\0K\x01'), ['BINFLOAT']),
    'the order of Fortran': (WHOLE.replace(b'tb\x89T', b'tbK\x01T'), ["'data'"]),
    'more images than pixels': (WHOLE.replace(b'M\x14\0', b'M\x15\0'), ['61440 bytes', '21 images', "'data'"]),
    # A place and a length for which a loader would take 32 GB and 2 GB.
    'a huge number of objects': (WHOLE[:2] + b'}r\xff\xff\xff\xff.', ["'data'"]),
    'a huge length': (b'\x80\x02T\xff\xff\xff\x7fx.', ['truncated']),
    'an operation without arguments': (b'\x80\x02}(' + b')' + b'\x85' * 1_000_000 + b'K\x01u.', ['EMPTY_TUPLE']),
    'too many operations of a published file': (b'\x80\x02' + b']' * 1_000_000 + b'.', ['100000']),
    'a key that takes forever to hash': (b'\x80\x02}(' + NESTED + b'u.', ["'data'"]),
    'a shape that takes forever to print': (WHOLE.replace(b'M\x14\0M\0\x0c\x86', NESTED), ["'data'"]),
}


@pytest.mark.parametrize('fault', PICKLE_FAULTS)
def test_a_faulty_pickle_is_named_with_its_fault(tmp_path: Path, fault: str) -> None:
    content, facts = PICKLE_FAULTS[fault]
    path = tmp_path / 'test_batch'
    path.write_bytes(content)
    with refused(path) as error:
        load_pickle(tmp_path)
    check_line(str(error.value).replace(str(tmp_path), ''), *facts)


def test_every_cut_of_a_pickle_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / 'test_batch'
    for end in [*range(150), *range(150, len(WHOLE), 4001), len(WHOLE) - 1]:
        path.write_bytes(WHOLE[:end])
        with refused(path):
            load_pickle(tmp_path)
