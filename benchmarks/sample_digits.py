"""Makes folders of handwritten digits to train and to validate on, without a download.

    python benchmarks/sample_digits.py --output=DIR

The images are the 1,797 digits of 8 x 8 pixels that scikit-learn carries: the test set of Alpaydin and Kaynak's
Optical Recognition of Handwritten Digits (1998, doi:10.24432/C50P49), written by 13 people. Every fifth one is held out
in DIR/validation, the others are in DIR/train; each has a folder for each digit.
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

# Pixels count the dark ones among 16 of a larger image.
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
    parser.add_argument('--output', type=Path, required=True, help='folder to make, with train and validation in it')
    output: Path = parser.parse_args().output
    if output.exists():
        parser.error(f'--output={output}: it is there already; remove it, or give another folder')
    # The folder gets its name when it is complete, so one that exists is.
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
