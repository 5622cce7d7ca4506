"""Makes images on disk: shards of records, files of CIFAR-10 and MNIST, folders of photographs."""

import contextlib
import gzip
import io
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

import tf_cnn_benchmarks
from tf_cnn.cli import records
from tf_cnn.inputs.framing import masked_checksums
from tf_cnn.inputs.layout import shard_name

# The boxes of an image without objects.
NO_BOXES = np.zeros([1, 0, 4], np.float32)


def write_cifar(
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    subset: str = 'train',
    *,
    for_python: bool = False,
) -> None:
    """Writes images [N, 32, 32, 3] uint8, in 5 files for training."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f'data_batch_{i}' for i in range(1, 6)] if subset == 'train' else ['test_batch']
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    for name, each, numbers in zip(
        names, np.array_split(rows, len(names)), np.array_split(labels, len(names)), strict=True
    ):
        if for_python:
            (folder / name).write_bytes(python2_pickle(each, numbers))
        else:
            (folder / f'{name}.bin').write_bytes(
                np.column_stack([numbers, each]).astype(np.uint8).tobytes()
            )


def python2_pickle(rows: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns the bytes that Python 2's pickle.dump writes, in protocol 2, for {'data': rows,
    'labels': labels}.
    """
    dtype = (
        b'cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN'
        + 2 * b'J\xff\xff\xff\xff'
        + b'K\x00tb'
    )
    shape = b''.join(b'M' + struct.pack('<H', size) for size in rows.shape) + b'\x86'
    pixels = b'T' + struct.pack('<I', rows.size) + rows.tobytes()
    array = b'cnumpy.core.multiarray\n_reconstruct\nq\x02'
    array += b'cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04'
    array += b'(K\x01' + shape + dtype + b'\x89' + pixels + b'tb'
    numbers = b']q\x05(' + b''.join(b'K' + bytes([label]) for label in labels) + b'e'
    return b'\x80\x02}q\x01(U\x04data' + array + b'U\x06labels' + numbers + b'u.'


def idx(array: np.ndarray) -> bytes:
    sizes = b''.join(size.to_bytes(4, 'big') for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(
    folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = 'train', suffix: str = ''
) -> None:
    """Writes images [N, H, W] uint8. With the suffix .gz the files are compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 'train' if subset == 'train' else 't10k'
    for name, array in (
        (f'{start}-images-idx3-ubyte', images),
        (f'{start}-labels-idx1-ubyte', labels),
    ):
        content = idx(array)
        (folder / f'{name}{suffix}').write_bytes(
            gzip.compress(content) if suffix == '.gz' else content
        )


def write_digits(folder: Path) -> str:
    """Writes 20 images of noise as those of MNIST, and returns the folder for --data_dir."""
    rng = np.random.default_rng(5)
    write_mnist(folder, rng.integers(256, size=(20, 28, 28)), rng.integers(10, size=20))
    return str(folder)


def encoded(image: np.ndarray | Image.Image, file_format: str = 'JPEG', **options: Any) -> bytes:
    """Encodes an image, [H, W] or [H, W, 3] uint8 or a PIL image, as a file."""
    file = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(file, file_format, **options)
    return file.getvalue()


def claiming(jpeg: bytes, width: int, height: int) -> bytes:
    """Returns a baseline JPEG with another size in its header: ITU-T T.81, B.2.2."""
    at = jpeg.index(b'\xff\xc0') + 5
    return jpeg[:at] + height.to_bytes(2, 'big') + width.to_bytes(2, 'big') + jpeg[at + 4 :]


def example(
    image: bytes | None, label: int | None, boxes: Iterable[tuple[float, float, float, float]] = ()
) -> bytes:
    """Returns a serialized Example without the arguments that are None. Boxes are ymin, xmin, ymax,
    xmax.
    """
    features: dict[str, Any] = {}
    if image is not None:
        features['image/encoded'] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))
    if label is not None:
        features['image/class/label'] = tf.train.Feature(
            int64_list=tf.train.Int64List(value=[label])
        )
    for side, values in zip(
        ('ymin', 'xmin', 'ymax', 'xmax'), zip(*boxes, strict=True), strict=False
    ):
        features[f'image/object/bbox/{side}'] = tf.train.Feature(
            float_list=tf.train.FloatList(value=values)
        )
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_shard(path: Path, records: Iterable[bytes]) -> None:
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def header_of(length: int) -> bytes:
    """Returns the 12 bytes before a record in a shard, with a correct checksum, for any length
    below 2^64.
    """
    encoded_length = length.to_bytes(8, 'little')
    return (
        encoded_length
        + masked_checksums(np.frombuffer(encoded_length, np.uint8)[np.newaxis]).tobytes()
    )


def write_noise(folder: Path, num_validation: int, num_labels: int = 8) -> None:
    """Writes training and validation shards of random images, with few labels, so that some guesses
    are correct.
    """
    random = np.random.default_rng(3)

    def records(count: int) -> list[bytes]:
        images = random.integers(0, 256, [count, 40, 36, 3], np.uint8)
        return [
            example(encoded(image), int(label))
            for image, label in zip(images, random.integers(0, num_labels, count), strict=True)
        ]

    write_shard(folder / shard_name('train', 0, 1), records(16))
    for shard, count in enumerate((9, num_validation - 9)):
        write_shard(folder / shard_name('validation', shard, 2), records(count))


REPOSITORY = Path(tf_cnn_benchmarks.__file__).resolve().parent


def picture(width: int = 64, height: int = 48, mode: str = 'RGB') -> Image.Image:
    """Returns a smooth picture without symmetry: it shows a wrong rotation or channel order, and
    suits JPEG.
    """
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    channels = [255 * x, 255 * y, 255 * (1 - x) * (1 - y)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)


def pixels(jpeg: bytes) -> np.ndarray:
    """Returns the pixels of an RGB JPEG, [H, W, 3] int."""
    with Image.open(io.BytesIO(jpeg)) as image:
        assert (image.format, image.mode) == ('JPEG', 'RGB')
        return np.asarray(image).astype(int)


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


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


def write_shards_of(photos: Path, output: Path) -> Path:
    """Writes 4 training shards without printing, and returns their folder."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert convert(photos, output, '--shards=4') == 0
    return output


def shard_paths(folder: Path, subset: str = 'train') -> list[Path]:
    return sorted(folder.glob(f'{subset}-*-of-*'))


def read_examples(folder: Path, subset: str = 'train') -> Iterator[dict[str, Any]]:
    """Yields each record of a folder as a dict of feature values; every feature must have exactly
    one value.
    """
    for path in shard_paths(folder, subset):
        for data in tf.io.tf_record_iterator(str(path)):
            values = {}
            for name, feature in tf.train.Example.FromString(data).features.feature.items():
                (values[name],) = getattr(feature, feature.WhichOneof('kind')).value
            yield values


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
