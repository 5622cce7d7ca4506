"""CIFAR-10 and MNIST are read from their published files as they were written, or one line names
the faulty file.

Nothing in the pickles of CIFAR-10 is executed.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.images import idx, python2_pickle, write_cifar, write_mnist
from tests.support.outputs import check_line, refused
from tf_cnn.inputs.array_files import count_images, has_files, load_arrays
from tf_cnn.inputs.data_folder import recognise_data_set

pytestmark = pytest.mark.unit

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, [20, 32, 32, 3], np.uint8)
DIGITS = RANDOM.integers(0, 256, [20, 28, 28], np.uint8)
LABELS = np.arange(20) % 10
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(20, -1)
WHOLE = python2_pickle(ROWS, LABELS)


def check_arrays(data_set: str, folder: Path, subset: str, expected: np.ndarray) -> None:
    images, labels = load_arrays(data_set, str(folder), subset)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(labels, LABELS)
    assert count_images(data_set, str(folder), subset) == 20


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize(
    ('below', 'for_python'),
    [('', False), ('cifar-10-batches-bin', False), ('', True), ('cifar-10-batches-py', True)],
)
def test_cifar10_is_read_as_it_was_written(
    tmp_path: Path, below: str, for_python: bool, subset: str
) -> None:
    write_cifar(tmp_path / below, IMAGES, LABELS, subset, for_python=for_python)
    assert recognise_data_set(str(tmp_path)) == 'cifar10'
    check_arrays('cifar10', tmp_path, subset, IMAGES)


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize('suffix', ['', '.gz'])
@pytest.mark.parametrize('spelling', ['-idx', '.idx'])
def test_mnist_is_read_as_it_was_written(
    tmp_path: Path, subset: str, suffix: str, spelling: str
) -> None:
    write_mnist(tmp_path, DIGITS, LABELS, subset, suffix)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace('-idx', spelling))
    check_arrays('mnist', tmp_path, subset, DIGITS[..., np.newaxis])


def test_the_binary_version_is_preferred_and_each_subset_may_have_its_own(tmp_path: Path) -> None:
    for subset in ('train', 'validation'):
        write_cifar(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS, subset, for_python=True)
    write_cifar(tmp_path, 255 - IMAGES, LABELS)
    check_arrays('cifar10', tmp_path, 'train', 255 - IMAGES)
    check_arrays('cifar10', tmp_path, 'validation', IMAGES)


def changed(content: bytes, at: int, value: int) -> bytes:
    return content[:at] + bytes([value]) + content[at + 1 :]


# By data set and file: what is done to its content, whether counting sees it, and what the error
# names besides.
Case = tuple[str, str, Callable[[bytes], bytes], bool, list[str]]
FAULTS: list[Case] = [
    ('cifar10', 'data_batch_2.bin', lambda c: c[:-1], True, ['3072', '3073']),
    ('cifar10', 'data_batch_2.bin', lambda c: b'', True, []),
    (
        'cifar10',
        'data_batch_2.bin',
        lambda c: changed(c, 3073, 11),
        False,
        ['image 1', '11', '0..9'],
    ),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:-1], False, ['15679', '15680']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c + b'x', False, ['15681', '15680']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:7], True, ['3 dimensions']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: changed(c, 3, 1), True, ['3 dimensions']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: c[:8] + bytes(8), True, ['3 dimensions']),
    ('mnist', 'train-images-idx3-ubyte', lambda c: b'<!DOCTYPE html>', True, ['3 dimensions']),
    (
        'mnist',
        'train-labels-idx1-ubyte',
        lambda c: changed(c, 7, 19)[:-1],
        True,
        ['19', '20', 'train-images'],
    ),
    (
        'mnist',
        'train-labels-idx1-ubyte',
        lambda c: changed(c, 8, 10),
        False,
        ['image 0', '10', '0..9'],
    ),
    (
        'mnist.gz',
        'train-images-idx3-ubyte.gz',
        lambda c: c[:-200],
        False,
        ['cannot be decompressed'],
    ),
    (
        'mnist.gz',
        'train-images-idx3-ubyte.gz',
        lambda c: idx(DIGITS),
        True,
        ['cannot be decompressed'],
    ),
    (
        'mnist.gz',
        'train-images-idx3-ubyte.gz',
        lambda c: changed(c, -9, c[-9] ^ 1),
        False,
        ['cannot be decompressed'],
    ),
]


@pytest.mark.parametrize(('which', 'name', 'spoil', 'is_counted', 'facts'), FAULTS)
def test_a_faulty_file_is_named(
    tmp_path: Path,
    which: str,
    name: str,
    spoil: Callable[[bytes], bytes],
    is_counted: bool,
    facts: list[str],
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
    assert has_files('cifar10', str(tmp_path), 'train')
    # The first one, how many more, and of how many.
    with refused(f'--data_dir={tmp_path}', 't10k-images-idx3-ubyte', ' 1 ', ' 2 ', 'validation'):
        load_arrays('mnist', str(tmp_path), 'validation')
    with refused(f'--data_dir={tmp_path}/none') as error:
        load_arrays('mnist', str(tmp_path / 'none'), 'train')
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_no_function_of_a_pickle_is_called(tmp_path: Path) -> None:
    path, witness = tmp_path / 'test_batch', tmp_path / 'called'
    path.write_bytes(f"cposix\nsystem\n(S'touch {witness}'\ntR.".encode())
    with refused(path, 'posix.system'):
        load_arrays('cifar10', str(tmp_path), 'validation')
    assert not witness.exists()
    pickle.loads(path.read_bytes())
    assert witness.exists(), 'the pickle does nothing'


def nested(start: bytes, opcodes: bytes) -> bytes:
    """Returns a pickle's opcodes for forty values, each of which contains the one before twice."""
    by_memo = (b'q' + bytes([n]) + opcodes.replace(b'h', b'h' + bytes([n])) for n in range(10, 50))
    return start + b''.join(by_memo)


TUPLES, LISTS = nested(b')', b'h\x86'), nested(b']', b'0](hhe')
SETS = nested(b'(\x91', b'0(hK\x01\x91')
# By what is wrong: the content, and what the error names.
PICKLE_FAULTS: dict[str, tuple[bytes, list[str]]] = {
    'cut in the pixels': (WHOLE[:30_000], []),
    'no pickle': (b'text', []),
    'no data': (WHOLE.replace(b'U\x04data', b'U\x04date'), ["'data'"]),
    'no labels': (WHOLE.replace(b'U\x06labels', b'U\x06libels'), ["'labels'"]),
    'floats': (WHOLE.replace(b'U\x02u1', b'U\x02f1'), ['uint8']),
    'another shape': (python2_pickle(ROWS[:, 1:], LABELS), ['3072']),
    'fewer labels': (python2_pickle(ROWS, LABELS[:2]), ['20']),
    'a label out of range': (
        python2_pickle(ROWS, np.array([0, 10] * 10)),
        ['image 1', '10', '0..9'],
    ),
    'the order of Fortran': (WHOLE.replace(b'tb\x89T', b'tb\x88T'), ['uint8']),
    'nested tuples as a key': (b'\x80\x02}(' + TUPLES + b'K\x01u.', ['key']),
    'nested tuples as the only key': (b'\x80\x02}' + TUPLES + b'K\x01s.', ['key']),
    'nested tuples as a key in protocol 0': (b'(' + TUPLES + b'K\x01d.', ['key']),
    'nested tuples in a set': (b'\x80\x04\x8f(' + TUPLES + b'\x90.', []),
    'nested sets': (b'\x80\x04' + SETS + b'.', []),
    'nested lists of labels': (WHOLE[: WHOLE.index(b']q\x05(')] + LISTS + b'u.', ['labels']),
    'more images than pixels': (WHOLE.replace(b'M\x14\0', b'M\x15\0'), ['21']),
}


@pytest.mark.parametrize('fault', PICKLE_FAULTS)
def test_a_faulty_pickle_is_named_with_its_fault(tmp_path: Path, fault: str) -> None:
    content, facts = PICKLE_FAULTS[fault]
    path = tmp_path / 'test_batch'
    path.write_bytes(content)
    with refused(path) as error:
        load_arrays('cifar10', str(tmp_path), 'validation')
    check_line(str(error.value).replace(str(tmp_path), ''), *facts)
