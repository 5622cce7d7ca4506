"""Makes a folder of photographs like ImageNet's, without a download: crops of the photographs in other packages.

    python benchmarks/sample_photographs.py --output=DIR --num_images=1024 --seed=1

The sources are the colour photographs in the wheels of scikit-image and scikit-learn; each is a class. An image is a
random crop of its source, resized to about 500x375 pixels. The JPEG quality is chosen so that the images of a class
have TARGET_BYTES on average; smooth photographs may be smaller even at the highest quality. The same arguments give the
same images; if all of them exist already, nothing is written.
"""

import argparse
import concurrent.futures
import functools
import importlib.util
import io
import multiprocessing
import os
import random
import sys
import tempfile
from pathlib import Path

from PIL import Image

SOURCES = {
    'china': ('sklearn', 'datasets/images/china.jpg'),
    'flower': ('sklearn', 'datasets/images/flower.jpg'),
    'astronaut': ('skimage', 'data/astronaut.png'),
    'cat': ('skimage', 'data/chelsea.png'),
    'coffee': ('skimage', 'data/coffee.png'),
    'galaxies': ('skimage', 'data/hubble_deep_field.jpg'),
    'motorcycle': ('skimage', 'data/motorcycle_left.png'),
    'rocket': ('skimage', 'data/rocket.jpg'),
}
# ILSVRC 2012: 138 GB in 1,281,167 training images.
TARGET_BYTES = 108_000
# Width and height in pixels: the longer side of most of ImageNet's photographs is 500.
SIZES = ((500, 375), (500, 333), (375, 500), (500, 400), (333, 500))
# The range of a crop's area, as a fraction of the largest crop of the same shape.
MIN_CROP_AREA, MAX_CROP_AREA = 0.5, 1.0
_CALIBRATION_IMAGES = 8


def source_path(name: str) -> Path:
    """Finds the photograph of a class; raises FileNotFoundError if its package is missing or does not contain it."""
    package, file = SOURCES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not (path := Path(spec.origin).parent / file).is_file():
        raise FileNotFoundError(f'{file} of {package} is not installed: pip install scikit-image scikit-learn')
    return path


def image_names(name: str, num_images: int, seed: int) -> list[str]:
    """Returns the file names of a class's images. The name of an image determines its content."""
    return [f'{name}_seed{seed}_{index:06d}.jpg' for index in range(num_images)]


def random_crop(photograph: Image.Image, key: str) -> Image.Image:
    """Returns a random crop, maybe mirrored, resized to one of SIZES. The same key gives the same crop."""
    random_of_image = random.Random(key)
    width, height = random_of_image.choice(SIZES)
    scale = min(photograph.width / width, photograph.height / height)
    scale *= random_of_image.uniform(MIN_CROP_AREA, MAX_CROP_AREA) ** 0.5
    left = random_of_image.uniform(0, photograph.width - width * scale)
    top = random_of_image.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    crop = photograph.resize((width, height), Image.Resampling.LANCZOS, box=box)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random_of_image.random() < 0.5 else crop


def encode(image: Image.Image, quality: int) -> bytes:
    jpeg = io.BytesIO()
    image.save(jpeg, 'JPEG', quality=quality)
    return jpeg.getvalue()


def choose_quality(crops: list[Image.Image], target_bytes: int) -> int:
    """Returns the JPEG quality in [50, 100] whose mean size over the crops is nearest to target_bytes."""

    @functools.cache
    def mean_bytes(quality: int) -> float:
        return sum(len(encode(crop, quality)) for crop in crops) / len(crops)

    low, high = 50, 100
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mean_bytes(middle) < target_bytes else (low, middle)
    return min(low, high, key=lambda quality: abs(mean_bytes(quality) - target_bytes))


def make_class(folder: Path, seed: int, name: str, num_images: int) -> int:
    """Writes the images of a class to a subfolder of folder; returns their total bytes."""
    with Image.open(source_path(name)) as file:
        photograph = file.convert('RGB')
    keys = image_names(name, max(num_images, _CALIBRATION_IMAGES), seed)
    quality = choose_quality([random_crop(photograph, key) for key in keys[:_CALIBRATION_IMAGES]], TARGET_BYTES)
    (folder / name).mkdir()
    return sum(
        (folder / name / key).write_bytes(encode(random_crop(photograph, key), quality)) for key in keys[:num_images]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--output', type=Path, required=True, help='folder to create, with one subfolder per class')
    parser.add_argument('--num_images', type=int, default=1024, help='images in all classes together')
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    if options.num_images < len(SOURCES):
        parser.error(
            f'--num_images={options.num_images}: there are {len(SOURCES)} classes; ask for at least one image of each'
        )
    output: Path = options.output
    counts = [
        options.num_images * (i + 1) // len(SOURCES) - options.num_images * i // len(SOURCES)
        for i in range(len(SOURCES))
    ]
    wanted = {
        f'{name}/{file}'
        for name, count in zip(SOURCES, counts, strict=True)
        for file in image_names(name, count, options.seed)
    }
    present = {str(path.relative_to(output)) for path in output.rglob('*') if not path.is_dir()}
    if present == wanted:
        print(f'{output}: all {len(wanted)} photographs exist already', file=sys.stderr)
        return
    if present or (output.exists() and not output.is_dir()):
        parser.error(f'--output={output}: it contains other files than these images; remove it, or give another folder')
    try:
        for name in SOURCES:
            source_path(name)
    except FileNotFoundError as error:
        parser.error(str(error))
    # The folder is renamed into place when complete, so an existing one is complete.
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.tf_cnn_benchmarks-', dir=output.parent) as folder:
        unfinished = Path(folder, output.name)
        unfinished.mkdir()
        with concurrent.futures.ProcessPoolExecutor(
            min(len(SOURCES), os.cpu_count() or 1), mp_context=multiprocessing.get_context('spawn')
        ) as pool:
            num_bytes = sum(pool.map(functools.partial(make_class, unfinished, options.seed), SOURCES, counts))
        unfinished.replace(output)
    print(f'{output}: {len(wanted)} photographs of {num_bytes / len(wanted) / 1000:.1f} KB on average', file=sys.stderr)


if __name__ == '__main__':
    main()
