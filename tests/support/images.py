"""Makes images on disk: shards of records, files of CIFAR-10 and MNIST, folders of photographs."""

import contextlib
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

from tests.support.files import write_files
from tf_cnn.cli import records
from tf_cnn.inputs.layout import shard_name

# The boxes of an image without objects.
NO_BOXES = np.zeros([1, 0, 4], np.float32)
# The labels of write_noise.
NUM_LABELS = 8


def write_cifar(
    folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = 'train'
) -> None:
    """Writes images [N, 32, 32, 3] uint8, in 5 files for training."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f'data_batch_{i}' for i in range(1, 6)] if subset == 'train' else ['test_batch']
    rows = np.column_stack([labels, images.transpose(0, 3, 1, 2).reshape(len(images), -1)])
    for name, part in zip(names, np.array_split(rows.astype(np.uint8), len(names)), strict=True):
        (folder / f'{name}.bin').write_bytes(part.tobytes())


def write_mnist(
    folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = 'train', suffix: str = ''
) -> None:
    """Writes images [N, H, W] uint8. With the suffix .gz the files are compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 'train' if subset == 'train' else 't10k'
    for name, array in (('images-idx3', images), ('labels-idx1', labels)):
        sizes = b''.join(size.to_bytes(4, 'big') for size in array.shape)
        data = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
        path = folder / f'{start}-{name}-ubyte{suffix}'
        path.write_bytes(gzip.compress(data) if suffix == '.gz' else data)


def write_digits(folder: Path) -> str:
    """Writes 20 images of noise as files of MNIST, and returns the folder for --data_dir."""
    rng = np.random.default_rng(5)
    write_mnist(folder, rng.integers(256, size=(20, 28, 28)), rng.integers(10, size=20))
    return str(folder)


def encoded(image: np.ndarray | Image.Image, file_format: str = 'JPEG', **options: Any) -> bytes:
    """Encodes an image, [H, W] or [H, W, 3] uint8 or a PIL image, as a file."""
    file = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(file, file_format, **options)
    return file.getvalue()


def features(values: Mapping[str, Sequence[Any]]) -> bytes:
    """Returns a serialized Example; each feature is a list of bytes, int or float."""
    message = tf.train.Example()
    for name, items in values.items():
        kind = {bytes: 'bytes_list', int: 'int64_list', float: 'float_list'}[type(items[0])]
        getattr(message.features.feature[name], kind).value.extend(items)
    return message.SerializeToString()


def example(
    image: bytes | None, label: int | None, boxes: Iterable[tuple[float, float, float, float]] = ()
) -> bytes:
    """Returns a serialized Example without the arguments that are None. Boxes are ymin, xmin, ymax,
    xmax.
    """
    values: dict[str, Sequence[Any]] = {}
    if image is not None:
        values['image/encoded'] = [image]
    if label is not None:
        values['image/class/label'] = [int(label)]
    for side, edges in zip(
        ('ymin', 'xmin', 'ymax', 'xmax'), zip(*boxes, strict=True), strict=False
    ):
        values[f'image/object/bbox/{side}'] = edges
    return features(values)


def write_shard(path: Path, records: Iterable[bytes]) -> None:
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def header_of(length: int) -> bytes:
    """Returns 12 bytes as before a record in a shard, without a checksum."""
    return length.to_bytes(8, 'little') + bytes(4)


def write_noise(folder: Path, num_validation: int) -> None:
    """Writes training and validation shards of random images, with few labels, so that some guesses
    are correct.
    """
    random = np.random.default_rng(3)
    counts = {
        ('train', 0, 1): 16,
        ('validation', 0, 2): 9,
        ('validation', 1, 2): num_validation - 9,
    }
    for shard, count in counts.items():
        images = random.integers(0, 256, [count, 40, 36, 3], np.uint8)
        labels = random.integers(0, NUM_LABELS, count)
        write_shard(folder / shard_name(*shard), map(example, map(encoded, images), labels))


def picture(width: int = 64, height: int = 48, mode: str = 'RGB') -> Image.Image:
    """Returns a smooth picture without symmetry: it shows a wrong rotation or channel order, and
    suits JPEG.
    """
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    channels = [255 * x, 255 * y, 255 * (1 - x) * (1 - y)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)


def write_photos(root: Path) -> Path:
    """Writes 3 classes of 8 images, 1 file that cannot be decoded and 4 files that are not
    images.
    """
    files = {'cat/broken.jpg': encoded(picture())[:300]}
    for class_index, name in enumerate(('bird', 'cat', 'zebra')):
        for index in range(8):
            image = picture(40 + 4 * index, 40 + 8 * class_index)
            folder = f'{name}/more' if index == 6 else name
            if index == 7:
                files[f'{folder}/{index}.png'] = encoded(image, 'PNG')
            else:
                files[f'{folder}/{index}.JPEG'] = encoded(image)
    for path in ('notes.txt', 'cat/.hidden.jpg', 'cat/list.csv', '.DS_Store'):
        files[path] = b'no image'
    return write_files(root, files)


def convert(photos: Path, output: Path, *more: str) -> int:
    return records.main([f'--input={photos}', f'--output={output}', '--num_processes=1', *more])


def write_shards_of(photos: Path, output: Path, *flags: str) -> Path:
    """Writes training shards without printing, 4 unless the flags say another number, and returns
    their folder.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        assert convert(photos, output, '--shards=4', *flags) == 0
    return output


def shard_paths(folder: Path, subset: str = 'train') -> list[Path]:
    return sorted(folder.glob(f'{subset}-*-of-*'))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
