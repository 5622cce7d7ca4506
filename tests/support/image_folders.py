"""Writes folders of class folders of images, and the shards that the subcommand `records` makes from them."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tf_cnn_benchmarks
from commands import records
from tests.support.examples import encoded

REPOSITORY = Path(tf_cnn_benchmarks.__file__).resolve().parent


def picture(width: int = 64, height: int = 48, mode: str = 'RGB') -> Image.Image:
    """A smooth picture without symmetry: a wrong rotation or channel order shows, and JPEG changes it little."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    channels = [255 * x, 255 * y, 255 * (1 - x) * (1 - y)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)


def pixels(jpeg: bytes) -> np.ndarray:
    """The pixels of an RGB JPEG, [H, W, 3] int."""
    with Image.open(io.BytesIO(jpeg)) as image:
        assert (image.format, image.mode) == ('JPEG', 'RGB')
        return np.asarray(image).astype(int)


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """Writes files by their paths below root, and returns root."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_photos(root: Path) -> Path:
    """3 classes of 8 images, 1 file that cannot be decoded and 4 files that are not images."""
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
    """Calls `records` with one decoding process; returns the exit code."""
    return records.main([f'--input={photos}', f'--output={output}', '--num_processes=1', *more])


def write_shards_of(photos: Path, output: Path) -> Path:
    """Writes 4 training shards without printing, and returns their folder."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert convert(photos, output, '--shards=4') == 0
    return output


def shard_paths(folder: Path, subset: str = 'train') -> list[Path]:
    return sorted(folder.glob(f'{subset}-*-of-*'))


def read_examples(folder: Path, subset: str = 'train') -> Iterator[dict[str, Any]]:
    """Each record of a folder as a dict of feature values; every feature must have exactly one."""
    import tensorflow.compat.v1 as tf

    for path in shard_paths(folder, subset):
        for data in tf.io.tf_record_iterator(str(path)):
            values = {}
            for name, feature in tf.train.Example.FromString(data).features.feature.items():
                (values[name],) = getattr(feature, feature.WhichOneof('kind')).value
            yield values


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
