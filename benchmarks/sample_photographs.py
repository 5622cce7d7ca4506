"""Makes a folder of photographs like ImageNet's, without a download: crops of the photographs in other packages.

    python benchmarks/sample_photographs.py --output=DIR --num_images=1024 --seed=1

The sources are the colour photographs in the wheels of scikit-image and scikit-learn; each is a class. An image is a
random crop of its source, resized to about 500x375 pixels, of about 108 KB as in ILSVRC 2012. The same arguments give
the same images; if all of them exist already, nothing is written.
"""

import argparse
import concurrent.futures
import functools
import importlib.util
import multiprocessing
import random
import sys
import tempfile
from pathlib import Path

from PIL import Image

# The package and the file of each class, and the JPEG quality with which its crops have about 108 KB.
SOURCES = {
    'china': ('sklearn', 'datasets/images/china.jpg', 97),
    'flower': ('sklearn', 'datasets/images/flower.jpg', 99),
    'astronaut': ('skimage', 'data/astronaut.png', 98),
    'cat': ('skimage', 'data/chelsea.png', 99),
    'coffee': ('skimage', 'data/coffee.png', 98),
    'galaxies': ('skimage', 'data/hubble_deep_field.jpg', 97),
    'motorcycle': ('skimage', 'data/motorcycle_left.png', 97),
    'rocket': ('skimage', 'data/rocket.jpg', 100),
}
# Width and height in pixels: the longer side of most of ImageNet's photographs is 500.
SIZES = ((500, 375), (500, 333), (375, 500), (500, 400), (333, 500))


def find_photograph(name: str) -> Path | None:
    """Returns the photograph of a class; None if its package is not installed."""
    package, file, _ = SOURCES[name]
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    return path if path and path.is_file() else None


def write_crop(photograph: Image.Image, path: Path, quality: int) -> None:
    """Writes a random crop of at least half the area, maybe mirrored. The same name gives the same crop."""
    draw = random.Random(path.name)
    width, height = draw.choice(SIZES)
    scale = min(photograph.width / width, photograph.height / height) * draw.uniform(0.5, 1.0) ** 0.5
    left = draw.uniform(0, photograph.width - width * scale)
    top = draw.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    crop = photograph.resize((width, height), Image.Resampling.LANCZOS, box=box)
    mirrored = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else crop
    mirrored.save(path, quality=quality)


def write_class(folder: Path, name: str, files: list[str]) -> None:
    path = find_photograph(name)
    assert path
    (folder / name).mkdir()
    with Image.open(path) as opened:
        photograph = opened.convert('RGB')
    for file in files:
        write_crop(photograph, folder / name / file, SOURCES[name][2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--output', type=Path, required=True, help='folder to create, with one subfolder per class')
    parser.add_argument('--num_images', type=int, default=1024, help='images in all classes together')
    parser.add_argument('--seed', type=int, default=1)
    args = parser.parse_args()
    count, output = len(SOURCES), args.output
    if args.num_images < count:
        parser.error(f'--num_images={args.num_images}: there are {count} classes; ask for at least one image of each')
    wanted = {
        name: [f'{name}_seed{args.seed}_{number:06d}.jpg' for number in range((args.num_images + i) // count)]
        for i, name in enumerate(SOURCES)
    }
    present = {str(path.relative_to(output)) for path in output.rglob('*') if not path.is_dir()}
    if present == {f'{name}/{file}' for name, files in wanted.items() for file in files}:
        print(f'{output}: all {args.num_images} photographs exist already', file=sys.stderr)
        return
    if present or (output.exists() and not output.is_dir()):
        parser.error(f'--output={output}: it contains other files than these images; remove it, or give another folder')
    if missing := [SOURCES[name] for name in SOURCES if not find_photograph(name)]:
        package, file, _ = missing[0]
        parser.error(f'{file} of {package} is not installed: pip install scikit-image scikit-learn')
    output.parent.mkdir(parents=True, exist_ok=True)
    # The folder is renamed into place when complete, so an existing one is complete.
    with tempfile.TemporaryDirectory(prefix='.tf_cnn_benchmarks-', dir=output.parent) as folder:
        unfinished = Path(folder, output.name)
        unfinished.mkdir()
        with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')) as pool:
            list(pool.map(functools.partial(write_class, unfinished), wanted, wanted.values()))
        unfinished.replace(output)
    print(f'{output}: {args.num_images} photographs', file=sys.stderr)


if __name__ == '__main__':
    main()
