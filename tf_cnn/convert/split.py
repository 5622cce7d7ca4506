"""Splits the images of a folder into training and validation images."""

import hashlib
import os
from collections.abc import Sequence

from tf_cnn.inputs.layout import ImageFolder, SourceImage


def split_images(
    folder: ImageFolder, validation_share: float, seed: int
) -> tuple[tuple[SourceImage, ...], tuple[SourceImage, ...]]:
    """Returns the training images and the validation images, each in the order of the folder.

    Each class gives the share of its images to validation, rounded, but at least one image and not
    all of them. The only image of a class is a training image. A hash of the seed and the path
    chooses the images, so that a folder that grows keeps most validation images.
    """
    images_of_class: dict[int, list[SourceImage]] = {}
    for image in folder.images:
        images_of_class.setdefault(image.class_index, []).append(image)
    validation_images = {
        image
        for images in images_of_class.values()
        for image in _choose_images(images, validation_share, seed)
    }
    return (
        tuple(image for image in folder.images if image not in validation_images),
        tuple(image for image in folder.images if image in validation_images),
    )


def _choose_images(images: Sequence[SourceImage], share: float, seed: int) -> list[SourceImage]:
    count = min(max(1, round(share * len(images))), len(images) - 1)
    salt = f'{seed}/'.encode()
    hashes = {image: hashlib.sha256(salt + os.fsencode(image.path)).digest() for image in images}
    return sorted(images, key=hashes.__getitem__)[:count]
