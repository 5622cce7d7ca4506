"""CIFAR-10 and MNIST are read from their published files as they were written, or one line names the faulty file."""

import gzip
import os
from collections.abc import Callable
from errno import EISDIR
from pathlib import Path

import numpy as np
import pytest

from inputs.array_files import count_images, load_arrays
from tests.support.images import idx, write_cifar, write_mnist
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
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:-1], True, ['15695', '15696']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c + b'x', True, ['15697', '15696']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:7], True, [' 7 ', ' 16 ']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: changed(c, 3, 1), True, ['0x801', '0x803']),
    ('mnist', 'train-images-idx3-ubyte', gzip.compress, True, ['gzip', '.gz']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: b'<!DOCTYPE html>', True, ['HTML']),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: LFS_POINTER, True, ['git lfs pull']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:8] + bytes(8), True, ['20x0x0']),
    ('cifar10', 'data_batch_1.bin', lambda c: LFS_POINTER, True, ['git lfs pull']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: changed(c, 4, 255), True, ['4278190100x28x28']),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 2, 9), True, ['0x901', '0x801']),
    (
        'mnist',
        'train-labels-idx1-ubyte',
        lambda c: changed(c, 7, 19)[:-1],
        True,
        ['19', '20', 'train-images-idx3-ubyte'],
    ),
    ('mnist', 'train-labels-idx1-ubyte', lambda c: changed(c, 8, 10), False, ['image 0', '10', '0..9']),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: c[:-200], False, []),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: idx(DIGITS), True, ['uncompressed', '.gz']),
    ('mnist.gz', 'train-images-idx3-ubyte.gz', lambda c: changed(c, -9, c[-9] ^ 1), False, []),
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
    readers = [load_arrays, *([count_images] if is_counted else [])]
    for read in readers:
        with refused() as error:
            read(data_set, str(tmp_path), 'train')
        assert str(error.value).startswith(f'{path}: ')
        # The folder's name may have numbers in it.
        check_line(str(error.value).replace(str(tmp_path), ''), *facts)


def test_a_compressed_file_that_ends_early_is_told_apart_from_a_corrupt_one(tmp_path: Path) -> None:
    write_mnist(tmp_path, DIGITS, LABELS, suffix='.gz')
    path = tmp_path / 'train-images-idx3-ubyte.gz'
    data = path.read_bytes()
    told = set()
    for damaged in (data[:-200], data[:-8], changed(data, -9, data[-9] ^ 1)):
        path.write_bytes(damaged)
        with refused(path) as error:
            load_arrays('mnist', str(tmp_path), 'train')
        told.add(str(error.value))
    assert len(told) == 2


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_cifar(tmp_path, IMAGES, LABELS)
    os.remove(tmp_path / 'data_batch_3.bin')
    with refused(f'--data_dir={tmp_path}', 'data_batch_3.bin'):
        count_images('cifar10', str(tmp_path), 'train')
    # The first one, how many more, and of how many.
    with refused(f'--data_dir={tmp_path}', 't10k-images-idx3-ubyte', ' 1 ', ' 2 ', 'validation'):
        load_arrays('mnist', str(tmp_path), 'validation')


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte'):
        os.mkfifo(tmp_path / name)
    with refused(tmp_path / 'train-images-idx3-ubyte'):
        count_images('mnist', str(tmp_path), 'train')


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with refused(f'--data_dir={tmp_path}/none') as error:
        load_arrays('mnist', str(tmp_path / 'none'), 'train')
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_an_unreadable_file_is_named_with_the_reason_of_the_operating_system(tmp_path: Path) -> None:
    write_mnist(tmp_path, DIGITS, LABELS)
    path = tmp_path / 'train-images-idx3-ubyte'
    path.unlink()
    path.mkdir()
    with refused(path, os.strerror(EISDIR)):
        load_arrays('mnist', str(tmp_path), 'train')
