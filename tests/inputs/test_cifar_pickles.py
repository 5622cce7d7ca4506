"""CIFAR-10 as it is published for Python is read pixel by pixel, and nothing in its pickles is executed."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_writers import python2_pickle, write_cifar, write_cifar_pickles
from refusals import check_line, refused

from inputs.array_files import count_images, holds, load_arrays
from inputs.cifar_pickles import read_batch
from inputs.data_folder import recognise

pytestmark = pytest.mark.unit

RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.integers(0, 256, [20, 32, 32, 3], np.uint8)
LABELS = np.arange(20) % 10
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(20, -1)
GOOD = {b'data': ROWS, b'labels': LABELS.tolist()}


@pytest.mark.parametrize('subset', ['train', 'validation'])
@pytest.mark.parametrize(('below', 'protocol'), [('', None), ('cifar-10-batches-py', None), ('', 2), ('', 4), ('', 5)])
def test_the_version_of_python_has_the_pixels_of_the_binary_one(
    tmp_path: Path, below: str, protocol: int | None, subset: str
) -> None:
    write_cifar_pickles(tmp_path / 'py' / below, IMAGES, LABELS, subset, protocol)
    write_cifar(tmp_path / 'bin', IMAGES, LABELS, subset)
    assert recognise(str(tmp_path / 'py')) == 'cifar10'
    found, expected = (load_arrays('cifar10', str(tmp_path / name), subset) for name in ('py', 'bin'))
    for of_python, binary in zip(found, expected, strict=True):
        assert of_python.dtype == binary.dtype
        np.testing.assert_array_equal(of_python, binary)
    assert count_images('cifar10', str(tmp_path / 'py'), subset) == 20


def test_the_files_of_these_tests_are_pickles_as_python_2_wrote_them() -> None:
    found = pickle.loads(python2_pickle(ROWS, LABELS), encoding='bytes')
    np.testing.assert_array_equal(found[b'data'], ROWS)
    assert found[b'labels'] == LABELS.tolist()


def test_the_binary_version_is_preferred_and_each_subset_may_have_its_own(tmp_path: Path) -> None:
    write_cifar_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS)
    write_cifar_pickles(tmp_path / 'cifar-10-batches-py', IMAGES, LABELS, 'validation')
    write_cifar(tmp_path, 255 - IMAGES, LABELS)
    np.testing.assert_array_equal(load_arrays('cifar10', str(tmp_path), 'train')[0], 255 - IMAGES)
    np.testing.assert_array_equal(load_arrays('cifar10', str(tmp_path), 'validation')[0], IMAGES)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_cifar_pickles(tmp_path, IMAGES, LABELS)
    (tmp_path / 'data_batch_3').unlink()
    assert holds('cifar10', str(tmp_path), 'train')
    with refused(f'--data_dir={tmp_path}', 'data_batch_3', 'binary', 'Python'):
        load_arrays('cifar10', str(tmp_path), 'train')


class Calls:
    """When unpickled, calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


@pytest.mark.parametrize('protocol', [0, 2, 5])
@pytest.mark.parametrize('inside', [False, True])
def test_no_function_of_a_pickle_is_called(tmp_path: Path, protocol: int, inside: bool) -> None:
    path, witness = tmp_path / 'test_batch', tmp_path / 'called'
    evil = Calls(os.system, f'touch {witness}')
    path.write_bytes(pickle.dumps({b'data': ROWS, b'labels': evil} if inside else evil, protocol))
    with refused(path) as error:
        load_arrays('cifar10', str(tmp_path), 'validation')
    if protocol:
        # Protocol 0 has operations that are refused before anything is asked for.
        check_line(str(error.value), f'{os.system.__module__}.system')
    assert not witness.exists()
    pickle.loads(path.read_bytes(), encoding='bytes')
    assert witness.exists(), 'the pickle does nothing'


@pytest.mark.parametrize(
    'function', [eval, getattr, open, __import__, np.frombuffer, np.load, Path], ids=lambda function: function.__name__
)
def test_functions_that_no_array_needs_are_named(tmp_path: Path, function: Callable[..., Any]) -> None:
    (tmp_path / 'f').write_bytes(pickle.dumps(Calls(function, 'x'), 2))
    with refused(tmp_path / 'f', function.__name__):
        read_batch(str(tmp_path / 'f'))


def _without(key: bytes) -> bytes:
    return pickle.dumps({name: value for name, value in GOOD.items() if name != key}, 2)


def _with(**entries: object) -> bytes:
    return pickle.dumps({**GOOD, **{name.encode(): value for name, value in entries.items()}}, 2)


WHOLE = python2_pickle(ROWS, LABELS)
# By what is wrong: the content, and what the error names.
FAULTS: dict[str, tuple[bytes, list[str]]] = {
    'empty': (b'', []),
    'cut in the pixels': (WHOLE[:30_000], ['truncated']),
    'cut at the end': (WHOLE[:-1], ['truncated']),
    'no pickle': (b'text', []),
    'no dictionary': (pickle.dumps([1], 2), ['list']),
    'no data': (_without(b'data'), ["'data'"]),
    'no labels': (_without(b'labels'), ["'labels'"]),
    'data that are no array': (_with(data=[1]), ["'data'"]),
    'floats': (_with(data=ROWS.astype(np.float32)), ['f4', 'uint8']),
    'objects': (_with(data=ROWS.astype(object)), ['O8', 'uint8']),
    'another shape': (_with(data=ROWS[:, 1:].copy()), ['(20, 3071)', '3072']),
    'no image': (pickle.dumps({**GOOD, b'data': ROWS[:0]}, 4), ['(0, 3072)']),
    'fewer labels': (_with(labels=[1, 2]), ['2 labels', '20 images']),
    'labels that are no integers': (_with(labels=[1.5] * 20), ["'labels'"]),
    'a label out of range': (_with(labels=[0, 10] * 10), ['image 1', '10', '0..9']),
    'a label below': (_with(labels=[-1] * 20), ['image 0', '-1', '0..9']),
    'a huge label': (_with(labels=[2**300] * 20), ['image 0', '0..9']),
    # LONG_BINPUT and BINBYTES8 that would take 32 GB and 2^60 bytes.
    'a huge number of objects': (b'\x80\x02}r\xff\xff\xff\xff.', ["'data'"]),
    'a huge length': (b'\x80\x04\x8e' + (2**60).to_bytes(8, 'little') + b'x.', ['truncated']),
    'an integer as text': (b'I' + b'9' * 1000 + b'\n.', ['INT']),
    # Each tuple holds the one before twice: hashing the last takes 2^39 steps, which no signal interrupts.
    'a key that takes for ever to hash': (
        b'\x80\x02}()q\0' + b''.join(b'h%ch%c\x86q%c' % (n, n, n + 1) for n in range(39)) + b'u.',
        ['keys'],
    ),
    # The same as the shape of an array, where an error would print it.
    'a shape that takes for ever to print': (
        b'\x80\x02}(X\x04\0\0\0junk()q\0'
        + b''.join(b'h%ch%c\x86q%c' % (n, n, n + 1) for n in range(39))
        + b'tX\x04\0\0\0datacnumpy.core.multiarray\n_reconstruct\n)R('
        + b'K\x01cnumpy\nndarray\nh\x27\x85Rcnumpy\ndtype\nX\x02\0\0\0u1\x85R\x89NtbX\x06\0\0\0labels]u.',
        ["'data'"],
    ),
    # 1 MB that would take 600 MB: one text that is encoded 600 times.
    'a text that is encoded again and again': (
        b'\x80\x02c_codecs\nencode\nq\0X'
        + (2**20).to_bytes(4, 'little')
        + b'a' * 2**20
        + b'\x85q\1'
        + b'h\0h\1R' * 600
        + b'.',
        ['calls'],
    ),
    'a call of text': (b'\x80\x02U\x01xU\x01y\x85R.', []),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, fault: str) -> None:
    content, facts = FAULTS[fault]
    path = tmp_path / 'b'
    path.write_bytes(content)
    with refused(path) as error:
        read_batch(str(path))
    check_line(str(error.value).replace(str(tmp_path), ''), *facts)


def test_every_cut_of_a_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / 'b'
    for end in [*range(150), *range(150, len(WHOLE), 4001)]:
        path.write_bytes(WHOLE[:end])
        with refused(path):
            read_batch(str(path))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / 'b'
    with path.open('wb') as file:
        file.truncate(2**40)
    with refused(path, str(2**40)):
        read_batch(str(path))
    path.unlink()
    with refused(path):
        read_batch(str(path))
