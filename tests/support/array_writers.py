"""Writes the files of CIFAR-10 and MNIST as their publishers describe them."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_cifar(folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = 'train') -> None:
    """images [N, 32, 32, 3] uint8; for training, N is a multiple of 5, the number of files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f'data_batch_{i}.bin' for i in range(1, 6)] if subset == 'train' else ['test_batch.bin']
    size = len(images) // len(names)
    for number, name in enumerate(names):
        with (folder / name).open('wb') as file:
            for image, label in list(zip(images, labels, strict=True))[number * size : (number + 1) * size]:
                planes = [image[:, :, channel].tobytes() for channel in range(3)]
                file.write(bytes([label]) + b''.join(planes))


def write_cifar_pickles(folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = 'train') -> None:
    """As write_cifar, for the version for Python."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f'data_batch_{i}' for i in range(1, 6)] if subset == 'train' else ['test_batch']
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    for name, each, numbers in zip(names, np.split(rows, len(names)), np.split(labels, len(names)), strict=True):
        (folder / name).write_bytes(python2_pickle(each, numbers))


def python2_pickle(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """What pickle.dump of Python 2 with protocol 2 writes of {'data': rows, 'labels': list of labels}."""
    dtype = b'cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN' + 2 * b'J\xff\xff\xff\xff' + b'K\x00tb'
    shape = b''.join(b'M' + struct.pack('<H', size) for size in rows.shape) + b'\x86'
    pixels = b'T' + struct.pack('<I', rows.size) + rows.tobytes()
    array = b'cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04'
    array += b'(K\x01' + shape + dtype + b'\x89' + pixels + b'tb'
    numbers = b']q\x05(' + b''.join(b'K' + bytes([label]) for label in labels) + b'e'
    return b'\x80\x02}q\x01(U\x04data' + array + b'U\x06labels' + numbers + b'u.'


def idx(array: np.ndarray) -> bytes:
    """An idx file of uint8 values."""
    sizes = b''.join(size.to_bytes(4, 'big') for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = 'train', suffix: str = '') -> None:
    """images [N, H, W] uint8. With the suffix .gz the files are compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 'train' if subset == 'train' else 't10k'
    for name, array in ((f'{start}-images-idx3-ubyte', images), (f'{start}-labels-idx1-ubyte', labels)):
        content = idx(array)
        (folder / f'{name}{suffix}').write_bytes(gzip.compress(content) if suffix == '.gz' else content)
