"""Makes folders of handwritten digits to train and to validate on, without a download.

    python benchmarks/sample_digits.py --output=DIR
    python benchmarks/sample_digits.py --output=DIR --format=mnist

The images are the 1,797 digits of 8 x 8 pixels in scikit-learn: the test set of Alpaydin and Kaynak's
Optical Recognition of Handwritten Digits (1998, doi:10.24432/C50P49), written by 13 people. Every fifth one goes to
DIR/validation, the others to DIR/train; both have one folder per digit. With --format=mnist, DIR gets the four files of
MNIST instead, with each digit enlarged to 20 x 20 pixels in the middle of 28 x 28, like MNIST's.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

# The largest value of a pixel, which counts the dark pixels in a block of 16 pixels of the original image.
_LARGEST = 16
_HELD_OUT_EVERY = 5


# The side of a digit and of its image in MNIST, in pixels: LeCun et al. 1998, section III.A.
_MNIST_DIGIT, _MNIST_IMAGE = 20, 28
_MNIST_PREFIXES = {'train': 'train', 'validation': 't10k'}


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns the images [N, 8, 8] uint8, and their labels [N]."""
    pixels, labels = load_digits(return_X_y=True)
    return np.round(pixels.reshape([-1, 8, 8]) * (255 / _LARGEST)).astype(np.uint8), labels


def write_digits(output: Path) -> int:
    """Writes the folders; returns the number of images in both."""
    images, labels = read_digits()
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=1):
        folder = output / ('validation' if number % _HELD_OUT_EVERY == 0 else 'train') / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f'{number:04d}.png')
    return len(images)


def write_mnist(output: Path) -> int:
    """Writes the files of MNIST; returns the number of images in all of them."""
    images, labels = read_digits()
    margin = (_MNIST_IMAGE - _MNIST_DIGIT) // 2
    large = np.zeros([len(images), _MNIST_IMAGE, _MNIST_IMAGE], np.uint8)
    for image, digit in zip(large, images, strict=True):
        enlarged = Image.fromarray(digit).resize((_MNIST_DIGIT, _MNIST_DIGIT), Image.Resampling.BICUBIC)
        image[margin:-margin, margin:-margin] = np.asarray(enlarged)
    is_held_out = np.arange(1, len(images) + 1) % _HELD_OUT_EVERY == 0
    output.mkdir(parents=True)
    for subset, chosen in (('train', ~is_held_out), ('validation', is_held_out)):
        for kind, values in (('images', large[chosen]), ('labels', labels[chosen].astype(np.uint8))):
            # The magic number stands for unsigned bytes and the number of dimensions. All numbers are big-endian.
            header = np.array([0x800 + values.ndim, *values.shape], '>u4').tobytes()
            path = output / f'{_MNIST_PREFIXES[subset]}-{kind}-idx{values.ndim}-ubyte'
            path.write_bytes(header + values.tobytes())
    return len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--output', type=Path, required=True, help='folder to create, with the subfolders train and validation'
    )
    parser.add_argument('--format', choices=('images', 'mnist'), default='images')
    args = parser.parse_args()
    output: Path = args.output
    if output.exists():
        parser.error(f'--output={output}: it already exists; remove it, or give another folder')
    # The folder is renamed into place when complete, so an existing one is complete.
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.tf_cnn_benchmarks-', dir=output.parent) as folder:
        unfinished = Path(folder, output.name)
        num_images = (write_mnist if args.format == 'mnist' else write_digits)(unfinished)
        unfinished.replace(output)
    print(f'{output}: {num_images} digits', file=sys.stderr)


if __name__ == '__main__':
    main()
