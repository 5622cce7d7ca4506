"""Makes folders of handwritten digits for training and validation, without a download.

    python benchmarks/sample_digits.py --output=DIR
    python benchmarks/sample_digits.py --output=DIR --format=mnist

The images are the 1,797 digits of 8 x 8 pixels in scikit-learn: the test set of Alpaydin and
Kaynak's Optical Recognition of Handwritten Digits (1998, doi:10.24432/C50P49), written by 13
people. Every fifth one goes to DIR/validation, the others to DIR/train; both have one folder per
digit. With --format=mnist, DIR gets the four files of MNIST instead, with each digit enlarged to 20
x 20 pixels in the middle of 28 x 28 (LeCun et al. 1998, section III.A): a replacement of MNIST for
benchmarks/replication.py.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

_HELD_OUT_EVERY = 5


def read_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the images [N, 8, 8] uint8, their labels [N], and whether each is held out [N]."""
    pixels, labels = load_digits(return_X_y=True)
    # The value of a pixel is the number of dark pixels in a block of 16 of the original image.
    images = np.round(pixels.reshape([-1, 8, 8]) * (255 / 16)).astype(np.uint8)
    return images, labels, np.arange(1, len(images) + 1) % _HELD_OUT_EVERY == 0


def write_digits(output: Path) -> int:
    images, labels, held_out = read_digits()
    for number, (image, label, is_held_out) in enumerate(
        zip(images, labels, held_out, strict=True), start=1
    ):
        folder = output / ('validation' if is_held_out else 'train') / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f'{number:04d}.png')
    return len(images)


def write_mnist(output: Path) -> int:
    images, labels, held_out = read_digits()
    large = np.zeros([len(images), 28, 28], np.uint8)
    for image, digit in zip(large, images, strict=True):
        image[4:-4, 4:-4] = np.asarray(
            Image.fromarray(digit).resize((20, 20), Image.Resampling.BICUBIC)
        )
    output.mkdir(parents=True)
    for prefix, mask in (('train', ~held_out), ('t10k', held_out)):
        for kind, values in (
            ('images', large[mask]),
            ('labels', labels[mask].astype(np.uint8)),
        ):
            # The magic number encodes unsigned bytes and the number of dimensions, big-endian.
            header = np.array([0x800 + values.ndim, *values.shape], '>u4').tobytes()
            (output / f'{prefix}-{kind}-idx{values.ndim}-ubyte').write_bytes(
                header + values.tobytes()
            )
    return len(images)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, required=True, help='folder to create')
    parser.add_argument('--format', choices=('images', 'mnist'), default='images')
    args = parser.parse_args()
    if args.output.exists():
        parser.error(f'--output={args.output}: it already exists; remove it, or use another folder')
    num_images = (write_mnist if args.format == 'mnist' else write_digits)(args.output)
    print(f'{args.output}: {num_images} digits', file=sys.stderr)


if __name__ == '__main__':
    main()
