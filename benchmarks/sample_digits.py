"""Makes folders of handwritten digits to train and to validate on, without a download.

    python benchmarks/sample_digits.py --output=DIR

The images are the 1,797 digits of 8 x 8 pixels in scikit-learn: the test set of Alpaydin and Kaynak's
Optical Recognition of Handwritten Digits (1998, doi:10.24432/C50P49), written by 13 people. Every fifth one is held
out in DIR/validation, the others are in DIR/train; both have one folder per digit.
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

# A pixel is the number of dark pixels in a block of 16 pixels of the original image.
_LARGEST = 16
_HELD_OUT_EVERY = 5


def write_digits(output: Path) -> int:
    """Writes the folders; returns the number of images in both."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.round(pixels.reshape([-1, 8, 8]) * (255 / _LARGEST)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=1):
        folder = output / ('validation' if number % _HELD_OUT_EVERY == 0 else 'train') / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f'{number:04d}.png')
    return len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--output', type=Path, required=True, help='folder to create, with the subfolders train and validation'
    )
    output: Path = parser.parse_args().output
    if output.exists():
        parser.error(f'--output={output}: it already exists; remove it, or give another folder')
    # The folder is renamed into place when complete, so an existing one is complete.
    unfinished = output.parent / f'.{output.name}-unfinished'
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        num_images = write_digits(unfinished)
        unfinished.replace(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f'{output}: {num_images} digits', file=sys.stderr)


if __name__ == '__main__':
    main()
