"""Writes the files of CIFAR-10 and MNIST as their publishers describe them."""

import gzip
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
