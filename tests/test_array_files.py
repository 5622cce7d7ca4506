"""CIFAR-10 and MNIST come from their published files as they were written, or one line names the file that is wrong."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from array_writers import idx, write_cifar, write_mnist

from array_files import count_images, load_arrays
from errors import UsageError

pytestmark = pytest.mark.unit

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, [20, 32, 32, 3], np.uint8)
DIGITS = RANDOM.integers(0, 256, [20, 28, 28], np.uint8)
LABELS = np.arange(20) % 10


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


# By data set and file: what is done to its content, whether counting sees it, and what is told.
Case = tuple[str, str, Callable[[bytes], bytes], bool, str]
FAULTS: list[Case] = [
    ('cifar10', 'data_batch_2.bin', lambda c: c[:-1], True, 'cut short: its last image has 3072 of 3073 bytes'),
    ('cifar10', 'data_batch_2.bin', lambda c: b'', True, 'it holds no image'),
    ('cifar10', 'data_batch_2.bin', lambda c: changed(c, 3073, 11), False, 'label of image 1 is 11, outside 0..9'),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:-1], True, 'cut short: 15695 of 15696 bytes'),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c + b'x', True, 'longer than its header says'),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:7], True, 'cut short: 7 of 16 bytes of header'),
    ('mnist', 'train-images-idx3-ubyte', lambda c: changed(c, 3, 1), True, 'magic number is 0x801 and not 0x803'),
    ('mnist', 'train-images-idx3-ubyte', gzip.compress, True, 'magic number is 0x1f8b'),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 2, 9), True, 'magic number is 0x901'),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 7, 19)[:-1], True, 'has 19 labels'),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 8, 10), False, 'label of image 0 is 10, outside 0..9'),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: c[:-200], False, 'cut short: the compressed data has no end'),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: idx(DIGITS), True, 'it cannot be decompressed'),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: changed(c, -9, c[-9] ^ 1), False, 'cannot be decompressed'),
    (
        'mnist.gz',
        'train-images-idx3-ubyte.gz',
        lambda c: gzip.compress(idx(DIGITS)[:-1]),
        False,
        'cut short: 15679 of 15680',
    ),
]


@pytest.mark.parametrize(('which', 'name', 'spoil', 'is_counted', 'told'), FAULTS)
def test_a_file_that_is_wrong_is_named(
    tmp_path: Path, which: str, name: str, spoil: Callable[[bytes], bytes], is_counted: bool, told: str
) -> None:
    data_set, _, gz = which.partition('.')
    if data_set == 'cifar10':
        write_cifar(tmp_path, IMAGES, LABELS)
    else:
        write_mnist(tmp_path, DIGITS, LABELS, suffix=f'.{gz}' if gz else '')
    path = tmp_path / name
    path.write_bytes(spoil(path.read_bytes()))
    readers = [load_arrays, *([count_images] if is_counted else [])]
    for read in readers:
        with pytest.raises(UsageError) as error:
            read(data_set, str(tmp_path), 'train')
        assert str(error.value).startswith(f'{path}: ')
        assert told in str(error.value)
        assert '\n' not in str(error.value)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    write_cifar(tmp_path, IMAGES, LABELS)
    os.remove(tmp_path / 'data_batch_3.bin')
    with pytest.raises(UsageError, match=rf'^--data_dir={tmp_path}: there is no data_batch_3.bin; give the folder'):
        count_images('cifar10', str(tmp_path), 'train')
    with pytest.raises(UsageError, match=r'no t10k-images-idx3-ubyte \(nor 1 more of its 2 validation files\)'):
        load_arrays('mnist', str(tmp_path), 'validation')
    with pytest.raises(UsageError, match='there is no such folder'):
        load_arrays('mnist', str(tmp_path / 'none'), 'train')


def test_the_pickles_of_cifar10_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / 'cifar-10-batches-py').mkdir()
    with pytest.raises(UsageError, match='what it holds is the Python version'):
        load_arrays('cifar10', str(tmp_path), 'train')


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_cifar(tmp_path, IMAGES, LABELS)
    (tmp_path / 'data_batch_3.bin').unlink()
    (tmp_path / 'data_batch_3.bin').mkdir()
    with pytest.raises(UsageError, match=r'data_batch_3.bin: '):
        load_arrays('cifar10', str(tmp_path), 'train')
