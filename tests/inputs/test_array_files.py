"""CIFAR-10 and MNIST are read from their published files as they were written, or one line names
the faulty file.

Nothing in the pickles of CIFAR-10 is executed.
"""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.images import write_cifar, write_mnist
from tests.support.outputs import check_line, refused
from tf_cnn.inputs.array_files import count_images, has_files, load_arrays
from tf_cnn.inputs.data_folder import recognise_data_set

pytestmark = pytest.mark.unit

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, [20, 32, 32, 3], np.uint8)
DIGITS = RANDOM.integers(0, 256, [20, 28, 28], np.uint8)
LABELS = np.arange(20) % 10
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(20, -1)


def python2_pickle(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns the bytes that Python 2's pickle.dump writes, in protocol 2, for {'data': rows,
    'labels': labels}.
    """
    dtype = b'cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN'
    dtype += 2 * b'J\xff\xff\xff\xff' + b'K\x00tb'
    shape = b''.join(b'M' + struct.pack('<H', size) for size in rows.shape) + b'\x86'
    pixels = b'T' + struct.pack('<I', rows.size) + rows.tobytes()
    array = b'cnumpy.core.multiarray\n_reconstruct\nq\x02'
    array += b'cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04'
    array += b'(K\x01' + shape + dtype + b'\x89' + pixels + b'tb'
    numbers = b']q\x05(' + b''.join(b'K' + bytes([label]) for label in labels) + b'e'
    return b'\x80\x02}q\x01(U\x04data' + array + b'U\x06labels' + numbers + b'u.'


WHOLE = python2_pickle(ROWS, LABELS)


def write_pickles(folder: Path, images: np.ndarray, labels: np.ndarray, subset: str) -> None:
    folder.mkdir(exist_ok=True)
    names = [f'data_batch_{i}' for i in range(1, 6)] if subset == 'train' else ['test_batch']
    rows, count = images.transpose(0, 3, 1, 2).reshape(20, -1), 20 // len(names)
    for name, first in zip(names, range(0, 20, count), strict=True):
        part = slice(first, first + count)
        (folder / name).write_bytes(python2_pickle(rows[part], labels[part]))


def check_arrays(data_set: str, folder: Path, subset: str, expected: np.ndarray) -> None:
    images, labels = load_arrays(data_set, str(folder), subset)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(labels, LABELS)
    assert count_images(data_set, str(folder), subset) == 20


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize(
    ('write', 'below'),
    [
        (write_cifar, ''),
        (write_cifar, 'cifar-10-batches-bin'),
        (write_pickles, ''),
        (write_pickles, 'cifar-10-batches-py'),
    ],
)
def test_cifar10_is_read_as_it_was_written(tmp_path, write, below, subset):
    write(tmp_path / below, IMAGES, LABELS, subset)
    assert recognise_data_set(str(tmp_path)) == 'cifar10'
    check_arrays('cifar10', tmp_path, subset, IMAGES)


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize('suffix', ['', '.gz'])
@pytest.mark.parametrize('spelling', ['-idx', '.idx'])
def test_mnist_is_read_as_it_was_written(tmp_path, subset, suffix, spelling):
    write_mnist(tmp_path, DIGITS, LABELS, subset, suffix)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace('-idx', spelling))
    assert recognise_data_set(str(tmp_path)) == 'mnist'
    check_arrays('mnist', tmp_path, subset, DIGITS[..., np.newaxis])


def test_the_binary_version_is_preferred_and_each_subset_may_have_its_own(tmp_path):
    for subset in ('train', 'validation'):
        write_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS, subset)
    write_cifar(tmp_path, 255 - IMAGES, LABELS)
    check_arrays('cifar10', tmp_path, 'train', 255 - IMAGES)
    check_arrays('cifar10', tmp_path, 'validation', IMAGES)


@pytest.mark.parametrize('protocol', [3, 4, 5])
def test_a_part_of_cifar10_that_python_3_pickled_is_read(tmp_path, protocol):
    part = {b'data': ROWS, b'labels': LABELS.tolist(), b'batch_label': b'testing batch 1 of 1'}
    (tmp_path / 'test_batch').write_bytes(pickle.dumps(part, protocol))
    check_arrays('cifar10', tmp_path, 'validation', IMAGES)


def changed(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


CIFAR, DIGIT_IMAGES, DIGIT_LABELS = (
    'data_batch_2.bin',
    'train-images-idx3-ubyte',
    'train-labels-idx1-ubyte',
)


@pytest.mark.parametrize(
    ('name', 'spoil', 'is_counted', 'facts'),
    # A change of the file, whether counting its images notices it, and what the error names.
    [
        (CIFAR, lambda c: c[:-1], True, '3072, 3073'),
        (CIFAR, lambda c: b'', True, ''),
        (CIFAR, lambda c: changed(c, 3073, 11), False, 'image 1, 11, 0..9'),
        (DIGIT_IMAGES, lambda c: c[:-1], False, '15679, 15680'),
        (DIGIT_IMAGES, lambda c: c + b'x', False, '15681, 15680'),
        (DIGIT_IMAGES, lambda c: c[:7], True, '3 dimensions'),
        (DIGIT_IMAGES, lambda c: changed(c, 3, 1), True, '3 dimensions'),
        (DIGIT_IMAGES, lambda c: c[:8] + bytes(8), True, '3 dimensions'),
        (DIGIT_IMAGES, lambda c: b'<!DOCTYPE html>', True, '3 dimensions'),
        (DIGIT_LABELS, lambda c: changed(c, 7, 19)[:-1], True, '19, 20, train-images'),
        (DIGIT_LABELS, lambda c: changed(c, 8, 10), False, 'image 0, 10, 0..9'),
        (f'{DIGIT_IMAGES}.gz', lambda c: c[:-200], False, 'cannot be decompressed'),
        (f'{DIGIT_IMAGES}.gz', gzip.decompress, True, 'cannot be decompressed'),
        (
            f'{DIGIT_IMAGES}.gz',
            lambda c: changed(c, -9, c[-9] ^ 1),
            False,
            'cannot be decompressed',
        ),
    ],
)
def test_a_faulty_file_is_named(tmp_path, name, spoil, is_counted, facts):
    path, data_set = tmp_path / name, 'cifar10' if name == CIFAR else 'mnist'
    write_cifar(tmp_path, IMAGES, LABELS)
    write_mnist(tmp_path, DIGITS, LABELS, suffix='.gz' if path.suffix == '.gz' else '')
    path.write_bytes(spoil(path.read_bytes()))
    for read in [load_arrays, count_images] if is_counted else [load_arrays]:
        with refused() as error:
            read(data_set, str(tmp_path), 'train')
        assert str(error.value).startswith(f'{path}: ')
        # The folder's name may have numbers in it.
        check_line(str(error.value).replace(str(tmp_path), ''), *facts.split(', '))


def test_missing_files_and_folders_are_named(tmp_path):
    write_cifar(tmp_path, IMAGES, LABELS)
    (tmp_path / 'data_batch_3.bin').unlink()
    with refused(f'--data_dir={tmp_path}', 'data_batch_3.bin'):
        count_images('cifar10', str(tmp_path), 'train')
    assert has_files('cifar10', str(tmp_path), 'train')
    # The first missing file, how many more are missing, and of how many.
    with refused(f'--data_dir={tmp_path}', 't10k-images-idx3-ubyte', ' 1 ', ' 2 ', 'validation'):
        load_arrays('mnist', str(tmp_path), 'validation')
    with refused(f'--data_dir={tmp_path}/none') as error:
        load_arrays('mnist', str(tmp_path / 'none'), 'train')
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_no_function_of_a_pickle_is_called(tmp_path):
    path, witness = tmp_path / 'test_batch', tmp_path / 'called'
    path.write_bytes(f'cposix\nsystem\n(S"touch \'{witness}\'"\ntR.'.encode())
    with refused(path, 'posix.system'):
        load_arrays('cifar10', str(tmp_path), 'validation')
    assert not witness.exists()
    pickle.loads(path.read_bytes())
    assert witness.exists(), 'the pickle does nothing'


@pytest.mark.parametrize(
    ('content', 'facts'),
    [
        pytest.param(WHOLE[:30_000], '', id='cut in the pixels'),
        pytest.param(b'text', '', id='no pickle'),
        pytest.param(WHOLE.replace(b'U\x04data', b'U\x04date'), "'data'", id='no data'),
        pytest.param(WHOLE.replace(b'labels', b'libels'), "'labels'", id='no labels'),
        pytest.param(WHOLE.replace(b'U\x02u1', b'U\x02i1'), 'uint8', id='signed'),
        pytest.param(python2_pickle(ROWS[:, 1:], LABELS), '3072', id='another shape'),
        pytest.param(python2_pickle(ROWS, LABELS[:2]), 'for each label', id='fewer labels'),
        pytest.param(python2_pickle(ROWS, LABELS + 1), 'image 9, 10, 0..9', id='a label of 10'),
        pytest.param(WHOLE.replace(b'M\x14\0', b'M\x15\0'), '', id='more than the pixels'),
    ],
)
def test_a_faulty_pickle_is_named_with_its_fault(tmp_path, content, facts):
    path = tmp_path / 'test_batch'
    path.write_bytes(content)
    with refused(path) as error:
        load_arrays('cifar10', str(tmp_path), 'validation')
    check_line(str(error.value).replace(str(tmp_path), ''), *facts.split(', '))
