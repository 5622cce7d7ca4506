"""Makes a folder of photographs like ImageNet's, without a download.

    python benchmarks/sample_photographs.py --output=DIR --num_images=1024 --seed=1

The sources are the colour photographs in the wheels of scikit-image and scikit-learn; each source
is a class. An image is a random crop of its source, resized to about 500x375 pixels, with about
108 KB as in ILSVRC 2012. The same arguments give the same images.
"""

import argparse
import importlib.resources
import random
import sys
from pathlib import Path

from PIL import Image

# The package and file of each class, and the JPEG quality that gives crops of about 108 KB.
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


def write_crop(photograph: Image.Image, path: Path, quality: int) -> None:
    """Writes a random crop of at least half the area that fits, mirrored in half of the cases.

    The file name is the seed.
    """
    draw = random.Random(path.name)
    width, height = draw.choice(SIZES)
    scale = (
        min(photograph.width / width, photograph.height / height) * draw.uniform(0.5, 1.0) ** 0.5
    )
    left = draw.uniform(0, photograph.width - width * scale)
    top = draw.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    crop = photograph.resize((width, height), Image.Resampling.LANCZOS, box=box)
    mirrored = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else crop
    mirrored.save(path, quality=quality)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--output', type=Path, required=True, help='folder to create, with one subfolder per class'
    )
    parser.add_argument(
        '--num_images', type=int, default=1024, help='images in all classes together'
    )
    parser.add_argument('--seed', type=int, default=1)
    args = parser.parse_args()
    if args.output.exists():
        parser.error(f'--output={args.output}: it already exists; remove it, or use another folder')
    try:
        photographs = {
            name: Image.open(str(importlib.resources.files(package) / file)).convert('RGB')
            for name, (package, file, _) in SOURCES.items()
        }
    except (ImportError, OSError) as error:
        parser.error(
            f'the photographs are not installed ({error}): pip install scikit-image scikit-learn'
        )
    for number in range(args.num_images):
        # Images go round the classes from the last one, so --num_images determines the set.
        name = [*SOURCES][-1 - number % len(SOURCES)]
        path = args.output / name / f'{name}_seed{args.seed}_{number // len(SOURCES):06d}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        write_crop(photographs[name], path, SOURCES[name][2])
    print(f'{args.output}: {args.num_images} photographs', file=sys.stderr)


if __name__ == '__main__':
    main()
